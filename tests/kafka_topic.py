"""Real topics with real records, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterable

Record = tuple[bytes | str | None, bytes | str | None]


class Kafka:
    """Makes topics and records on one broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._producer = self.producer()

    def close(self) -> None:
        self._producer.flush(10)

    def producer(self, **config: Any) -> Producer:
        """A producer that allows records of up to 10 MB."""
        return Producer(
            {"bootstrap.servers": self.bootstrap_servers, "message.max.bytes": 10_485_760, "linger.ms": 0, **config}
        )

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Makes a topic; settings have underscores for dots. Nothing expires unless a test asks for it."""
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        self.admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

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
        headers: list[tuple[str, bytes | None]] | None = None,
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

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The high watermark."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "tests"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1]
        finally:
            consumer.close()

    def commit_offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commits a consumer group's offsets."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
        try:
            consumer.commit(
                offsets=[TopicPartition(topic, partition, offset) for partition, offset in offsets.items()],
                asynchronous=False,
            )
        finally:
            consumer.close()
