"""How long Delta keeps a position, and that committing it again before Delta forgets it."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import PositionLostError, TableError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.next_step import TOPIC, WHERE, set_position
from dagster_kafka_flip.table.delta_log import TableLog
from dagster_kafka_flip.table.known_position import DEFAULT_LOG_RETENTION, TOO_YOUNG_TO_ASK, log_retention
from dagster_kafka_flip.table.target import DeltaTarget

_DAY = 24 * 3600


_SHORTEST = 2 * TOO_YOUNG_TO_ASK


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 DAY", timedelta(days=1)),
        ("2 weeks", timedelta(days=14)),
        (None, DEFAULT_LOG_RETENTION),
        ("interval 999999999999 weeks", timedelta.max),
        ("interval 2 weeks 3 hours", _SHORTEST),
        ("interval 1.5 days", _SHORTEST),
        ("interval 1 month", _SHORTEST),
        ("", _SHORTEST),
        ("-3 days", _SHORTEST),
    ],
)
def test_a_retention_is_read_as_delta_prints_it_or_taken_for_short(text, retention):
    assert log_retention(text) == retention


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
def test_an_idle_streams_position_is_committed_again_after_half_the_retention(land, spark, table):
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
    _alter(spark, table, 10)
    log = Path(table, "_delta_log")
    checkpoint = int(next(log.glob("*.checkpoint.parquet")).name[:20])
    kept = again.batches[0].committed.version
    for version in range(min(checkpoint, kept)):
        (log / f"{version:020}.json").unlink()
    assert land().is_idle
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert spark.read.format("delta").load(table).count() == 3


def _alter(spark, table, rounds):
    """Changes a property of a table so many times, in a commit each.

    Spark makes the first, the last, and those after which it writes a checkpoint; the others are copies of the first,
    in a tenth of the time.
    """

    log = Path(table, "_delta_log")

    def newest():
        return max(int(file.name[:20]) for file in log.glob("*.json"))

    def alter():
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('round' = '{newest()}')")
        return newest()

    first = alter()
    actions = [json.loads(line) for line in (log / f"{first:020}.json").read_text(encoding="utf-8").splitlines()]
    for version in range(first + 1, first + rounds):
        if version % 10 == 0 or version == first + rounds - 1:
            assert alter() == version
            continue
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["txnId"] = f"copy-{version}"
        (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def _forget(spark, table, rounds=12):
    """What Delta does with a log that has expired: a checkpoint is kept, the commits before it go.

    Returns:
        The oldest version that is left.
    """
    _alter(spark, table, rounds)
    log = Path(table, "_delta_log")
    checkpoint = max(int(file.name[:20]) for file in log.glob("*.checkpoint*.*") if not file.name.startswith("."))
    for version in range(checkpoint):
        (log / f"{version:020}.json").unlink(missing_ok=True)
    return checkpoint


@pytest.mark.kafka
@pytest.mark.spark
def test_a_position_that_delta_has_forgotten_is_never_guessed(land, spark, table):
    land()
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('round' = 'seen')")
    known = land(verify_after=timedelta(0)).known
    oldest = _forget(spark, table)
    assert oldest == 10
    for record in (None, known, replace(known, table_version=9)):
        with pytest.raises(PositionLostError) as error:
            land(known=record, verify_after=timedelta(0))
        assert str(error.value) == (
            f"the table {table} no longer has the history that holds the position of the stream 'main': its oldest "
            f"commit is version {oldest}, and it holds no commit of the stream. Nothing was written. Delta removes "
            "commits after delta.logRetentionDuration. Check the table's last offsets, and set the position: "
            f"{set_position(str(table), 'main', topics=TOPIC)}"
        )


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize(
    "checkpoint",
    ["classic", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("in parts", "v2 json", "v2 parquet"))],
)
def test_transactions_are_read_from_the_last_checkpoint_and_the_commits_after_it(land, spark, table, checkpoint):
    land()
    policy, _, form = checkpoint.partition(" ")
    if policy == "v2":
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
        spark.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", form)
    elif policy == "in":
        # So that there is more than one file to tell of: one that is there, and one that is not any longer.
        spark.sql(f"UPDATE delta.`{table}` SET kafka_partition = kafka_partition")
        spark.conf.set("spark.databricks.delta.checkpoint.partSize", "1")
    try:
        _forget(spark, table)
    finally:
        spark.conf.unset("spark.databricks.delta.checkpointV2.topLevelFileFormat")
        spark.conf.unset("spark.databricks.delta.checkpoint.partSize")
    log = Path(table, "_delta_log")
    # `*.crc` of the local file system begins with a dot.
    names = [file.name for file in log.glob("0*10.checkpoint.*")]
    assert len(names) == (1 if checkpoint != "in parts" else 2)
    assert all(name.endswith(".json" if checkpoint == "v2 json" else ".parquet") for name in names)
    assert any(log.glob("_sidecars/*.parquet")) == checkpoint.startswith("v2")
    newest = max(int(file.name[:20]) for file in log.glob("*.json"))
    there = TableLog(spark, DeltaTarget(table=table))
    assert there.transaction_versions(table, newest) == {"dagster-kafka-flip/main": 0}
    # The log without its checkpoint tells nothing.
    for file in log.glob("*.checkpoint*"):
        file.rename(file.with_suffix(".gone"))
    with pytest.raises(TableError, match=r"is incomplete: it has neither version 0 nor a later checkpoint"):
        there.transaction_versions(table, newest)


@pytest.mark.kafka
@pytest.mark.spark
def test_another_stream_with_a_lost_position_stops_a_run_until_it_is_set_as_the_message_says(
    land, kafka, broker, connection, spark, spark_of, topic, table
):
    land()
    other = f"{topic}-other"
    kafka.create(other)
    kafka.produce(other, [(None, "y")] * 2)
    target = DeltaTarget(table=table, stream="two")

    def land_other():
        return ingest(KafkaSource(topics=(other,)), target, spark=spark_of, connection=connection)

    land_other()
    _alter(spark, table, 7)
    kafka.produce(other, [(None, "y")])
    # The version with a checkpoint, and all that is left of both streams.
    assert land_other().batches[-1].committed.version == 10
    _forget(spark, table, rounds=1)
    kafka.create(f"{other}-2")
    kafka.produce(f"{other}-2", [(None, "z")])

    def land_more():
        source = KafkaSource(topics=(other, f"{other}-2"))
        return ingest(source, target, spark=spark_of, connection=connection)

    with pytest.raises(PositionLostError, match="the stream 'main' has committed") as error:
        land_more()
    command = re.search(r"again: dagster-kafka-flip (position set .*?); then run this one again", str(error.value))
    assert command is not None
    filled = command[1].replace("<host:port>", broker).replace(WHERE, "latest").replace("<topic>", topic)
    done = CliRunner().invoke(main, [*shlex.split(filled.replace("<why>", "forgotten")), "--yes"])
    assert done.exit_code == 0, done.output
    assert land_more().rows == 1
    assert land().is_idle


@pytest.mark.spark
def test_a_log_that_can_not_be_read_says_what_to_check(spark):
    # A store that this session has no file system for.
    target = DeltaTarget(table="s3a://nowhere/t")
    with pytest.raises(TableError, match=r"the log of the table \S+ \(s3a://nowhere/t/_delta_log\) can't be read") as e:
        TableLog(spark, target).transaction_versions(target.location, 0)
    assert 'Add the jar to Spark: packages=["org.apache.hadoop:hadoop-aws:' in str(e.value)
