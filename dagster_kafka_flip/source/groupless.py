"""A consumer that reads records and belongs to no group, so that it needs no right on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SETTINGS = {
    # librdkafka wants the name of a group, and asks for the group's coordinator, even of a consumer that joins none.
    "group.id": "dagster-kafka-flip-reading",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "log_level": 0,
}


class NoAnswerError(Exception):
    """Nothing came for as long as one request may take."""


class ReadFailedError(Exception):
    """A broker, or the client, answered with an error.

    Attributes:
        topic_partition: What was read.
        error: What it said.
    """

    def __init__(self, topic_partition: TopicPartition, error: confluent_kafka.KafkaError) -> None:
        super().__init__(f"{topic_partition}: {error}")
        self.topic_partition = topic_partition
        self.error = error


def groupless_consumer(config: Mapping[str, Any], settings: Mapping[str, int]) -> confluent_kafka.Consumer:
    """A consumer for topic partitions that are assigned to it, each with an offset to begin at.

    Args:
        config: Of a librdkafka client.
        settings: More of it; they win.
    """
    return confluent_kafka.Consumer({**config, **_SETTINGS, **settings})


def next_message(
    consumer: confluent_kafka.Consumer, seconds: float, wanted: Collection[TopicPartition]
) -> tuple[TopicPartition, confluent_kafka.Message] | None:
    """The next message, a record or a log's end; None if none came. May return None early: look at the clock.

    What is not of a topic partition is left out. It is about the group, of which nothing is asked: so it doesn't matter
    that this client may not know of it.

    Args:
        consumer: A groupless one.
        seconds: How long to wait.
        wanted: Messages of other topic partitions are left out.

    Raises:
        ReadFailedError: A topic partition can't be read.
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
