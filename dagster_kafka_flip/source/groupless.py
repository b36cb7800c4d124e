"""A Kafka consumer that reads records without joining a group, so it needs no ACL on a group.

Record by record it is slow: for a few records only.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.errors import EndBeforePositionError
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit

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
    while True:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        tp = None if message is None else TopicPartition(message.topic() or "", message.partition() or 0)
        # Another one may be about the group, which is not used, so that a missing ACL on it is irrelevant.
        if message is not None and tp is not None and tp in wanted:
            error = message.error()
            if error is not None and error.name() != "_PARTITION_EOF":
                raise ReadFailedError(tp, error)
            return tp, message
        if time.monotonic() >= deadline:
            raise NoAnswerError


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
