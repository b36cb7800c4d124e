"""Takes a bounded sample of splits with a consumer that belongs to no group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.source.groupless import groupless_consumer, next_message
from dagster_kafka_flip.source.sample import SplitSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition

# Offsets looked at on either end of a split. The last ones may be control records or holes; that many rarely all are.
_OFFSETS_AT_EITHER_END = 50

_FETCHES = {"fetch.message.max.bytes": 256 * 1024, "queued.max.messages.kbytes": 16 * 1024}


@dataclass
class _Seen:
    records: int = 0
    bytes: int = 0
    first_timestamp: int = -1
    last_offset: int = -1
    last_timestamp: int = -1

    def add(self, message: confluent_kafka.Message) -> None:
        offset, timestamp = message.offset() or 0, message.timestamp()[1]
        self.records += 1
        self.bytes += len(message.key() or b"") + len(message.value() or b"")
        if self.first_timestamp < 0:
            self.first_timestamp = timestamp
        if offset > self.last_offset:
            self.last_offset, self.last_timestamp = offset, timestamp


def sample_splits(
    config: Mapping[str, Any], splits: Sequence[KafkaPartitionSplit], seconds: float
) -> tuple[dict[TopicPartition, SplitSample], set[TopicPartition]]:
    """Reads some records of each split, first from the starts and then up to the ends.

    Args:
        config: Of a librdkafka client.
        splits: What to look at.
        seconds: When to stop, with what was seen until then.

    Returns:
        A sample of each split that has records, and the topic partitions of which nothing at all came in time.
    """
    seen = {split.topic_partition: _Seen() for split in splits}
    stops = {split.topic_partition: split.stopping_offset for split in splits}
    deadline = time.monotonic() + seconds
    consumer = groupless_consumer(config, _FETCHES)
    try:
        heads = {
            split.topic_partition: (
                split.starting_offset,
                min(split.stopping_offset, split.starting_offset + _OFFSETS_AT_EITHER_END),
            )
            for split in splits
        }
        unanswered = _read(consumer, heads, stops, seen, deadline)
        tails = {
            split.topic_partition: (
                max(heads[split.topic_partition][1], split.stopping_offset - _OFFSETS_AT_EITHER_END),
                split.stopping_offset,
            )
            for split in splits
            if heads[split.topic_partition][1] < split.stopping_offset
        }
        _read(consumer, tails, stops, seen, deadline)
    finally:
        consumer.close()
    samples = {
        tp: SplitSample(found.records, found.bytes, found.first_timestamp, found.last_timestamp)
        for tp, found in seen.items()
        if found.records
    }
    return samples, unanswered - samples.keys()


def _read(
    consumer: confluent_kafka.Consumer,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    stops: Position,
    seen: Mapping[TopicPartition, _Seen],
    deadline: float,
) -> set[TopicPartition]:
    """Reads ranges of offsets until each is passed, or ends, or time is up.

    Returns:
        The topic partitions for which time was up.
    """
    left = dict(ranges)
    for tp, message in _messages(consumer, {tp: start for tp, (start, _) in ranges.items()}, left, deadline):
        stop = left[tp][1]
        offset = stop if message is None else message.offset() or 0
        # The first record may stand behind a long hole: it counts wherever it is in the split.
        if message is not None and offset < (stop if seen[tp].records else stops[tp]):
            seen[tp].add(message)
        # Passed, or at the end of the log: what is left of the range are control records and holes.
        if offset >= stop - 1:
            del left[tp]
    consumer.unassign()
    return set(left)


def _messages(
    consumer: confluent_kafka.Consumer, starts: Position, left: Collection[TopicPartition], deadline: float
) -> Iterator[tuple[TopicPartition, confluent_kafka.Message | None]]:
    """The messages from some offsets on, of the topic partitions that are left; None for the end of a log.

    Args:
        consumer: What to read with.
        starts: Where to begin.
        left: What is still wanted. Whoever has enough of a topic partition takes it out.
        deadline: When to stop.
    """
    consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, start) for tp, start in starts.items()])
    while left and (remaining := deadline - time.monotonic()) > 0:
        # One by one: a request for many waits for all of them.
        came = next_message(consumer, remaining, left)
        if came is None:
            continue
        tp, message = came
        yield tp, message if message.error() is None else None
        if tp not in left:
            consumer.incremental_unassign([confluent_kafka.TopicPartition(tp.topic, tp.partition)])
