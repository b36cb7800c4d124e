"""Takes a bounded sample of splits with a groupless consumer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.groupless import at, groupless_consumer, next_message
from dagster_kafka_flip.source.sample import SplitSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import confluent_kafka

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition

# Offsets to read at either end of a split. The last ones may be control records or gaps; rarely all of them.
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
    """Samples records of each split, first from the starts and then before the ends.

    Args:
        config: Settings of a librdkafka client.
        splits: The splits.
        seconds: Time limit in seconds; the sample is what arrived until then.

    Returns:
        A sample of each split with records, and the topic partitions without any message in time.
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
    """Reads ranges of offsets until each is passed or its log ends; returns those not finished in time."""
    left = dict(ranges)
    for tp, message in _messages(consumer, {tp: start for tp, (start, _) in ranges.items()}, left, deadline):
        stop = left[tp][1]
        offset = stop if message is None else message.offset() or 0
        # The first record may follow a long gap: it counts anywhere in the split.
        if message is not None and offset < (stop if seen[tp].records else stops[tp]):
            seen[tp].add(message)
        # Past the range, or at the end of the log: the rest of the range is control records and gaps.
        if offset >= stop - 1:
            del left[tp]
    consumer.unassign()
    return set(left)


def _messages(
    consumer: confluent_kafka.Consumer, starts: Position, left: Collection[TopicPartition], deadline: float
) -> Iterator[tuple[TopicPartition, confluent_kafka.Message | None]]:
    """Yields messages, None for a log's end, of the topic partitions that the caller has not removed from `left`."""
    consumer.assign([at(tp, start) for tp, start in starts.items()])
    while left and (remaining := deadline - time.monotonic()) > 0:
        # One by one: a request for several messages waits for all of them.
        came = next_message(consumer, remaining, left)
        if came is None:
            continue
        tp, message = came
        yield tp, message if message.error() is None else None
        if tp not in left:
            consumer.incremental_unassign([at(tp)])
