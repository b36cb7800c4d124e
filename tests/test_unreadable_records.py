"""Records that Spark's Kafka reader fails on, on a real broker, Spark and Delta."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_kafka_flip.errors import RecordsFromFutureError, TimestampOutOfRangeError
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.windows.conftest import START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1)}
_NANOSECONDS = START * 1_000_000


@pytest.fixture
def land(connection, spark_of, table, topic):
    """Runs ingest() of the test's topic into the test's table."""

    def run(**options):
        values: dict[str, Any] = {"spark": spark_of, "connection": connection, "value_format": StringFormat()}
        source = options.pop("source", KafkaSource(topics=(topic,)))
        return ingest(source, table, **(values | options))

    return run


@pytest.fixture
def rows(spark, table):
    """Some columns of the test's table, or of another one, by offset."""

    def read(*columns, of=table):
        found = spark.read.format("delta").load(of).orderBy("kafka_partition", "kafka_offset").selectExpr(*columns)
        return [tuple(row) for row in found.collect()]

    return read


def put(kafka, topic, *timestamps, partition=0, value="{time}", **options):
    for time in timestamps:
        kafka.produce(topic, [("k", value.format(time=time))], timestamp=time, partition=partition, **options)


def test_a_record_beyond_what_spark_can_hold_stops_the_run_and_the_named_way_out_lands_the_others(
    kafka, land, rows, spark, connection, table, topic
):
    kafka.create(topic, 2, **_ANY_TIME)
    put(kafka, topic, START, LAST_SPARK_TIMESTAMP_MS, LAST_SPARK_TIMESTAMP_MS + 1, START + 1)
    put(kafka, topic, 1, partition=1)
    with pytest.raises(TimestampOutOfRangeError) as refused:
        land()
    behind = f'{{"{topic}": {{"0": 3}}}}'
    assert str(refused.value) == (
        f"{topic}-0: the record at offset 2 has the timestamp {LAST_SPARK_TIMESTAMP_MS + 1} ms. Spark can't read "
        f"timestamps more than {LAST_SPARK_TIMESTAMP_MS} ms before or after 1970. Nothing was written. Correct the "
        "producer: it may "
        "write microseconds or nanoseconds instead of milliseconds. To go on without the record, run once with stop "
        "set to its offset, then set the position behind it: dagster-kafka-flip position set --table "
        f"{table} --stream main --bootstrap-servers <host:port> --to 'offsets:{behind}' --reason <why>"
    )
    assert rows("kafka_offset") == []

    tp = TopicPartition(topic, 0)
    source = KafkaSource(topics=(topic,))
    land(source=source.with_overrides(stopping_offsets=OffsetsInitializer.specific_offsets({tp: 2})))
    target = DeltaTarget(table=table)
    move = plan_move(source.connected(connection), target, spark, OffsetsInitializer.specific_offsets({tp: 3}))
    commit_move(move, target, spark, "a wrong timestamp")
    land()
    assert rows("kafka_partition", "kafka_offset", "unix_millis(kafka_timestamp)") == [
        (0, 0, START),
        (0, 1, LAST_SPARK_TIMESTAMP_MS),
        (0, 3, START + 1),
        (1, 0, 1),
    ]


def test_a_window_with_such_a_record_is_refused(kafka, spark_of, connection, rows, table, topic):
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START, _NANOSECONDS, START + 1)
    with pytest.raises(TimestampOutOfRangeError, match=r"-0: the record at offset 1 has the .* wait for retention$"):
        list(
            rewrite_windows(
                KafkaSource(topics=(topic,)),
                table,
                hours(0, 1),
                tolerate=(RecordsFromFutureError,),
                spark=spark_of,
                connection=connection,
                value_format=StringFormat(),
            )
        )
    assert rows("kafka_offset") == []
