"""Reads ranges of offsets record by record, with a consumer that belongs to no group: slow, and only for a few."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.source.groupless import NoAnswerError, groupless_consumer, next_message
from dagster_kafka_flip.source.unreadable import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition


class LogEndedError(Exception):
    """A log ends before the range that was to be read of it.

    Attributes:
        topic_partition: Which one.
        end: Where it ends.
        stop: Where the range ends.
    """

    def __init__(self, topic_partition: TopicPartition, end: int, stop: int) -> None:
        super().__init__(f"{topic_partition}: {end} < {stop}")
        self.topic_partition = topic_partition
        self.end = end
        self.stop = stop


def read_messages(
    config: Mapping[str, Any], ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    """The messages in ranges of offsets; those of one topic partition in order.

    Args:
        config: Of a librdkafka client.
        ranges: What to read; several of one topic partition must not overlap.
        seconds: How long to wait for the next message.

    Raises:
        ReadFailedError: A topic partition can't be read.
        NoAnswerError: No message came for so long.
        LogEndedError: A log ends before its range does.
    """
    consumer = groupless_consumer(config, {"queued.max.messages.kbytes": 32 * 1024})
    try:
        for each in rounds(ranges):
            yield from _read(consumer, each, seconds)
    finally:
        consumer.close()


def _read(
    consumer: confluent_kafka.Consumer, ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    left = {each.topic_partition: each.stopping_offset for each in ranges if not each.is_empty}
    consumer.assign([_at(each.topic_partition, each.starting_offset) for each in ranges if not each.is_empty])
    deadline = time.monotonic() + seconds
    while left:
        came = next_message(consumer, deadline - time.monotonic(), left)
        if came is None:
            if time.monotonic() < deadline:
                continue
            raise NoAnswerError
        tp, message = came
        stop = left[tp]
        error = message.error()
        offset = message.offset() or 0
        if error is not None and offset < stop:
            raise LogEndedError(tp, offset, stop)
        if offset < stop:
            yield message
        if error is not None or offset >= stop - 1:
            del left[tp]
            consumer.incremental_unassign([_at(tp)])
        # Whoever takes the messages may take his time.
        deadline = time.monotonic() + seconds
    consumer.unassign()


def _at(tp: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)
