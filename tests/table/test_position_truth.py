"""What the table says of the position is true, whatever others do to the table; on real Spark and real Delta."""

from __future__ import annotations

import time

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from dagster_kafka_flip.errors import ConcurrentIngestionError, ForeignRowsError, TableChangedError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table import table_writer
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.table_port import guarded
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

pytestmark = pytest.mark.spark

_SCHEMA = "id BIGINT"


def _at(offset):
    return EnumeratorState({TopicPartition("t", 0): offset})


def _stream(spark, name, **changes):
    """A stream's view of a table, which is made unless it is there."""
    table = DeltaTable(spark, DeltaTarget(table=name, **changes))
    if table.anchor() is None:
        table.create(StructType([StructField("id", LongType())]))
    return table


def _anchor(stream):
    anchor = stream.anchor()
    assert anchor is not None
    return anchor


def _rows(spark, *ids):
    return spark.createDataFrame([(number,) for number in ids], _SCHEMA)


def _land(spark, stream, attempt, *ids, offset, anchor=None):
    anchor = stream.anchor() if anchor is None else anchor
    document = CommitDocument(
        stream="main",
        attempt=attempt,
        run_id=f"run of {attempt}",
        base_version=anchor.table_version,
        anchor_version=anchor.version,
        splits=(),
        state=_at(offset),
    )
    return TableWriter(stream).commit(_rows(spark, *ids), document)


def _ids(path):
    return landed.values(path, "id")


def test_a_table_that_was_dropped_and_recreated_is_another_table(spark):
    name = "position_truth.t"
    spark.sql("CREATE DATABASE IF NOT EXISTS position_truth")
    try:
        spark.sql(f"CREATE TABLE {name} ({_SCHEMA}) USING delta")
        _land(spark, _stream(spark, name), "a", 1, offset=1)
        spark.sql(f"DROP TABLE {name}")
        spark.sql(f"CREATE TABLE {name} ({_SCHEMA}) USING delta")
        stream = _stream(spark, name)
        anchor = _anchor(stream)
        assert (anchor.version, anchor.state, anchor.table_rows) == (0, None, 0)
        _land(spark, stream, "b", 1, offset=1)
        assert (stream.count_rows(), _anchor(stream).state) == (1, _at(1))
        spark.sql(f"DROP TABLE {name}")
        spark.sql(f"CREATE TABLE {name} USING delta AS SELECT 7L AS id")
        with pytest.raises(ForeignRowsError, match=r"\(version 0, CREATE TABLE AS SELECT\)"):
            _stream(spark, name)
    finally:
        spark.sql("DROP DATABASE position_truth CASCADE")


@pytest.mark.nightly
def test_if_delta_forgets_transaction_versions_the_position_stays_and_a_double_is_reported(spark, table, monkeypatch):
    forgetful = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    stream = _stream(spark, table, properties=forgetful)
    anchor = stream.anchor()
    _land(spark, stream, "a", 1, offset=1)
    time.sleep(0.1)
    later = _anchor(stream)
    assert (later.version, later.state) == (1, _at(1)), "the position is in history, whatever Delta forgets"
    with pytest.raises(ConcurrentIngestionError, match=r"another run .* committed version 1 to the stream 'main'"):
        _land(spark, stream, "b", 1, offset=1, anchor=anchor)
    # Without the transaction version Delta lets a second batch from the same anchor through, where no lock does not.
    monkeypatch.setattr(table_writer, "guarded", lambda *of, **how: guarded(*of, **how | {"precheck": lambda: None}))
    with pytest.raises(TableChangedError) as error:
        _land(spark, stream, "b", 1, offset=1, anchor=anchor)
    assert str(error.value) == (
        f"versions 1 and 2 of the table {table} both belong to the stream 'main', and the later one was planned at "
        "version 0, before the earlier one was committed: the table may hold duplicates. Delta removed the "
        "transaction version of the earlier one (delta.setTransactionRetentionDuration). Version 2 is committed. Set "
        "this property to longer than any run takes, and RESTORE the table to version 1, from which the next run "
        "continues"
    )
    with pytest.raises(TableChangedError):
        stream.anchor()
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")
    restored = _anchor(stream)
    assert (restored.state, _ids(table)) == (_at(1), [1])
    spark.sql(f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES IF EXISTS ('delta.setTransactionRetentionDuration')")
    _land(spark, stream, "c", 2, offset=2, anchor=restored)
    with pytest.raises(ConcurrentIngestionError):
        _land(spark, stream, "d", 2, offset=2, anchor=restored)
    assert _ids(table) == [1, 2]
