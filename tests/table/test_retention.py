"""How long Delta keeps a position, and that it is committed anew before Delta forgets it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from dagster_kafka_flip.errors import PositionLostError
from dagster_kafka_flip.ingestion import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.retention import DEFAULT_LOG_RETENTION, parse_log_retention

_DAY = 24 * 3600


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 DAY", timedelta(days=1)),
        ("2 weeks 3 hours", timedelta(days=14, hours=3)),
        ("interval 5 minutes 1 second 20 milliseconds", timedelta(minutes=5, seconds=1, milliseconds=20)),
        (None, DEFAULT_LOG_RETENTION),
        ("Table t does not have property: delta.logRetentionDuration", DEFAULT_LOG_RETENTION),
    ],
)
def test_a_retention_is_read_as_delta_prints_it(text, retention):
    assert parse_log_retention(text) == retention


def _age(table, days):
    """Makes all commits of a table look as old as this; without in-commit timestamps Delta goes by the files' dates."""
    for file in Path(table, "_delta_log").glob("*.json"):
        then = time.time() - days * _DAY
        os.utime(file, (then, then))


@pytest.fixture
def land(kafka, connection, spark_of, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 3)
    return lambda **options: ingest(
        KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection, **options
    )


@pytest.mark.kafka
@pytest.mark.spark
def test_an_idle_streams_position_is_committed_anew_after_half_the_retention(land, spark, table):
    first = land()
    _age(table, 14)
    spark.catalog.clearCache()
    assert land().is_idle, "half of 30 days is not over"
    _age(table, 16)
    again = land()
    assert [(batch.committed.rows, batch.plan.splits) for batch in again.batches] == [(0, ())]
    assert again.state == first.state
    assert again.known.table_rows == 3
    assert land().is_idle, "once is enough"
    # What Delta does with a log that has expired: the checkpoint is kept, the commits go.
    for number in range(10):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('round' = '{number}')")
    log = Path(table, "_delta_log")
    checkpoint = int(next(log.glob("*.checkpoint.parquet")).name[:20])
    kept = again.batches[0].committed.version
    for version in range(min(checkpoint, kept)):
        (log / f"{version:020}.json").unlink()
    assert land().is_idle
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert spark.read.format("delta").load(table).count() == 3


@pytest.mark.kafka
@pytest.mark.spark
def test_the_retention_of_the_table_counts(land, spark, table):
    land()
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 100 days')")
    _age(table, 40)
    assert land().is_idle
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 4 days')")
    _age(table, 3)
    assert len(land().batches) == 1


@pytest.mark.kafka
@pytest.mark.spark
def test_a_copy_of_the_position_is_not_believed_longer_than_the_table_keeps_it(land):
    known = land().known
    assert known.kept_until is not None
    assert known.kept_until > datetime.now(tz=timezone.utc) + timedelta(hours=23)
    assert land(known=known).started_spark is False
    assert land(known=replace(known, kept_until=datetime.now(tz=timezone.utc))).started_spark is True


@pytest.mark.kafka
@pytest.mark.spark
def test_a_position_that_delta_has_forgotten_is_never_guessed(land, spark, table):
    land()
    for number in range(12):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('round' = '{number}')")
    log = Path(table, "_delta_log")
    checkpoint = int(next(log.glob("*.checkpoint.parquet")).name[:20])
    for version in range(checkpoint):
        (log / f"{version:020}.json").unlink()
    with pytest.raises(PositionLostError, match=r"no longer has the history that holds the position"):
        land()
