"""RecordPlaces: topic, topic partition, time and headers of a record, checked before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import UnpublishableRowError

if TYPE_CHECKING:
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.table_rows import TableRow
    from dagster_kafka_flip.source.cluster import KafkaCluster


class RecordPlaces:
    """Chooses where records go.

    Args:
        cluster: The cluster.
        sink: The sink.
    """

    def __init__(self, cluster: KafkaCluster, sink: KafkaSink) -> None:
        self._cluster, self._sink = cluster, sink
        self._partitions: dict[str, int] = {}
        self._turn = 0

    def of(self, row: TableRow, key: bytes | None, value: bytes | None, where: str) -> tuple[str, int | None]:
        """Returns a record's topic and topic partition; None for the client's partitioner.

        Args:
            row: The row.
            key: The record's key.
            value: The record's value.
            where: The row, for messages.

        Raises:
            UnpublishableRowError: The row names no topic, or a topic partition that does not exist.
            TopicNotFoundError: The topic does not exist.
        """
        sink = self._sink
        topic = sink.topic
        if sink.topic_column is not None:
            if not row.topic:
                msg = f"{where}: the column {sink.topic_column} names no topic. {_NOTHING}. Fill the column"
                raise UnpublishableRowError(msg)
            topic = row.topic
        count = self._count(topic)
        if sink.partition_column is not None:
            chosen, by = row.partition, f"the column {sink.partition_column}"
        elif callable(sink.partitioner):
            chosen, by = sink.partitioner(topic, key, value, count), "the partitioner"
        elif sink.partitioner == "fixed":
            return topic, row.lane % count
        elif sink.partitioner == "round_robin":
            self._turn += 1
            return topic, (self._turn - 1) % count
        else:
            return topic, None
        if chosen is None or not 0 <= chosen < count:
            msg = (
                f"{where}: {by} names the topic partition {chosen}, but {topic} has {count}, numbered from 0. "
                f"{_NOTHING}. Correct it, or add topic partitions"
            )
            raise UnpublishableRowError(msg)
        return topic, int(chosen)

    def time(self, row: TableRow, where: str) -> int | None:
        """Returns a record's time; None for now.

        Args:
            row: The row.
            where: The row, for messages.

        Raises:
            UnpublishableRowError: Kafka has no such time.
        """
        if row.timestamp_ms is not None and row.timestamp_ms <= 0:
            msg = (
                f"{where}: the column {self._sink.timestamp} is {row.timestamp_ms} ms after 1970, and a record's time "
                f"is later than that. {_NOTHING}. Correct the row, or leave timestamp out"
            )
            raise UnpublishableRowError(msg)
        return row.timestamp_ms

    def headers(self, row: TableRow, where: str) -> list[tuple[str, bytes | None]]:
        """Returns a record's headers.

        Args:
            row: The row.
            where: The row, for messages.

        Raises:
            UnpublishableRowError: A header has no name.
        """
        found = [(name, None if value is None else bytes(value)) for name, value in row.headers or ()]
        if any(name is None for name, _ in found):  # pyright: ignore[reportUnnecessaryComparison] - columns allow nulls
            msg = f"{where}: a header in the column {self._sink.headers} has no name. {_NOTHING}. Correct the row"
            raise UnpublishableRowError(msg)
        return found

    def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len(self._cluster.describe_topics([topic])[topic].partitions)
        return self._partitions[topic]


_NOTHING = "Readers of committed records see nothing of the open transaction"
