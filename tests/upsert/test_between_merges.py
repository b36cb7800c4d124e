"""What dies, what others do and what starts twice around a merge: no change is lost, and none is applied twice."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    SchemaMismatchError,
    TopicRecreatedError,
    WriteFailedError,
)
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.commit import MergedRows
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.mode import Scd2
from tests import landed
from tests.processes import wait_until
from tests.upsert.conftest import change

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class _DiedError(BaseException):
    """What a kill looks like from inside: nothing of the package may handle it."""


def _die():
    raise _DiedError


def test_other_writers_leave_the_keyed_table_correct(kafka, follow, spark, topic, table, around_the_merge):
    target = {"properties": {"delta.autoOptimize.autoCompact": "true"}}
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b"), change(3, "c")])
    follow(target=target)

    def others():
        spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
        spark.sql(f"INSERT INTO delta.`{table}` (id, name) VALUES (5, 'foreign')")

    kafka.produce(topic, [change(2, "d"), change(3), change(4, "e")])
    around_the_merge(before=others)
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    result = follow(target=target)
    spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
    assert landed.rows(table, "id", "name") == [(2, "d"), (4, "e"), (5, "foreign")]
    assert result.known.table_rows == 3
    # A row without an offset is of nobody's record, so every record is newer.
    kafka.produce(topic, [change(5, "f")])
    assert follow(target=target).merged == MergedRows(0, 1, 0, 0)

    spark.sql(f"OPTIMIZE delta.`{table}`")
    history = landed.history(table)
    assert history[0]["operation"] == "OPTIMIZE"
    # Another one followed the merge by itself, with a copy of its document.
    copies = [
        older
        for newer, older in itertools.pairwise(history)
        if newer["operation"] == "OPTIMIZE" and newer.get("userMetadata", "") == older.get("userMetadata")
    ]
    assert [commit["operation"] for commit in copies] == ["MERGE"]
    assert follow(target=target).is_idle
    # Others may write a second row of a key: a change takes both.
    spark.sql(f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}` WHERE id = 5")
    kafka.produce(topic, [change(4), change(5)])
    assert follow(target=target).merged == MergedRows(0, 0, 3, 0)
    assert landed.rows(table, "id", "name") == [(2, "d")]


def test_a_column_that_is_renamed_just_before_the_write_is_named(kafka, follow, spark, topic, table, around_the_merge):
    target = {"properties": {"delta.columnMapping.mode": "name"}}
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a")])
    follow(target=target)
    kafka.produce(topic, [change(1, "b")])
    around_the_merge(before=lambda: spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN name TO title"))
    with pytest.raises(SchemaMismatchError, match=r"has no column name \(string\)(?s:.*)- title string"):
        follow(target=target)
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN title TO name")
    assert follow(target=target).records == 1


def _replaces_the_current_row(spark, table):
    """Another writer that corrects a history: it ends the current row, and begins another one."""
    spark.sql(f"UPDATE delta.`{table}` SET is_current = false, valid_to = now() WHERE is_current")
    last = spark.table(f"delta.`{table}`").orderBy(f.desc("valid_from"), f.desc("kafka_offset")).limit(1)
    changed = {"name": f.lit("x"), "valid_from": f.col("valid_to"), "is_current": f.lit(True)}
    last.withColumns(changed).withColumn("valid_to", f.lit(None).cast("timestamp")).writeTo(f"delta.`{table}`").append()


def test_a_row_that_others_begin_during_the_merge_of_a_history_is_ended_by_it(
    kafka, follow, spark, topic, table, monkeypatch, tmp_path
):
    target, at_it, done = {"mode": Scd2(key=("id",))}, tmp_path / "at-it", tmp_path / "done"
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a")])
    follow(target=target)

    def history():
        found = landed.rows(table, "valid_from", "is_current", "valid_to", "name")
        for (_, _, until, _), (since, *_) in itertools.pairwise(found):
            assert until == since
        return [(name, is_current) for _, is_current, _, name in found]

    # The MERGE reads the table by itself, and what others commit while it does is a conflict.
    kafka.produce(topic, [change(1, "c")])
    original = DeltaTable.rows

    @f.udf("boolean")
    def wait(_):
        # The worker must not import what this module does.
        import time

        at_it.touch()
        while not done.exists():
            time.sleep(0.05)
        return True

    def slowly(self, *arguments):
        monkeypatch.setattr(DeltaTable, "rows", original)
        # In one task, so that the others' change finds room for its own.
        return original(self, *arguments).coalesce(1).where(wait("id"))

    def others():
        try:
            wait_until(at_it.exists, seconds=300)
            _replaces_the_current_row(spark, table)
        finally:
            done.touch()

    monkeypatch.setattr(DeltaTable, "rows", slowly)
    thread = threading.Thread(target=others)
    thread.start()
    follow(target=target)
    thread.join()
    assert history() == [("a", False), ("x", False), ("c", True)]


def test_a_run_that_dies_and_two_at_once_apply_a_batch_once(kafka, follow, topic, table, around_the_merge, monkeypatch):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    for when in ("before", "after"):
        around_the_merge(**{when: _die})
        with pytest.raises(_DiedError):
            follow()
    assert follow().is_idle
    kafka.produce(topic, [change(1), change(3, "c")])
    outcomes = []

    def other():
        thread = threading.Thread(target=lambda: outcomes.append(follow()))
        thread.start()
        thread.join()

    # As on a store without locks: it is the fence that keeps the two apart.
    monkeypatch.setattr("dagster_kafka_flip.table.table_port.store_lock", lambda *_, **__: contextlib.nullcontext())
    around_the_merge(before=other)
    with pytest.raises(ConcurrentIngestionError, match=r"committed version 2 to the stream 'main' of .* first"):
        follow()
    assert outcomes[0].merged == MergedRows(1, 0, 1, 0)
    assert landed.rows(table, "id", "name") == [(2, "b"), (3, "c")]
    assert landed.operations(table) == ["CREATE TABLE", "MERGE", "MERGE"]


@pytest.mark.nightly
def test_records_that_are_read_again_do_not_win_over_newer_ones(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "x"), change(1, "b"), change(2)])
    follow()
    start = OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 0})
    result = follow(starting_offsets=start, limits=Limits(max_records_per_batch=3, max_batches=1))
    assert result.merged == MergedRows(inserted=1, updated=0, deleted=0, unchanged=1), "2 is back until its delete"
    assert follow().merged == MergedRows(0, 0, 1, 0)
    assert landed.rows(table, "id", "name", "kafka_offset") == [(1, "b", 2)]


@pytest.mark.nightly
def test_a_merge_reads_only_files_that_may_have_one_of_its_keys(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(3, "b")])
    follow()
    for file in Path(table).glob("*.parquet"):
        file.unlink()
    kafka.produce(topic, [change(4, "c")])
    assert follow().merged == MergedRows(1, 0, 0, 0)
    kafka.produce(topic, [change(2, "d")])
    with pytest.raises(WriteFailedError):
        follow()


def test_a_recreated_topic_is_not_advised_to_be_read_from_another_position(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    known = follow().known
    kafka.delete(topic)
    kafka.create(topic)
    kafka.produce(topic, [change(1, "c")])
    start = OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 0})
    for options in ({}, {"known": known}, {"starting_offsets": start}):
        with pytest.raises(TopicRecreatedError, match=r"key \(Upsert\), and their offsets decide .* into a new table"):
            follow(**options)
    assert landed.rows(table, "id", "name") == [(1, "a"), (2, "b")]
