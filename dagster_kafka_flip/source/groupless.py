"""A Kafka consumer that reads records without joining a group, so it needs no ACL on a group.

Record by record it is slow: for a few records only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.source.split import SplitSample, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position

_SETTINGS = {
    # librdkafka requires a group name, and looks up the group's coordinator even for a consumer that never joins.
    "group.id": "dagster-kafka-flip-reading",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # All that is read is there already: at the end of a log, behind a transaction's marker for example, a broker
    # would wait this long for more before it says that there is none.
    "fetch.wait.max.ms": 1,
    "log_level": 0,
}


class NoAnswerError(Exception):
    """No message arrived within one request's timeout."""


class ReadFailedError(Exception):
    """A broker or the client returned an error."""

    def __init__(self, topic_partition: TopicPartition, error: confluent_kafka.KafkaError) -> None:
        super().__init__(f"{topic_partition}: {error}")
        self.topic_partition = topic_partition
        self.error = error


def groupless_consumer(config: Mapping[str, Any], settings: Mapping[str, int]) -> confluent_kafka.Consumer:
    """Creates a consumer with assigned topic partitions, each with a starting offset."""
    return confluent_kafka.Consumer({**config, **_SETTINGS, **settings})


def at(
    tp: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID, leader_epoch: int = -1
) -> confluent_kafka.TopicPartition:
    """A topic partition as the client names it, with the offset to read from."""
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset, leader_epoch=leader_epoch)


def awaited_message(
    consumer: confluent_kafka.Consumer, deadline: float, wanted: Collection[TopicPartition]
) -> tuple[TopicPartition, confluent_kafka.Message]:
    """Returns the next message, as `next_message`."""
    while (came := next_message(consumer, deadline - time.monotonic(), wanted)) is None:
        if time.monotonic() >= deadline:
            raise NoAnswerError
    return came


def next_message(
    consumer: confluent_kafka.Consumer, seconds: float, wanted: Collection[TopicPartition]
) -> tuple[TopicPartition, confluent_kafka.Message] | None:
    """Returns the next message, a record or the end of a log; None if none arrived.

    May return None early: check the clock. Skips messages without a topic partition: they concern the group, which is
    not used, so a missing ACL on it is irrelevant.
    """
    message = consumer.poll(max(0.0, seconds))
    if message is None:
        return None
    tp = TopicPartition(message.topic() or "", message.partition() or 0)
    if tp not in wanted:
        return None
    error = message.error()
    if error is not None and error.name() != "_PARTITION_EOF":
        raise ReadFailedError(tp, error)
    return tp, message


class LogEndedError(Exception):
    """A log ends before the range to read."""

    def __init__(self, topic_partition: TopicPartition, end: int, stop: int) -> None:
        super().__init__(f"{topic_partition}: {end} < {stop}")
        self.topic_partition = topic_partition
        self.end = end
        self.stop = stop


def read_messages(
    config: Mapping[str, Any], ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    """Yields the messages in ranges of offsets, at most one range per topic partition, in order.

    Raises:
        ReadFailedError: A topic partition can't be read.
        NoAnswerError: No message arrived in this time.
        LogEndedError: A log ends before its range.
    """
    consumer = groupless_consumer(config, {"queued.max.messages.kbytes": 32 * 1024})
    try:
        yield from _read(consumer, ranges, seconds)
    finally:
        consumer.close()


def _read(
    consumer: confluent_kafka.Consumer, ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    left = {each.topic_partition: each.stopping_offset for each in ranges if not each.is_empty}
    consumer.assign([at(each.topic_partition, each.starting_offset) for each in ranges if not each.is_empty])
    deadline = time.monotonic() + seconds
    while left:
        tp, message = awaited_message(consumer, deadline, left)
        stop = left[tp]
        error = message.error()
        offset = message.offset() or 0
        if error is not None and offset < stop:
            raise LogEndedError(tp, offset, stop)
        if offset < stop:
            yield message
        if error is not None or offset >= stop - 1:
            del left[tp]
            consumer.incremental_unassign([at(tp)])
        # Excludes the time that the caller needs to process a message.
        deadline = time.monotonic() + seconds
    consumer.unassign()


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
        unanswered = _read_sample(consumer, heads, stops, seen, deadline)
        tails = {
            split.topic_partition: (
                max(heads[split.topic_partition][1], split.stopping_offset - _OFFSETS_AT_EITHER_END),
                split.stopping_offset,
            )
            for split in splits
            if heads[split.topic_partition][1] < split.stopping_offset
        }
        _read_sample(consumer, tails, stops, seen, deadline)
    finally:
        consumer.close()
    samples = {
        tp: SplitSample(found.records, found.bytes, found.first_timestamp, found.last_timestamp)
        for tp, found in seen.items()
        if found.records
    }
    return samples, unanswered - samples.keys()


def _read_sample(
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
