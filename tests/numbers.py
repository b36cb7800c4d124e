"""A source of whole numbers: asks no broker, and Spark counts its records."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.reader.kafka_reader import no_records
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState

NUMBERS = TopicPartition("numbers", 0)


class NumbersEnumerator(KafkaSourceEnumerator):
    end = 0

    def discover(self):
        pass

    def check_same_logs(self, state, read):
        pass

    def notify_checkpoint_complete(self):
        pass

    def close(self):
        pass

    def plan(self, state, refused=()):
        split = KafkaPartitionSplit(NUMBERS, state.position[NUMBERS] if state else 0, self.end)
        return self.plan_exactly((split,)) if not split.is_empty else self.plan_exactly(())

    def plan_exactly(self, splits):
        ends, starts = {NUMBERS: self.end}, {split.topic_partition: split.starting_offset for split in splits}
        stops = {split.topic_partition: split.stopping_offset for split in splits}
        return ReadPlan(EnumeratorState({**ends, **stops}), ends, ends, {**ends, **starts})


class Numbers(KafkaSource):
    """A source whose enumerator asks no broker."""

    end: int = 5

    def create_enumerator(self, context):
        return self.restore_enumerator(context, None)

    def restore_enumerator(self, context, state):
        enumerator: Any = NumbersEnumerator(self, cast("Any", None), context, state)
        enumerator.end = self.end
        return enumerator


def numbers(end: int, kind: type[Numbers] = Numbers, **fields: Any) -> Numbers:
    """The numbers from 0 up to an end."""
    connection = KafkaConnection(bootstrap_servers="nowhere:1")
    return kind(topics=("numbers",), connection=connection, end=end, **fields)


@pytest.fixture
def counting(monkeypatch):
    """Has Spark count instead of reading Kafka."""

    def read(source, spark, assignment):
        del source
        if assignment.plan.is_empty:
            return no_records(spark)
        (split,) = assignment.plan.splits
        return spark.range(split.starting_offset, split.stopping_offset).selectExpr(
            "CAST(NULL AS BINARY) AS key",
            "CAST(CAST(id AS STRING) AS BINARY) AS value",
            "'numbers' AS topic",
            "0 AS partition",
            "id AS offset",
            "timestamp_millis(id) AS timestamp",
            "0 AS timestampType",
            "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
        )

    monkeypatch.setattr(RunSpec, "records", read)
    monkeypatch.setattr("dagster_kafka_flip.ingestion.batch_rows.read", read)
