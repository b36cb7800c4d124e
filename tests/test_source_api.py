"""The source API: a source that is no Kafka at all lands in a table by the same code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.result import KnownPosition
from dagster_kafka_flip.reader.read import read
from dagster_kafka_flip.source.api import Boundedness, SplitEnumerator
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.plan import Limits, ReadPlan
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.target import DeltaTarget

NUMBERS = TopicPartition("numbers", 0)


class NumbersEnumerator(SplitEnumerator):
    end = 0

    def discover(self):
        pass

    def plan(self, state):
        split = KafkaPartitionSplit(NUMBERS, state.position[NUMBERS] if state else 0, self.end)
        return self.plan_exactly((split,)) if not split.is_empty else self.plan_exactly(())

    def plan_exactly(self, splits):
        ends, starts = {NUMBERS: self.end}, {split.topic_partition: split.starting_offset for split in splits}
        return ReadPlan(splits, EnumeratorState(ends), ends, ends, {**ends, **starts})


@dataclass(frozen=True)
class Numbers:
    """The whole numbers from 0 up to an end."""

    end: int
    boundedness: Boundedness = Boundedness.BOUNDED

    def create_enumerator(self, context):
        return self.restore_enumerator(context, None)

    def restore_enumerator(self, context, state):
        enumerator = NumbersEnumerator(context, state)
        enumerator.end = self.end
        return enumerator


@read.register
def _(source: Numbers, spark, assignment):
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


@pytest.mark.spark
def test_a_bounded_sequence_is_landed_like_a_topic(spark, spark_of, table):
    first = ingest(Numbers(7), table, spark=spark_of, limits=Limits(max_records_per_batch=3))
    assert (first.rows, len(first.batches), first.lag_after) == (7, 3, 0)
    second = ingest(Numbers(10), table, spark=spark_of, known=first.known)
    assert (second.rows, dict(second.state.position)) == (3, {NUMBERS: 10})

    def no_spark():
        pytest.fail("an idle run asked for Spark")

    assert ingest(Numbers(10), table, spark=no_spark, known=second.known).is_idle
    rows = spark.read.format("delta").load(table).selectExpr("CAST(kafka_value AS STRING) AS value").collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(10))


def test_a_source_that_never_ends_is_refused(table):
    with pytest.raises(ConfigurationError) as error:
        ingest(Numbers(7, Boundedness.CONTINUOUS_UNBOUNDED), table, spark=pytest.fail)
    assert str(error.value).startswith("the source of Numbers(end=7")
    assert str(error.value).endswith("is unbounded, but a batch must end; set a stop")


def test_kafkas_options_are_refused_for_another_source(table):
    with pytest.raises(ConfigurationError) as error:
        ingest(Numbers(7), table, spark=pytest.fail, connection=KafkaConnection(bootstrap_servers="h:1"))
    assert str(error.value) == "connection and starting_offsets require a KafkaSource, not a Numbers"


def test_a_source_without_a_reader_is_refused():
    with pytest.raises(ConfigurationError) as error:
        read(object(), None, None)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == "no reader is registered for object; register one with reader.read.register"


@pytest.mark.parametrize(
    ("hours_ago", "is_believed"), [(1, True), (23, True), (25, False), (-1, False), (-1000, False)]
)
def test_a_record_of_the_position_is_believed_while_it_is_young_and_never_if_it_is_dated_in_the_future(
    table, hours_ago, is_believed
):
    known = KnownPosition(
        stream="main",
        table=DeltaTarget(table=table).identity,
        state=EnumeratorState({NUMBERS: 5}),
        verified_at=datetime.now(tz=timezone.utc) - timedelta(hours=hours_ago),
        table_version=1,
        table_rows=5,
    )

    class AskedForSparkError(Exception):
        pass

    def spark():
        raise AskedForSparkError

    def land():
        return ingest(Numbers(5), table, spark=spark, known=known)

    if is_believed:
        assert land().is_idle
    else:
        with pytest.raises(AskedForSparkError):
            land()
