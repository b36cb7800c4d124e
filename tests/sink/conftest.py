"""A table with changes, a sink of it, and what readers of committed records see of the topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.serializers import JsonSerializer
from tests.kafka_topic import committed_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.sink.result import PublishResult
    from dagster_kafka_flip.source.connection import KafkaConnection
    from tests.kafka_topic import Kafka, SeenRecord

FEED = {"delta.enableChangeDataFeed": "true"}


class Published:
    """One sink of one table, on a topic of its own."""

    def __init__(self, spark: SparkSession, kafka: Kafka, connection: KafkaConnection, topic: str, table: str) -> None:
        self.spark, self.connection, self.topic, self.table = spark, connection, topic, table
        kafka.create(topic, 2)
        self.source = DeltaSource(table=table)
        self.sink = KafkaSink(topic=topic, transactional_id_prefix=topic, key=JsonSerializer(columns=("id",)))

    def sql(self, statement: str) -> None:
        """Runs a statement on the table `{t}`."""
        self.spark.sql(statement.format(t=f"delta.`{self.table}`"))

    def create(self, columns: str = "id int, v string", properties: dict[str, str] | None = None) -> None:
        """Makes the table, version 0."""
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in (FEED if properties is None else properties).items())
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING delta TBLPROPERTIES ('made' = 'here'{pairs and ', '}{pairs})")

    def run(self, **options: Any) -> PublishResult:
        """Publishes what is new; settings of source and sink stay for later runs."""
        for name in ("source", "sink"):
            model = getattr(self, name)
            changed = {key: options.pop(key) for key in list(options) if key in type(model).model_fields}
            setattr(self, name, type(model)(**(dict(model) | changed)))
        given: dict[str, Any] = {"spark": lambda: self.spark, "connection": self.connection, **options}
        return publish(self.source, self.sink, **given)

    def records(self, topic: str | None = None) -> list[SeenRecord]:
        """What a reader of committed records sees, in the order of each topic partition."""
        return committed_records(self.connection, topic or self.topic)

    def by_key(self) -> dict[Any, list[Any]]:
        """The values of each key, in order; None is a tombstone."""
        found: dict[Any, list[Any]] = {}
        for record in self.records():
            key = None if record.key is None else json.loads(record.key)["id"]
            found.setdefault(key, []).append(None if record.value is None else json.loads(record.value))
        return found

    def texts(self) -> dict[Any, list[Any]]:
        """Like `by_key`, of a table with the columns id and v: only v."""
        return {key: [each and each["v"] for each in values] for key, values in self.by_key().items()}


@pytest.fixture
def published(spark: SparkSession, kafka: Kafka, connection: KafkaConnection, topic: str, table: str) -> Published:
    """A sink that has published nothing yet, of a table that is not there yet."""
    return Published(spark, kafka, connection, topic, table)
