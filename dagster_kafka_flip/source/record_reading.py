"""Reads ranges of offsets record by record with a groupless consumer: slow, for a few records only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.groupless import at, awaited_message, groupless_consumer
from dagster_kafka_flip.source.unreadable import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import confluent_kafka

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition


class LogEndedError(Exception):
    """A log ends before the range to read.

    Attributes:
        topic_partition: The topic partition.
        end: End offset of the log.
        stop: End offset of the range.
    """

    def __init__(self, topic_partition: TopicPartition, end: int, stop: int) -> None:
        super().__init__(f"{topic_partition}: {end} < {stop}")
        self.topic_partition = topic_partition
        self.end = end
        self.stop = stop


def read_messages(
    config: Mapping[str, Any], ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    """Yields the messages in ranges of offsets, in order per topic partition.

    Args:
        config: Settings of a librdkafka client.
        ranges: The ranges; those of one topic partition must not overlap.
        seconds: Maximum time to wait for the next message, in seconds.

    Raises:
        ReadFailedError: A topic partition can't be read.
        NoAnswerError: No message arrived in this time.
        LogEndedError: A log ends before its range.
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
