"""The log as read from disk says what Spark says of it, or nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.table import delta_log
from dagster_kafka_flip.table.delta_log import TableLog, TableNotThereError
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.local_log import details_at, is_absent, newest_commits
from dagster_kafka_flip.table.target import DeltaTarget

_METADATA = {"id": "a-b", "partitionColumns": ["day"], "configuration": {"x": "y"}}


@pytest.fixture(scope="module")
def changed(spark, tmp_path_factory) -> str:
    """A table with a commit of each kind, and a checkpoint in between."""
    path = str(tmp_path_factory.mktemp("changed") / "table")
    table = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {table} (a INT, b STRING) USING delta PARTITIONED BY (b) "
        "TBLPROPERTIES ('delta.checkpointInterval' = '7', 'url' = 'é')"
    )
    rows = spark.createDataFrame([(1, "x"), (2, "y")], "a INT, b STRING")
    rows.write.format("delta").mode("append").option("userMetadata", '{"é": "\\n"}').save(path)
    rows.where("b = 'x'").write.format("delta").mode("overwrite").option("replaceWhere", "b = 'x'").save(path)
    rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "dynamic").save(path)
    spark.sql(f"UPDATE {table} SET a = 9 WHERE a = 1")
    spark.sql(f"DELETE FROM {table} WHERE a = 9")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT 1 a, 'x' b) s ON t.a = s.a "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    rows.write.format("delta").mode("append").save(path)
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 3")
    deltalake.write_deltalake(path, pa.table({"a": pa.array([5], pa.int32()), "b": ["z"]}), mode="append")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (c STRUCT<x: INT>)")
    return path


def _by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "is_local", lambda *_: False)


@pytest.mark.spark
def test_history_from_disk_is_sparks(spark, changed, monkeypatch):
    found = {limit: newest_commits(changed, limit) for limit in (1, 4, 13, 100)}
    here = list(TableLog(spark, DeltaTarget(table=changed)).commits())
    _by_spark(monkeypatch)
    truth = list(TableLog(spark, DeltaTarget(table=changed)).commits())

    assert len(truth) == 13
    assert here == truth
    assert found == {limit: truth[:limit] for limit in found}


@pytest.mark.spark
def test_details_from_disk_are_sparks(spark, changed, tmp_path, monkeypatch):
    target = DeltaTarget(table=changed)
    # An older Delta leaves no checksums, and then the last commit with metadata tells.
    bare = tmp_path / "bare"
    shutil.copytree(changed, bare, ignore=shutil.ignore_patterns("*.crc"))
    here, version, without = TableLog(spark, target).details(), details_at(changed), details_at(str(bare))
    _by_spark(monkeypatch)
    truth = TableLog(spark, target).details()

    assert here == truth
    assert version == (12, truth)
    assert without == (12, truth)
    assert truth.properties["url"] == "é"


@pytest.mark.spark
def test_history_whose_start_delta_has_deleted_ends_where_sparks_ends(spark, changed, tmp_path, monkeypatch):
    table = tmp_path / "table"
    shutil.copytree(changed, table)
    for version in range(5):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    here = list(TableLog(spark, DeltaTarget(table=str(table))).commits())
    _by_spark(monkeypatch)

    assert here == list(TableLog(spark, DeltaTarget(table=str(table))).commits())
    assert [commit.version for commit in here] == list(range(12, 4, -1))


@pytest.mark.spark
def test_where_paths_lead_to_another_file_system_spark_is_asked(spark, changed, monkeypatch):
    monkeypatch.setattr(delta_log, "newest_commits", lambda *_: pytest.fail("read from this disk"))
    monkeypatch.setattr(delta_log, "is_absent", lambda *_: pytest.fail("read from this disk"))
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://namenode:8020")
    try:
        history = TableLog(spark, DeltaTarget(table=changed)).commits()
        with pytest.raises(ConfigurationError, match=f"Write hdfs://namenode:8020{changed}"):
            DeltaTable(spark, DeltaTarget(table=changed))
    finally:
        settings.set("fs.defaultFS", before)
    assert next(history).version == 12


@pytest.mark.spark
def test_a_missing_table_is_reported_without_a_spark_job(spark, tmp_path):
    with pytest.raises(TableNotThereError, match=r"there is no Delta table .*none any more\. "):
        next(TableLog(spark, DeltaTarget(table=str(tmp_path / "none"))).commits())


def _write(table: Path, version: int, **info: object) -> Path:
    file = table / "_delta_log" / f"{version:020}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    actions: list[object] = [{"commitInfo": {"operation": "WRITE", **info}}]
    if version == 0:
        actions.append({"metaData": _METADATA})
    # As Delta writes them, without spaces.
    file.write_text("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions))
    return file


def _versions(table: Path, limit: int = 10) -> list[int] | None:
    found = newest_commits(str(table), limit)
    return None if found is None else [commit.version for commit in found]


def test_a_commit_without_an_operation_has_none(tmp_path):
    _write(tmp_path, 0, operation=None)
    (commit,) = newest_commits(str(tmp_path), 1) or [None]
    assert commit is not None
    assert (commit.operation, commit.named) == (None, "version 0 (an operation without a name)")


def test_a_log_with_a_gap_or_half_a_file_or_without_commits_is_unclear(tmp_path):
    assert _versions(tmp_path) is None
    for version in range(4):
        _write(tmp_path, version)
    assert _versions(tmp_path) == [3, 2, 1, 0]
    assert _versions(tmp_path, 2) == [3, 2]

    middle = tmp_path / "_delta_log" / f"{1:020}.json"
    whole = middle.read_text()
    middle.write_text(whole[:9])
    assert _versions(tmp_path) is None
    for other in ('{"add":{}}\n', "[]\n"):
        middle.write_text(other)
        assert _versions(tmp_path) is None
    middle.unlink()
    assert _versions(tmp_path) is None
    assert _versions(tmp_path, 2) is None

    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    assert _versions(tmp_path) is None, "nothing has the files of the commits that are gone"
    (tmp_path / "_delta_log" / f"{1:020}.checkpoint.parquet").touch()
    assert _versions(tmp_path) == [3, 2]
    (tmp_path / "_delta_log" / f"{4:020}.checkpoint.parquet").touch()
    assert _versions(tmp_path) is None, "a newer version is known only to its checkpoint"


def test_catalog_managed_commits_are_not_in_the_local_log(tmp_path):
    _write(tmp_path, 0)
    staged = tmp_path / "_delta_log" / "_staged_commits"
    staged.mkdir()
    assert _versions(tmp_path) == [0]
    assert details_at(str(tmp_path)) == (0, ("a-b", ("day",), {"x": "y"}))
    (staged / f"{1:020}.c0ffee.json").touch()
    assert _versions(tmp_path) is None
    assert details_at(str(tmp_path)) is None


def test_times_are_in_order_though_the_clock_was_set_back(tmp_path):
    for version, seconds in enumerate((200, 100, 100, 300)):
        os.utime(_write(tmp_path, version), (seconds, seconds))
    _write(tmp_path, 4, inCommitTimestamp=900_000)
    found = newest_commits(str(tmp_path), 10)
    assert found is not None
    assert [commit.timestamp_ms for commit in found] == [900_000, 300_000, 200_002, 200_001, 200_000]


def test_details_come_from_the_newest_event_that_has_them(tmp_path):
    _write(tmp_path, 0)
    _write(tmp_path, 1)
    assert details_at(str(tmp_path)) == (1, ("a-b", ("day",), {"x": "y"}))
    changed = {**_METADATA, "configuration": {"x": "z"}}
    checksum = tmp_path / "_delta_log" / f"{1:020}.crc"
    checksum.write_text(json.dumps({"metadata": changed}))
    assert details_at(str(tmp_path)) == (1, ("a-b", ("day",), {"x": "z"}))
    # Another writer's, without a checksum and with spaces.
    _write(tmp_path, 2).write_text(json.dumps({"metaData": {**changed, "id": "other"}}))
    assert details_at(str(tmp_path)) == (2, ("other", ("day",), {"x": "z"}))
    (tmp_path / "_delta_log" / f"{3:020}.checkpoint.parquet").touch()
    assert details_at(str(tmp_path)) is None
    for text in ('{"metadata": {}}', "[]"):
        (tmp_path / "_delta_log" / f"{3:020}.crc").write_text(text)
        _write(tmp_path, 3)
        assert details_at(str(tmp_path)) is None
    assert details_at(str(tmp_path / "none")) is None


def test_only_what_is_certainly_not_there_is_absent(tmp_path):
    _write(tmp_path, 0)
    (tmp_path / "file").touch()
    assert not is_absent(str(tmp_path))
    assert not is_absent("s3a://bucket/table")
    assert is_absent(str(tmp_path / "none"))
    assert is_absent(str(tmp_path / "file"))
