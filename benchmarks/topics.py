"""Topics and records for the benchmarks, made once before anything is measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dagster_kafka_flip.source.split import TopicPartition

# A client outlives its broker by a moment, and would say so on the terminal.
QUIET = {"log_level": 0}

# One request that makes thousands of topic partitions keeps the controller of a small broker busy for too long.
_PARTITIONS_AT_ONCE = 1_000
_SECONDS = 120.0
_POLL_EVERY = 10_000

Record = tuple["TopicPartition", bytes, int]
"""Where to, the value, and the timestamp in milliseconds since the epoch."""


def create_topics(bootstrap_servers: str, topics: Sequence[tuple[str, int]]) -> None:
    """Makes topics of (name, number of topic partitions) that keep their records, and waits until each has leaders.

    Raises:
        KafkaException: A topic can't be made.
        TimeoutError: A topic partition has no leader for too long.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    for name, partitions in topics:
        if partitions > _PARTITIONS_AT_ONCE:
            msg = f"{name}: {partitions} topic partitions at once are too many; make several topics"
            raise ValueError(msg)
        # The timestamps are of another day: with any retention by time the records would be deleted.
        topic = NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
        admin.create_topics([topic], request_timeout=_SECONDS, operation_timeout=_SECONDS)[name].result(_SECONDS)
    deadline = time.monotonic() + _SECONDS
    for name, partitions in topics:
        while _count_led(admin, name) != partitions:
            if time.monotonic() > deadline:
                msg = f"{name}: its {partitions} topic partitions don't all have a leader after {_SECONDS:.0f} s"
                raise TimeoutError(msg)
            time.sleep(0.1)


def _count_led(admin: AdminClient, topic: str) -> int:
    found = admin.list_topics(topic, timeout=_SECONDS).topics[topic]
    return sum(1 for partition in found.partitions.values() if partition.error is None and partition.leader >= 0)


def produce(bootstrap_servers: str, records: Iterable[Record]) -> None:
    """Writes records, and waits until all of them are there.

    Raises:
        KafkaException: A record was not written.
        TimeoutError: The broker does not acknowledge them.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "message.max.bytes": 64 << 20,
            "batch.size": 1_000_000,
            # A call back into Python for each record would take longer than writing it does.
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 500_000,
            **QUIET,
        }
    )
    for count, ((topic, partition), value, timestamp) in enumerate(records, start=1):
        while True:
            try:
                producer.produce(topic, value, partition=partition, timestamp=timestamp, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if count % _POLL_EVERY == 0:
            producer.poll(0)
    if producer.flush(_SECONDS):
        msg = f"{len(producer)} records were not acknowledged within {_SECONDS:.0f} s"
        raise TimeoutError(msg)
    if failures:
        raise KafkaException(failures[0])


def commit_offsets(bootstrap_servers: str, group: str, partitions: Iterable[TopicPartition], offset: int) -> None:
    """Commits one and the same offset of a consumer group for each of some topic partitions.

    Raises:
        KafkaException: The broker refused.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, **QUIET})
    try:
        consumer.commit(
            offsets=[ClientPartition(topic, partition, offset) for topic, partition in partitions], asynchronous=False
        )
    finally:
        consumer.close()
