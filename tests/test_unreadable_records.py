"""Records that Spark's Kafka reader fails on, on a real broker, Spark and Delta: named, and landed if tolerated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dagster import DagsterInstance, materialize

from dagster_kafka_flip import KafkaResource, SparkResource, build_kafka_delta_asset
from dagster_kafka_flip.errors import RecordsFromFutureError, TimestampOutOfRangeError, WriteFailedError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.replay import replay
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source import unreadable
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.unreadable import LATEST_MS
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.target import DeltaTarget
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1)}
_NANOSECONDS = START * 1_000_000
_TOLERANT = (TimestampOutOfRangeError,)


@pytest.fixture
def land(connection, spark_of, table, topic):
    """Runs ingest() of the test's topic into the test's table."""

    def run(**options):
        values: dict[str, Any] = {"spark": spark_of, "connection": connection, "value_format": StringFormat()}
        return ingest(KafkaSource(topics=(topic,)), table, **(values | options))

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


def newest(spark, table):
    return json.loads(spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").first()["userMetadata"])


def test_records_beyond_what_spark_can_hold_are_named_and_landed_without_their_time_where_that_is_tolerated(
    kafka, land, rows, spark, spark_of, connection, table, topic, tmp_path, monkeypatch
):
    # So that there are several ranges although there are few records.
    monkeypatch.setattr(unreadable, "_JOINED", 1)
    kafka.create(topic, 2, **_ANY_TIME)
    put(kafka, topic, START, LATEST_MS, LATEST_MS + 1, START + 1, START + 2)
    put(kafka, topic, _NANOSECONDS, headers=[("h", b"1"), ("h", None)])
    kafka.produce(topic, [(None, None)], timestamp=START + 3, headers=[("last", "")])
    put(kafka, topic, 2**63 - 1, 1, partition=1)
    with pytest.raises(TimestampOutOfRangeError) as refused:
        land()
    assert str(refused.value) == (
        f"{topic}-0: the record at offset 2 has the timestamp {LATEST_MS + 1} ms (also at {topic}-0 offset 5, "
        f"{topic}-1 offset 0). Spark can't read timestamps more than {LATEST_MS} ms before or after 1970. Nothing was "
        "written. Correct the producer: it may write microseconds or nanoseconds instead of milliseconds. To write "
        "such records with a null timestamp, tolerate TimestampOutOfRangeError"
    )
    assert rows("kafka_offset") == []

    result = land(tolerate=_TOLERANT)
    everything = ("kafka_partition", "kafka_offset", "unix_millis(kafka_timestamp)", "kafka_value", "kafka_headers")
    assert rows(*everything) == [
        (0, 0, START, str(START), None),
        (0, 1, LATEST_MS, str(LATEST_MS), None),
        (0, 2, None, str(LATEST_MS + 1), None),
        (0, 3, START + 1, str(START + 1), None),
        (0, 4, START + 2, str(START + 2), None),
        (0, 5, None, str(_NANOSECONDS), [("h", b"1"), ("h", None)]),
        (0, 6, START + 3, None, [("last", b"")]),
        (1, 0, None, str(2**63 - 1), None),
        (1, 1, 1, "1", None),
    ]
    assert set(rows("kafka_timestamp_type", "kafka_topic")) == {(0, topic)}
    [incident] = result.incidents
    assert (incident.error, incident.lost_offsets) == ("TimestampOutOfRangeError", 0)
    assert incident.message.endswith("1970. The run wrote such records with a null timestamp.")
    [batch] = result.batches
    assert (batch.observed.records, batch.observed.is_whole, batch.committed.rows) == (9, True, 9)
    assert newest(spark, table)["incidents"] == [incident.to_json()]
    assert land().batches == ()
    # What was landed once in spite of it is landed again so.
    replayed = str(tmp_path / "replayed")
    again = replay(
        KafkaSource(topics=(topic,)),
        DeltaTarget(table=table),
        result.batches[0].committed.version,
        replayed,
        spark=spark_of(),
        connection=connection,
        decoder=Decoder.of(None, StringFormat(), None),
    )
    assert again.batch is not None
    assert rows(*everything, of=replayed) == rows(*everything)


def test_a_time_long_before_1970_is_found_by_reading_all(kafka, land, rows, topic):
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START, -LATEST_MS - 1, START + 1)
    with pytest.raises(
        TimestampOutOfRangeError, match=rf"-0: the record at offset 1 has the timestamp -{LATEST_MS + 1}"
    ):
        land()
    land(tolerate=_TOLERANT)
    assert rows("unix_millis(kafka_timestamp)") == [(START,), (None,), (START + 1,)]


def test_a_batch_with_too_many_of_them_is_not_read_by_the_client(kafka, land, rows, topic, monkeypatch):
    monkeypatch.setattr("dagster_kafka_flip.reader.set_aside._MOST_RECORDS", 2)
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START, *[_NANOSECONDS] * 4)
    with pytest.raises(WriteFailedError, match=r"Set max_records_per_batch to 2 or less"):
        land(tolerate=_TOLERANT)
    assert rows("kafka_offset") == []
    from dagster_kafka_flip.source.plan import Limits

    # What it advises works.
    assert len(land(tolerate=_TOLERANT, limits=Limits(max_records_per_batch=2)).batches) == 3
    assert len(rows("kafka_offset")) == 5


@pytest.mark.nightly
def test_a_rejected_record_with_such_a_time_is_a_dead_letter_also_after_a_crash(
    kafka, land, rows, topic, table, tmp_path, monkeypatch
):
    dead = str(tmp_path / "dead")
    options = {"value_format": JsonFormat("n INT"), "dead_letter": dead}
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START, value='{{"n": 1}}')
    put(kafka, topic, _NANOSECONDS, value="no json")
    put(kafka, topic, _NANOSECONDS, value='{{"n": 2}}')

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterTable, "settle", crash)
        with pytest.raises(KeyboardInterrupt):
            land(tolerate=_TOLERANT, **options)
    with pytest.raises(TimestampOutOfRangeError, match=r"-0: the record at offset 1 has the timestamp"):
        land(**options)
    result = land(tolerate=_TOLERANT, **options)
    assert [incident.error for incident in result.incidents] == ["TimestampOutOfRangeError"]
    assert rows("n", "unix_millis(kafka_timestamp)") == [(1, START), (2, None)]
    assert rows("kafka_offset", "kafka_timestamp", "CAST(kafka_value AS STRING)", of=dead) == [(1, None, "no json")]


def test_windows_leave_out_records_whose_time_spark_can_not_represent(kafka, spark_of, connection, rows, table, topic):
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START, _NANOSECONDS, START + 1)
    # Behind it nothing is found by time: that is told first.
    options: dict[str, Any] = {"spark": spark_of, "connection": connection, "value_format": StringFormat()}
    with pytest.raises(TimestampOutOfRangeError, match=r"-0: the record at offset 1 has the timestamp"):
        list(
            rewrite_windows(
                KafkaSource(topics=(topic,)), table, hours(0, 1), tolerate=(RecordsFromFutureError,), **options
            )
        )
    tolerate = (RecordsFromFutureError, TimestampOutOfRangeError)
    [result] = rewrite_windows(KafkaSource(topics=(topic,)), table, hours(0, 1), tolerate=tolerate, **options)
    assert rows("kafka_offset") == [(0,), (2,)]
    assert result.seen is not None
    assert (result.seen.timeless, result.stragglers) == (1, 1)
    assert [incident.error for incident in result.plan.incidents] == [error.__name__ for error in tolerate]


def test_a_range_that_ends_beyond_any_calendar_is_repaired(kafka, land, rows, spark_of, connection, table, topic):
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START, START * 1000, _NANOSECONDS)
    land(tolerate=_TOLERANT)
    [result] = rewrite_windows(
        KafkaSource(topics=(topic,)),
        table,
        [Window("beyond", START * 1000 - 1, 2**63 - 1)],
        rules=Windows(repair=True),
        transform=lambda records: records.selectExpr("* EXCEPT (kafka_value)", "'again' AS kafka_value"),
        tolerate=_TOLERANT,
        spark=spark_of,
        connection=connection,
        value_format=StringFormat(),
    )
    assert [incident.error for incident in result.plan.incidents] == ["TimestampOutOfRangeError"]
    assert rows("kafka_offset", "kafka_value") == [(0, str(START)), (1, "again"), (2, str(_NANOSECONDS))]


def test_a_record_of_the_year_55000_is_landed_and_reported(kafka, broker, rows, spark, table, topic):
    del spark  # that it is there is enough
    kafka.create(topic, **_ANY_TIME)
    put(kafka, topic, START * 1000)
    asset = build_kafka_delta_asset(name="landed", source=KafkaSource(topics=(topic,)), table=table)
    with DagsterInstance.ephemeral() as instance:
        resources = {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}
        for run in range(2):
            result = materialize([asset], instance=instance, resources=resources)
            assert result.success
            [event] = result.get_asset_materialization_events()
            metadata = {name: value.value for name, value in event.materialization.metadata.items()}
            assert (metadata["kafka/records_read"], metadata["kafka/lag_after"]) == (1, 0)
            if run == 0:
                put(kafka, topic, START * 1000 + HOUR)
    assert rows("unix_millis(kafka_timestamp)") == [(START * 1000,), (START * 1000 + HOUR,)]
