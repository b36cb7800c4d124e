"""Real topics with real records, for tests."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage]
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tenacity import retry, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.split import READ_COMMITTED, READ_UNCOMMITTED, KafkaPartitionSplit
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.split import TopicPartition as Log

_transactions = itertools.count()

Record = tuple[bytes | str | None, bytes | str | None]

# The clients outlive the broker by a moment, and would say so on the terminal, behind pytest's own last line.
QUIET = {"log_level": 0}


class Kafka:
    """Makes topics and records on one broker, or with replicas on several."""

    def __init__(self, bootstrap_servers: str, replicas: int = -1) -> None:
        self.bootstrap_servers, self._replicas = bootstrap_servers, replicas
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
        # Idempotent, because only then a retry keeps records in order.
        self._producer = self.producer(**{"enable.idempotence": True})

    def close(self) -> None:
        self._producer.flush(10)

    def producer(self, **config: Any) -> Producer:
        """A producer that allows records of up to 10 MB; a record that was not written is an error of flush()."""
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "message.max.bytes": 10_485_760,
                "linger.ms": 0,
                "on_delivery": _check_delivered,
                **QUIET,
                **config,
            }
        )

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Makes a topic; settings have underscores for dots. Nothing expires unless a test asks for it."""
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        self.admin.create_topics([NewTopic(topic, partitions, self._replicas, config=settings)])[topic].result(30)
        self._wait_for_partitions(topic, partitions)
        # The producer may remember an earlier topic of this name, and that it is gone.
        self._producer.list_topics(topic, timeout=30)

    def configure(self, topic: str, **config: str) -> None:
        """Changes settings of a topic; they have underscores for dots."""
        wanted = {key.replace("_", "."): value for key, value in config.items()}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()
        ]
        changes = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([changes])[changes].result(30)
        asked = ConfigResource(ResourceType.TOPIC, topic)

        def is_there() -> bool:
            found = self.admin.describe_configs([asked])[asked].result(30)
            return all(found[name].value == value for name, value in wanted.items())

        # The controller answers first.
        wait_until(is_there, seconds=30)

    def grow(self, topic: str, partitions: int) -> None:
        """Adds topic partitions, up to a number."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        self._wait_for_partitions(topic, partitions)
        # The producer would go on believing in the number that it saw first.
        self._producer.list_topics(topic, timeout=30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        self._wait_for_partitions(topic, 0)

    def _wait_for_partitions(self, topic: str, partitions: int) -> None:
        # The controller answers first. The broker knows of the leaders a little later, and a little later still it has
        # their logs: a record that comes before that is not written, and those behind it are.
        @retry(
            retry=retry_if_result(lambda found: found != partitions) | retry_if_exception_type(KafkaException),
            wait=wait_fixed(0.02),
            stop=stop_after_delay(30),
        )
        def count() -> int:
            try:
                described = self.admin.describe_topics(TopicCollection([topic]))[topic].result(30)
            except KafkaException as error:
                if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                    return 0
                raise
            asked: dict[TopicPartition, Any] = {
                TopicPartition(topic, partition.id): OffsetSpec.latest() for partition in described.partitions
            }
            return sum(1 for future in self.admin.list_offsets(asked).values() if future.exception(30) is None)

        count()

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before an offset, as retention would."""
        wanted = TopicPartition(topic, partition, offset)
        for future in self.admin.delete_records([wanted]).values():
            future.result(30)

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        *,
        partition: int = 0,
        timestamp: int = 0,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Writes (key, value) records to one partition; timestamp 0 means now."""
        for key, value in records:
            while True:
                try:
                    self._producer.produce(
                        topic, value, key, partition=partition, timestamp=timestamp, headers=headers or []
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
        assert self._producer.flush(60) == 0

    def open_transaction(self, topic: str, records: Iterable[Record], *, partition: int = 0) -> Transaction:
        """Writes records in a transaction of its own, which is left open."""
        # However slow the machine is, the broker is not to end it.
        timeout = {"transaction.timeout.ms": 600_000}
        producer = self.producer(**{"transactional.id": f"{topic}-{next(_transactions)}", **timeout})
        producer.init_transactions(30)
        producer.begin_transaction()
        for key, value in records:
            producer.produce(topic, value, key, partition=partition)
        assert producer.flush(30) == 0
        return Transaction(self, producer, topic, partition)

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The high watermark."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "tests", **QUIET})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1]
        finally:
            consumer.close()

    def commit_offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commits a consumer group's offsets."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group, **QUIET})
        try:
            consumer.commit(
                offsets=[TopicPartition(topic, partition, offset) for partition, offset in offsets.items()],
                asynchronous=False,
            )
        finally:
            consumer.close()


def _check_delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


class Transaction:
    """An open transaction on one topic partition."""

    def __init__(self, kafka: Kafka, producer: Producer, topic: str, partition: int) -> None:
        self._kafka = kafka
        self._producer = producer
        self._topic = topic
        self._partition = partition

    def commit(self) -> None:
        before = self._kafka.end_offset(self._topic, self._partition)
        self._producer.commit_transaction(30)
        self._wait_for_marker(before)

    def abort(self) -> None:
        before = self._kafka.end_offset(self._topic, self._partition)
        self._producer.abort_transaction(30)
        self._wait_for_marker(before)

    def _wait_for_marker(self, before: int) -> None:
        # The coordinator answers before its marker, which takes one offset, is in the topic partition's log.
        @retry(retry=retry_if_result(lambda end: end == before), wait=wait_fixed(0.02), stop=stop_after_delay(30))
        def end() -> int:
            return self._kafka.end_offset(self._topic, self._partition)

        end()


class SeenRecord(NamedTuple):
    """A record of a log, with all that a consumer gets of it."""

    topic_partition: Log
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[Any, ...]


def committed_records(connection: KafkaConnection, topic: str, *, settled: bool = True) -> list[SeenRecord]:
    """What a reader of committed records sees of a topic, in the order of each topic partition.

    Waits until no transaction is open, unless one is meant to be.
    """
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        partitions = cluster.describe_topics([topic])[topic].partitions
        if settled:
            # The coordinator answers before its markers are in the logs.
            wait_until(
                lambda: (
                    cluster.end_offsets(partitions, READ_COMMITTED) == cluster.end_offsets(partitions, READ_UNCOMMITTED)
                ),
                seconds=60,
            )
        begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions, READ_COMMITTED)
        splits = [KafkaPartitionSplit(tp, begins[tp], ends[tp]) for tp in partitions if begins[tp] < ends[tp]]
        found = [
            SeenRecord(
                partitions[message.partition() or 0],
                message.offset() or 0,
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
            )
            for message in cluster.records(splits, READ_COMMITTED)
        ]
    return sorted(found, key=lambda record: (record.topic_partition, record.offset))


def consumed(bootstrap_servers: str, topic: str, partitions: int = 1) -> list[tuple[int, int, Any, Any]]:
    """What a consumer of committed records finds that knows nothing of the product: topic partition to value."""
    wanted = {"enable.partition.eof": True, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reader", **wanted, **QUIET})
    found: list[tuple[int, int, Any, Any]] = []
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while len(ended) < partitions:
            for message in consumer.consume(1000, 0.1):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    found.append((partition, message.offset() or 0, message.key(), message.value()))
                else:
                    assert error.name() == "_PARTITION_EOF"
                    ended.add(partition)
    finally:
        consumer.close()
    return sorted(found)
