"""A Kafka consumer that reads records without joining a group, so it needs no ACL on a group.

Record by record it is slow: for a few records only.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.errors import EndBeforePositionError
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
    """Returns the next message, a record or the end of a log."""
    while (came := next_message(consumer, deadline - time.monotonic(), wanted)) is None:
        if time.monotonic() >= deadline:
            raise NoAnswerError
    return came


def next_message(
    consumer: confluent_kafka.Consumer, seconds: float, wanted: Collection[TopicPartition]
) -> tuple[TopicPartition, confluent_kafka.Message] | None:
    """Returns the next message, a record or the end of a log; None if none arrived, maybe early: check the clock."""
    message = consumer.poll(max(0.0, seconds))
    if message is None:
        return None
    tp = TopicPartition(message.topic() or "", message.partition() or 0)
    # Such as one about the group, which is not used, so that a missing ACL on it is irrelevant.
    if tp not in wanted:
        return None
    error = message.error()
    if error is not None and error.name() != "_PARTITION_EOF":
        raise ReadFailedError(tp, error)
    return tp, message


def read_messages(
    config: Mapping[str, Any], ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    """Yields the messages in ranges of offsets, at most one range per topic partition, in order."""
    left = {each.topic_partition: each.stopping_offset for each in ranges if not each.is_empty}
    with contextlib.closing(groupless_consumer(config, {"queued.max.messages.kbytes": 32 * 1024})) as consumer:
        consumer.assign([at(each.topic_partition, each.starting_offset) for each in ranges if not each.is_empty])
        deadline = time.monotonic() + seconds
        while left:
            tp, message = awaited_message(consumer, deadline, left)
            stop, offset, is_end = left[tp], message.offset() or 0, message.error() is not None
            if is_end and offset < stop:
                raise EndBeforePositionError(
                    f"{tp}: the log ends at offset {offset}, but records up to offset {stop} were planned: the log was "
                    "truncated meanwhile, or the topic is a different one",
                    "Run again",
                )
            if offset < stop:
                yield message
            if is_end or offset >= stop - 1:
                del left[tp]
                consumer.incremental_unassign([at(tp)])
            # Excludes the time that the caller needs to process a message.
            deadline = time.monotonic() + seconds


# Offsets to read at either end of a split. The last ones may be control records or gaps; rarely all of them.
_OFFSETS_AT_EITHER_END = 50

_FETCHES = {"fetch.message.max.bytes": 256 * 1024, "queued.max.messages.kbytes": 16 * 1024}


def sample_splits(
    config: Mapping[str, Any], splits: Sequence[KafkaPartitionSplit], seconds: float
) -> tuple[dict[TopicPartition, SplitSample], set[TopicPartition]]:
    """A sample of each split with records, and the topic partitions without any message in time."""
    seen = {split.topic_partition: SplitSample() for split in splits}
    stops = {split.topic_partition: split.stopping_offset for split in splits}
    heads = {split.topic_partition: split.within(split.starting_offset + _OFFSETS_AT_EITHER_END) for split in splits}
    deadline = time.monotonic() + seconds
    with contextlib.closing(groupless_consumer(config, _FETCHES)) as consumer:
        starts = {split.topic_partition: split.starting_offset for split in splits}
        unanswered = _read_sample(consumer, starts, heads, stops, seen, deadline)
        tails = {tp: max(head, stops[tp] - _OFFSETS_AT_EITHER_END) for tp, head in heads.items() if head < stops[tp]}
        _read_sample(consumer, tails, stops, stops, seen, deadline)
    samples = {tp: found for tp, found in seen.items() if found.records}
    return samples, unanswered - samples.keys()


def _read_sample(
    consumer: confluent_kafka.Consumer,
    starts: Position,
    ends: Position,
    stops: Position,
    seen: Mapping[TopicPartition, SplitSample],
    deadline: float,
) -> set[TopicPartition]:
    left = set(starts)
    consumer.assign([at(tp, start) for tp, start in starts.items()])
    while left and (remaining := deadline - time.monotonic()) > 0:
        # One by one: a request for several messages waits for all of them.
        if (came := next_message(consumer, remaining, left)) is None:
            continue
        tp, message = came
        offset = ends[tp] if message.error() is not None else message.offset() or 0
        # The first record may follow a long gap: it counts anywhere in the split.
        if message.error() is None and offset < (ends if seen[tp].records else stops)[tp]:
            seen[tp].add(len(message.key() or b"") + len(message.value() or b""), message.timestamp()[1])
        # Past the range, or at the end of the log: the rest of the range is control records and gaps.
        if offset >= ends[tp] - 1:
            left.remove(tp)
            consumer.incremental_unassign([at(tp)])
    consumer.unassign()
    return left
