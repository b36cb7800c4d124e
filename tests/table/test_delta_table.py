"""DeltaTable on real Spark and real Delta: creation, the fence, the read-back, and what others do to the table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    ConfigurationError,
    ForeignRowsError,
    PositionLostError,
    SchemaMismatchError,
    StreamOverlapError,
    TableChangedError,
    TableError,
    TableReplacedError,
    WriteFailedError,
)
from dagster_kafka_flip.ingestion.dead_letters import DEAD_LETTER_SCHEMA
from dagster_kafka_flip.ingestion.result import TableResult
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table import table_writer
from dagster_kafka_flip.table.creation import statistics_columns
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import WINDOWS_PROPERTY, CommitDocument
from dagster_kafka_flip.table.local_log import version_if_still_valid
from dagster_kafka_flip.table.maintenance import maintain
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.table_port import ForeignConflictError, guarded, set_properties
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.source.plans import make_plan

pytestmark = pytest.mark.spark

_T0 = TopicPartition("t", 0)
_SCHEMA = "id BIGINT, name STRING"


def _struct(ddl: str) -> StructType:
    struct = StructType.fromDDL(ddl)
    assert isinstance(struct, StructType)
    return struct


def _stream(spark, path, *, create=True, **changes):
    """A stream's view of a table, which is made with `_SCHEMA` unless it is there."""
    table = DeltaTable(spark, DeltaTarget(table=path, **changes))
    if create and table.anchor() is None:
        table.create(_struct(_SCHEMA))
    return table


@pytest.fixture
def unseen(monkeypatch):
    """Others come between the look before the write and the write itself, as they can where no lock keeps them out."""

    def install():
        monkeypatch.setattr(
            table_writer, "guarded", lambda *of, **how: guarded(*of, **how | {"precheck": lambda: None})
        )

    return install


def _document(anchor, attempt, *, stream="main", offset=1, topic="t"):
    return CommitDocument(
        stream=stream,
        attempt=attempt,
        run_id=f"run of {attempt}",
        base_version=anchor.table_version,
        anchor_version=anchor.version,
        after=anchor.attempt,
        splits=(),
        state=EnumeratorState({TopicPartition(topic, 0): offset}),
        rows_before=anchor.table_rows,
    )


def _rows(spark, *ids):
    return spark.createDataFrame([(number, f"n{number}") for number in ids], _SCHEMA)


def _ids(path):
    return landed.values(path, "id")


# --- creation -----------------------------------------------------------------------------------------------------


def test_a_table_is_made_empty_with_its_layout_and_nullable_columns(spark, table):
    target = DeltaTarget(
        table=table,
        partition_by=("day of",),
        properties={
            # Without it Delta takes no blanks in names.
            "delta.columnMapping.mode": "name",
            "delta.logRetentionDuration": "interval 60 days",
            "it's": "a \\ 'quoted' value",
            # Spark hides such names and values in SHOW TBLPROPERTIES.
            "topic.password_tokens": "3oWRkDRe2uRl6ImkRHBw",
        },
    )
    created = DeltaTable(spark, target)
    assert created.anchor() is None
    schema = _struct(
        "id BIGINT NOT NULL, `day of` DATE, nested STRUCT<`a b`: INT, l: ARRAY<STRUCT<x: STRING>>>, `ünï-code` STRING"
    )
    created.create(schema)
    made = spark.read.format("delta").load(table)
    assert made.count() == 0
    assert [(field.name, field.dataType, field.nullable) for field in made.schema.fields] == [
        (field.name, field.dataType, True) for field in schema.fields
    ]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").first()
    assert detail["partitionColumns"] == ["day of"]
    assert detail["properties"]["delta.logRetentionDuration"] == "interval 60 days"
    assert detail["properties"]["it's"] == "a \\ 'quoted' value"
    assert created.properties()["topic.password_tokens"] == "3oWRkDRe2uRl6ImkRHBw"
    anchor = created.anchor()
    assert anchor is not None
    assert (anchor.version, anchor.table_version, anchor.state, anchor.table_rows) == (0, 0, None, 0)
    assert created.location() == table


def test_what_a_transform_computes_without_nulls_does_not_forbid_them_in_a_new_table(spark, table):
    rows = spark.range(2).selectExpr(
        "if(id = 0, named_struct('x', 1), null) AS struct",
        "array(named_struct('x', 1)) AS list",
        "map('k', named_struct('x', 1)) AS map",
    )
    created = DeltaTable(spark, DeltaTarget(table=table))
    created.create(rows.schema)
    rows.write.format("delta").mode("append").save(table)
    made = spark.read.format("delta").load(table)
    assert "false" not in made.schema.json()
    assert [tuple(row) for row in made.orderBy("struct").collect()] == [
        (None, [(1,)], {"k": (1,)}),
        ((1,), [(1,)], {"k": (1,)}),
    ]


def test_a_table_that_is_appended_to_has_statistics_of_numbers_times_and_clustering_unless_the_user_chose(
    spark, tmp_path
):
    schema = _struct(
        "name STRING, `n``o` INT, day DATE, part STRING, of STRUCT<text: STRING, at: STRUCT<t: TIMESTAMP>, "
        "is: BOOLEAN>, list ARRAY<INT>, map MAP<STRING, INT>, bytes BINARY"
    )
    rows = spark.sql(
        "SELECT 'x' AS name, 1 AS `n``o`, DATE'2013-01-01' AS day, 'p' AS part, named_struct('text', 'y', 'at', "
        "named_struct('t', TIMESTAMP'2013-01-01 00:00:00Z'), 'is', true) AS of, array(1) AS list, map('a', 1) AS map, "
        "X'00' AS bytes"
    )

    def kept(**options):
        path = str(tmp_path / f"{len(list(tmp_path.iterdir()))}")
        stream = DeltaTable(spark, DeltaTarget(table=path, **options))
        stream.create(schema)
        anchor = stream.anchor()
        assert anchor is not None
        TableWriter(stream).commit(rows, _document(anchor, "a"))
        (added,) = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
        assert added["num_records"] == 1
        return {name.removeprefix("max.") for name, value in added.items() if name[:4] == "max." and value is not None}

    ours = {"n`o", "day", "of.at.t"}
    assert kept() == ours
    assert kept(cluster_by=("name",)) == ours | {"name"}
    assert kept(partition_by=("day",)) == ours - {"day"}
    assert kept(properties={"delta.dataskippingnumindexedcols": "1"}) == {"name"}
    default = "spark.databricks.delta.properties.defaults.dataSkippingStatsColumns"
    spark.conf.set(default, "part")
    try:
        assert kept() == {"part"}
    finally:
        spark.conf.unset(default)


def test_times_and_then_the_last_numbers_have_statistics_where_a_table_has_too_many_columns():
    numbers = ", ".join(f"n{number} INT, s{number} STRING" for number in range(40))
    schema = _struct(f"{numbers}, at TIMESTAMP")
    chosen = (statistics_columns(DeltaTarget(table="/t", cluster_by=("s39",)), schema) or "").split(",")
    assert chosen == ["`s39`", "`at`", *(f"`n{number}`" for number in range(39, 9, -1))]
    assert statistics_columns(DeltaTarget(table="/t"), _struct("s STRING, b BINARY")) is None


@pytest.mark.parametrize("options", [{"mode": Upsert(key=("id",))}, {"properties": {WINDOWS_PROPERTY: "[]"}}])
def test_a_table_whose_rows_are_replaced_has_the_statistics_that_delta_chooses(spark, table, options):
    DeltaTable(spark, DeltaTarget(table=table, **options)).create(_struct(_SCHEMA))
    properties = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").first()["properties"]
    assert not [name for name in properties if "dataSkipping" in name]


def test_a_tables_columns_are_those_of_the_batch_whatever_a_session_takes_timestamp_for(spark, table):
    ddl = "at TIMESTAMP_LTZ, l ARRAY<TIMESTAMP_LTZ>, `n``o` TIMESTAMP_NTZ, s STRUCT<`x-y`: MAP<INT, TIMESTAMP_LTZ>>"
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        wanted = _struct(ddl)
        stream = DeltaTable(spark, DeltaTarget(table=table))
        assert stream.anchor() is None
        stream.create(wanted)
        found = TableResult(written=stream.check_schema(wanted)).columns
        empty = spark.createDataFrame([], DEAD_LETTER_SCHEMA).schema
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert found == (
        ("at", "timestamp"),
        ("l", "array<timestamp>"),
        ("n`o", "timestamp_ntz"),
        ("s", "struct<x-y:map<int,timestamp>>"),
    )
    assert {field.dataType.simpleString() for field in empty if field.name in ("kafka_timestamp", "landed_at")} == {
        "timestamp"
    }


def test_a_clustered_table_in_the_catalog_is_landed_in_and_none_is_made_in_a_catalog_that_does_not_last(spark):
    name = "flip_tests.`clustered_table`"
    spark.sql("CREATE DATABASE IF NOT EXISTS flip_tests")
    try:
        target = DeltaTarget(table=name, cluster_by=("id",))
        first, second = DeltaTable(spark, target), DeltaTable(spark, target)
        assert first.anchor() is None
        assert second.anchor() is None
        with pytest.raises(TableError, match=r"can't be created: Spark's catalog is in memory "):
            first.create(_struct(_SCHEMA))
        spark.sql(f"CREATE TABLE {name} ({_SCHEMA}) USING delta CLUSTER BY (id)")
        anchor = first.anchor()
        assert anchor is not None
        TableWriter(first).commit(_rows(spark, 1, 2), _document(anchor, "a"))
        seen = second.anchor()
        assert seen is not None
        assert seen.state == EnumeratorState({_T0: 1})
        assert (seen.version, seen.table_rows, second.count_rows()) == (1, 2, 2)
        assert spark.sql(f"DESCRIBE DETAIL {name}").first()["clusteringColumns"] == ["id"]
        # The lock lies beside the table, wherever the catalog has put it.
        folder = Path(second.location().removeprefix("file:"))
        assert (folder.parent / f".{folder.name}.dagster-kafka-flip.lock").exists()
        spark.sql(f"CREATE OR REPLACE TABLE {name} ({_SCHEMA}) USING delta")
        with pytest.raises(TableReplacedError, match=r"version 2 is a CREATE OR REPLACE TABLE, after version 1"):
            first.anchor()
    finally:
        spark.sql("DROP DATABASE flip_tests CASCADE")


def test_a_table_that_can_not_be_created_is_reported(spark, tmp_path):
    target = DeltaTarget(table=str(tmp_path / "a"), properties={"delta.appendOnly": "perhaps"})
    with pytest.raises(TableError) as error:
        DeltaTable(spark, target).create(_struct(_SCHEMA))
    assert str(error.value).startswith(f"the table {target} can't be created: ")
    assert "perhaps" in str(error.value)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_times_are_not_written_into_a_partition_column(spark, table):
    columns = _struct("id BIGINT, hour TIMESTAMP")
    with pytest.raises(ConfigurationError, match="the column 'hour' is TIMESTAMP, and Delta would change its times in"):
        _stream(spark, table, create=False, partition_by=("hour",)).made(columns)
    assert not Path(table).exists()
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, hour TIMESTAMP) USING delta PARTITIONED BY (hour)")
    for refused in (
        lambda: _stream(spark, table).check_schema(columns),
        # A MERGE writes the partitions of rows again that it does not change, and so does OPTIMIZE.
        lambda: _stream(spark, table).check_schema(_struct("id BIGINT")),
        lambda: maintain(spark, DeltaTarget(table=table), None, has_position=False),
    ):
        with pytest.raises(SchemaMismatchError, match="is partitioned by the TIMESTAMP hour, and Delta would change"):
            refused()
    assert landed.operations(table) == ["CREATE TABLE"]
    # The clock that is shown does not depend on a time zone.
    _stream(spark, f"{table}-other", create=False, partition_by=("hour",)).made(_struct("id INT, hour TIMESTAMP_NTZ"))


def test_a_folder_with_something_else_in_it_is_refused(spark, tmp_path):
    folder = tmp_path / "parquet"
    spark.range(1).write.parquet(str(folder))
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(TableError) as error:
        _stream(spark, str(folder)).anchor()
    assert str(error.value) == (
        f"{folder} is not empty and not a Delta table; choose another path, or convert it with CONVERT TO DELTA"
    )
    assert sorted(path.name for path in folder.iterdir()) == before
    (tmp_path / "empty").mkdir()
    assert _stream(spark, str(tmp_path / "empty"), create=False).anchor() is None
    # VACUUM deletes what the log of a table does not name, whatever is in its folder.
    spark.range(1).write.format("delta").save(str(tmp_path / "outer"))
    (tmp_path / "link").symlink_to(tmp_path / "outer" / "by_day")
    for inner in ("outer/by_day", "link"):
        with pytest.raises(
            TableError, match=f"would be in the folder of the Delta table {tmp_path}/outer, whose VACUUM"
        ):
            _stream(spark, str(tmp_path / inner)).anchor()


def test_a_path_that_can_not_be_looked_at_is_named(spark, tmp_path):
    # The system answers as for a folder that this user may not enter: with an error, and not that nothing is there.
    path = tmp_path / ("x" * 300)
    with pytest.raises(TableError) as error:
        _stream(spark, str(path)).anchor()
    assert str(error.value) == (
        f"{path} can't be looked at: {path}: File name too long. Correct the path, or give the "
        "user of this process the right to read and enter each of its folders"
    )


# --- the fence and the read-back ----------------------------------------------------------------------------------


def test_one_of_two_batches_from_one_anchor_wins_and_a_known_attempt_is_found_again(spark, table):
    one, two = _stream(spark, table), _stream(spark, table)
    anchor = one.anchor()
    assert two.anchor() == anchor
    done = TableWriter(one).commit(_rows(spark, 1, 2), _document(anchor, "a", offset=2))
    assert (done.version, done.rows, done.table_rows, bool(done.bytes)) == (1, 2, 2, True)

    with pytest.raises(ConcurrentIngestionError) as error:
        TableWriter(two).commit(_rows(spark, 1, 2), _document(anchor, "b", offset=2))
    assert str(error.value) == (
        f"another run (run of a) committed version 1 to the stream 'main' of {table} first; this batch was planned at "
        "version 0 and was not written. Nothing is lost: the next run continues from there"
    )
    again = TableWriter(two).commit(_rows(spark, 1, 2), _document(anchor, "a", offset=2))
    assert (again.version, again.rows) == (1, 2), "the same attempt is the same commit"
    assert (_ids(table), landed.version(table)) == ([1, 2], 1)

    later = one.anchor()
    assert later is not None
    assert (later.version, later.table_version, later.state, later.table_rows) == (
        1,
        1,
        EnumeratorState({_T0: 2}),
        2,
    )
    assert TableWriter(two).commit(_rows(spark, 3), _document(later, "c", offset=3)).version == 2
    assert _ids(table) == [1, 2, 3]


def test_a_table_that_is_created_again_between_look_and_write_keeps_no_position_without_its_rows(spark, table, unseen):
    stream = _stream(spark, table)
    TableWriter(stream).commit(_rows(spark, 1), _document(stream.anchor(), "a"))
    anchor = stream.anchor()
    shutil.rmtree(table)
    with pytest.raises(TableError, match=r"disappeared during the run\. Nothing of this batch was written"):
        TableWriter(stream).commit(_rows(spark, 2), _document(anchor, "b", offset=2))
    again = _stream(spark, table)
    with pytest.raises(ForeignConflictError, match="it was created again"):
        TableWriter(stream).commit(_rows(spark, 2), _document(anchor, "b", offset=2))
    assert landed.version(table) == 0
    unseen()
    expected = rf"version 1 of the table {table} is a batch .* planned at version 1: the table was dropped and created"
    with pytest.raises(TableChangedError, match=expected):
        TableWriter(stream).commit(_rows(spark, 2), _document(anchor, "b", offset=2))
    with pytest.raises(TableChangedError, match=expected):
        again.anchor()

    shutil.rmtree(table)
    again = _stream(spark, table)
    TableWriter(again).commit(_rows(spark, 1, 2), _document(again.anchor(), "c", offset=2))
    assert _ids(table) == [1, 2]


def _restore_to_the_time_of(spark, path, version):
    """Restores to when a version was made, by a text in the session's time zone, as a user writes it."""
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where(f"version = {version}")
    spark.sql(
        f"RESTORE TABLE delta.`{path}` TO TIMESTAMP AS OF '{rows.selectExpr('CAST(timestamp AS STRING)').first()[0]}'"
    )
    restore = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()
    assert restore["operation"] == "RESTORE"
    assert restore["operationParameters"]["version"] is None


def test_a_restore_to_a_time_stops_until_the_table_is_restored_to_a_version(spark, table):
    stream = _stream(spark, table)
    for offset in (1, 2):
        TableWriter(stream).commit(_rows(spark, offset), _document(stream.anchor(), f"a{offset}", offset=offset))
    _restore_to_the_time_of(spark, table, 1)
    with pytest.raises(
        PositionLostError, match=r"version 3 of the table .* is a RESTORE to a timestamp \(.*TO VERSION"
    ):
        stream.anchor()
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")
    anchor = stream.anchor()
    assert anchor is not None
    assert (anchor.state, anchor.version, _ids(table)) == (EnumeratorState({_T0: 1}), 4, [1])


@pytest.fixture
def by_partition(spark):
    """A session that overwrites only the partitions for which it has rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    return session


def test_all_rows_are_replaced_by_a_session_that_overwrites_partitions(spark, table, by_partition):
    stream = _stream(spark, table, partition_by=("name",))
    TableWriter(stream).commit(_rows(spark, 1, 2), _document(stream.anchor(), "a"))
    own = _stream(by_partition, table)
    TableWriter(own).replace(_rows(by_partition, 1), _document(own.anchor(), "b"))
    assert _ids(table) == [1]


@pytest.mark.parametrize(
    "fill",
    [
        "CREATE TABLE delta.`{table}` USING delta AS SELECT * FROM delta.`{other}`",
        "CREATE TABLE delta.`{table}` SHALLOW CLONE delta.`{other}`",
        (
            "CREATE TABLE delta.`{table}` (id BIGINT) USING delta; MERGE INTO delta.`{table}` t USING delta.`{other}` "
            "o ON t.id = o.id WHEN NOT MATCHED THEN INSERT (id) VALUES (o.id)"
        ),
        "CONVERT TO DELTA parquet.`{parquet}`",
    ],
)
def test_a_table_that_others_have_filled_is_not_new(spark, table, tmp_path, fill):
    other, parquet = str(tmp_path / "other"), str(tmp_path / "parquet")
    _rows(spark, 7).write.format("delta").save(other)
    _rows(spark, 7).write.parquet(parquet)
    for statement in fill.format(table=table, other=other, parquet=parquet).split(";"):
        spark.sql(statement)
    with pytest.raises(ForeignRowsError, match=r" has rows that no stream wrote \(version "):
        _stream(spark, parquet if "CONVERT" in fill else table, create=False).anchor()


def test_a_write_that_is_skipped_without_a_reason_is_reported(spark, table):
    stream = _stream(spark, table)
    anchor = stream.anchor()
    assert anchor is not None
    _rows(spark).writeTo(f"delta.`{table}`").option("txnAppId", "dagster-kafka-flip/main").option(
        "txnVersion", 5
    ).append()
    with pytest.raises(WriteFailedError) as error:
        TableWriter(stream).commit(_rows(spark, 1), _document(anchor, "a"))
    assert str(error.value).startswith(
        f"Delta skipped the write to {table} without an error, and no commit of the stream 'main' explains it: its "
        "transaction version is at or above 0. "
    )
    assert _ids(table) == []


def test_a_write_that_fails_leaves_nothing_and_says_why(spark, table):
    stream = _stream(spark, table)
    failing = _rows(spark, 1).selectExpr("id", "CAST(1 DIV (id - 1) AS STRING) AS name")
    with pytest.raises(WriteFailedError) as error:
        TableWriter(stream).commit(failing, _document(stream.anchor(), "a"))
    message = str(error.value)
    assert message.startswith(f"the write to {table} failed: ")
    assert ". Nothing of it was committed" in message
    assert "Division by zero" in message
    assert "rule of the table" not in message
    assert (_ids(table), landed.version(table)) == ([], 0)
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (id > 0)")
    with pytest.raises(WriteFailedError, match=r"CHECK constraint positive .*A row breaks this rule of the table"):
        TableWriter(stream).commit(_rows(spark, -1), _document(stream.anchor(), "b"))


# --- two streams --------------------------------------------------------------------------------------------------


def test_two_streams_of_one_table_have_positions_of_their_own(spark, table):
    one, two = _stream(spark, table), _stream(spark, table, stream="two")
    begin_one, begin_two = one.anchor(), two.anchor()
    TableWriter(one).commit(_rows(spark, 1), _document(begin_one, "a"))
    assert TableWriter(two).commit(_rows(spark, 2), _document(begin_two, "b", stream="two", topic="u")).version == 2
    anchor_one, anchor_two = one.anchor(), two.anchor()
    assert anchor_one is not None
    assert anchor_two is not None
    state_one, state_two = EnumeratorState({_T0: 1}), EnumeratorState({TopicPartition("u", 0): 1})
    assert (anchor_one.version, anchor_one.state) == (1, state_one)
    assert {stream: other.state for stream, other in anchor_one.other_streams.items()} == {"two": state_two}
    assert (anchor_two.version, anchor_two.state) == (2, state_two)
    assert TableWriter(one).commit(_rows(spark, 3), _document(anchor_one, "c", offset=2)).version == 3
    assert _ids(table) == [1, 2, 3]

    one.check_overlap(anchor_one, make_plan({0: (0, 1)}))
    with pytest.raises(StreamOverlapError) as error:
        one.check_overlap(anchor_one, make_plan({0: (0, 1)}, topic="u"))
    assert str(error.value) == (
        f"u-0: the stream 'two' of the table {table} reads it already; the stream 'main' would duplicate the records. "
        "Use another table for 'main', "
        "or remove the topic from its source. If 'two' should stop reading it, remove the topic from that source and "
        "give up its position: dagster-kafka-flip position set "
        f"--table {table} --stream two --bootstrap-servers <host:port> --topic <topic to keep> --give-up --reason <why>"
        ". It prints where the position was: begin 'main' there, or records are lost or duplicated: dagster-kafka-flip "
        f"position set --table {table} --stream main --bootstrap-servers <host:port> --topic u "
        "--to <offsets:{...} as printed> --reason <why>"
    )


def test_the_second_of_two_new_streams_finds_the_first_before_it_writes(spark, table, unseen):
    one, two = _stream(spark, table), _stream(spark, table, stream="two")
    begin_one, begin_two = one.anchor(), two.anchor()
    TableWriter(one).commit(_rows(spark, 1), _document(begin_one, "a"), [_T0])
    with pytest.raises(StreamOverlapError, match=r"t-0: the stream 'main' of .* reads it since version 1"):
        TableWriter(two).commit(_rows(spark, 1), _document(begin_two, "b", stream="two"), [_T0])
    assert _ids(table) == [1]
    # Where no lock keeps them apart, the read-back finds it.
    unseen()
    with pytest.raises(TableChangedError, match=r"versions 1 .* and 2 .* both contain t-0"):
        TableWriter(two).commit(_rows(spark, 1), _document(begin_two, "c", stream="two"))
    keyed = replace(_document(begin_two, "d", stream="two", topic="u"), mode=Upsert(key=("id",)))
    with pytest.raises(TableChangedError, match=r"the stream 'three', Upsert.* were written at once"):
        TableWriter(_stream(spark, table, stream="three")).commit(_rows(spark, 1), replace(keyed, stream="three"))


def test_properties_that_two_runs_set_at_once_where_no_lock_keeps_them_apart_are_told(spark, table):
    stream = _stream(spark, table)

    def another(value):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('p' = '{value}', 'q' = 'theirs')")

    another("same")
    set_properties(stream.port, stream.location(), {"p": "same"}, lambda _: another("same"))
    with pytest.raises(TableChangedError, match=r"SET TBLPROPERTIES \('p' = 'theirs'\)$"):
        set_properties(stream.port, stream.location(), {"p": "ours"}, lambda _: another("theirs"))
    # As the message says; and what others set before is theirs.
    another("theirs")
    set_properties(stream.port, stream.location(), {"p": "both"}, lambda found: None)
    assert (stream.properties()["p"], stream.properties()["q"]) == ("both", "theirs")


def test_a_view_or_another_format_by_a_catalog_name_is_called_what_it_is(spark):
    spark.sql("CREATE DATABASE IF NOT EXISTS flip_others")
    try:
        spark.sql("CREATE TABLE flip_others.p (id INT) USING parquet")
        spark.sql("CREATE VIEW flip_others.v AS SELECT * FROM flip_others.p")
        for name, what in (("p", "a table in the format parquet"), ("v", "a view")):
            with pytest.raises(TableError, match=f"flip_others.{name} is {what}, not a Delta table"):
                DeltaTable(spark, DeltaTarget(table=f"flip_others.{name}")).anchor()
    finally:
        spark.sql("DROP DATABASE flip_others CASCADE")


def test_letters_of_patterns_in_a_path_are_letters(spark, tmp_path):
    (tmp_path / "ab").mkdir()
    path = str(tmp_path / "a[b]{c}*?")
    stream = _stream(spark, path)
    TableWriter(stream).commit(_rows(spark, 1), _document(stream.anchor(), "a"))
    assert stream.port.transaction_versions(stream.location(), 1) == {"dagster-kafka-flip/main": 0}
    assert _ids(path) == [1]


def test_the_log_shows_without_spark_whether_a_position_is_still_valid(spark, table, tmp_path):
    stream = _stream(spark, table)
    TableWriter(stream).commit(_rows(spark, 1, 2), _document(stream.anchor(), "a"))
    state = EnumeratorState({_T0: 1})
    assert version_if_still_valid(table, "main", state, 1, 1, 2) == (1, 2)
    assert version_if_still_valid(table, "main", EnumeratorState({_T0: 9}), 1, 1, 2) is None
    assert version_if_still_valid("s3a://bucket/table", "main", state, 1, 1, 2) is None
    _rows(spark, 3).write.format("delta").mode("append").save(table)
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('a' = 'b')")
    assert version_if_still_valid(table, "main", state, 1, 1, 2) == (3, 3)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    assert version_if_still_valid(table, "main", state, 1, 1, 2) == (4, None)
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 0")
    assert version_if_still_valid(table, "main", state, 1, 1, 2) is None
    Path(table).rename(tmp_path / "away")
    assert version_if_still_valid(table, "main", state, 1, 1, 2) is None


# --- the schema ---------------------------------------------------------------------------------------------------

_NESTED = "id BIGINT, name STRING, s STRUCT<a: INT, l: ARRAY<STRUCT<x: STRING>>>, m MAP<STRING, INT>"


@pytest.fixture(scope="module")
def nested(spark, tmp_path_factory):
    """The path of a table that has a required column and nested ones; nothing is written to it."""
    path = str(tmp_path_factory.mktemp("nested") / "table")
    spark.sql(f"CREATE TABLE delta.`{path}` ({_NESTED.replace('BIGINT', 'BIGINT NOT NULL')}) USING delta")
    return path


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            f"{_NESTED}, extra INT",
            (
                "the table {table} has no column extra (int). Set schema_evolution of its "
                "DeltaTarget to true to add it, or drop it in the transform"
            ),
        ),
        (
            f"{_NESTED.replace('name', 'title')}, extra INT",
            (
                "the table {table} has no columns title (string), extra (int). Set "
                "schema_evolution of its DeltaTarget to true to add them, or drop them in the transform. The table (-) "
                "and the batch (+):\n+ title string\n+ extra int\n- name string"
            ),
        ),
        (
            "id BIGINT, name STRING, s STRUCT<a: INT, b: INT>, m MAP<STRING, INT>",
            (
                "the table {table} has no column s.b (int). Set schema_evolution of its "
                "DeltaTarget to true to add it, or drop it in the transform. The table (-) and the batch "
                "(+):\n+ s.b int\n- s.l array<struct<x:string>>"
            ),
        ),
        (
            "id BIGINT, S STRUCT<a: STRING, l: ARRAY<STRUCT<x: INT>>>, m MAP<STRING, STRING>",
            (
                "the batch does not fit the table {table}: the column S.a is int in the table and string in the "
                "batch; the "
                "column S.l[].x is string in the table and int in the batch; the column m{{}} is int in the table and "
                "string in the "
                "batch. Change the value format, cast in the transform, or use another table; if no run has written to "
                "this one yet, you can drop it. The "
                "table (-) and the batch (+):\n- S.a int\n+ S.a string\n- S.l[].x string\n+ S.l[].x int\n- m{{}} int\n"
                "+ m{{}} string\n- name string"
            ),
        ),
        (
            "name STRING",
            (
                "the table {table} requires id, which the batch does not have. Add the column in "
                "the transform, or drop NOT NULL from the table's. The table (-) and the batch (+):\n"
                "- id bigint NOT NULL\n- s struct<a:int,l:array<struct<x:string>>>\n- m map<string,int>"
            ),
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_reported_before_it_is_written(spark, nested, batch, message):
    stream = DeltaTable(spark, DeltaTarget(table=nested))
    with pytest.raises(SchemaMismatchError) as error:
        stream.check_schema(_struct(batch))
    assert str(error.value) == message.format(table=nested)
    assert landed.version(nested) == 0


_NARROW = "id INT, s STRUCT<f: FLOAT, d: DECIMAL(10, 2)>, l ARRAY<SMALLINT>, m MAP<STRING, TINYINT>, name STRING"
_WIDE = "id BIGINT, s STRUCT<f: DOUBLE, d: DECIMAL(12, 4)>, l ARRAY<INT>, m MAP<STRING, BIGINT>, name STRING, n INT"


def test_types_are_widened_where_the_table_allows_it_and_what_changes_is_reported(spark, table):
    # Delta takes any case.
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({_NARROW}) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'TRUE')"
    )
    stream = DeltaTable(spark, DeltaTarget(table=table, schema_evolution=True))
    narrow = spark.sql("SELECT 1 id, named_struct('f', 1.5F, 'd', 2.25BD) s, array(3S) l, map('k', 4Y) m, 'x' name")
    narrow = narrow.withColumn("s", narrow.s.cast("struct<f: float, d: decimal(10, 2)>"))
    TableWriter(stream).commit(narrow, _document(stream.anchor(), "a"))
    wide = spark.sql(
        "SELECT 4294967296 id, named_struct('f', 1.1D, 'd', 2.1234BD) s, array(70000) l, map('k', 5000000000) m, 'y' "
        "name, 7 n"
    )
    wide = wide.withColumn("s", wide.s.cast("struct<f: double, d: decimal(12, 4)>"))
    columns = stream.check_schema(wide.schema)
    assert columns.changes == (
        "id int -> bigint",
        "s.f float -> double",
        "s.d decimal(10,2) -> decimal(12,4)",
        "l[] smallint -> int",
        "m{} tinyint -> bigint",
        "+ n int",
    )
    TableWriter(stream).commit(wide, _document(stream.anchor(), "b", offset=2))
    now = spark.table(f"delta.`{table}`")
    assert now.schema.simpleString() == _struct(_WIDE).simpleString() == columns.struct.simpleString()
    assert {row["id"]: (row["s"]["f"], str(row["s"]["d"]), row["l"], row["m"], row["n"]) for row in now.collect()} == {
        1: (1.5, "2.2500", [3], {"k": 4}, None),
        4294967296: (1.1, "2.1234", [70000], {"k": 5000000000}, 7),
    }
    again = stream.check_schema(wide.drop("n").schema)
    assert (again.changes, again.not_written) == ((), ("n",))


@pytest.mark.parametrize("kind", ["STRING NOT NULL", "STRING"])
@pytest.mark.parametrize("text", [b"", b"__HIVE_DEFAULT_PARTITION__", b"\x80x"])
def test_a_text_that_a_partition_column_would_change_ends_the_write(spark, table, text, kind):
    """Delta stores a null for it, which it could not read again where the column is NOT NULL, or U+FFFD."""
    spark.sql(f"CREATE TABLE delta.`{table}` (text {kind}, n INT) USING delta PARTITIONED BY (text)")
    stream = _stream(spark, table)
    rows = spark.createDataFrame([(b"good", 1), (text, 2)], "t BINARY, n INT").selectExpr("STRING(t) AS TEXT", "n")
    with pytest.raises(
        SchemaMismatchError, match=r"the row of a record has an empty string, .* in a partition column of"
    ):
        TableWriter(stream).commit(rows, _document(stream.anchor(), "a"))
    assert spark.table(stream.target.identifier).count() == 0


def test_a_value_is_not_padded(spark, table):
    spark.sql(f"CREATE TABLE delta.`{table}` (c CHAR(5), v VARCHAR(5), s STRUCT<c: CHAR(2)>) USING delta")
    for column, batch in (("c", "C STRING"), ("s", "s STRUCT<c: STRING>")):
        with pytest.raises(SchemaMismatchError, match=f"the column {column} of .* whose values Spark pads with spaces"):
            _stream(spark, table).check_schema(_struct(batch))
    _stream(spark, table).check_schema(_struct("v STRING"))


def test_bytes_are_not_written_into_a_partition_column(spark, table):
    spark.sql(f"CREATE TABLE delta.`{table}` (kafka_key BINARY, n INT) USING delta PARTITIONED BY (kafka_key)")
    with pytest.raises(SchemaMismatchError, match="is partitioned by the BINARY kafka_key, and Delta would change"):
        _stream(spark, table).check_schema(_struct("KAFKA_KEY BINARY, n INT"))


def test_a_required_field_that_the_batch_lacks_is_reported_at_any_depth(spark, table):
    spark.sql(f"CREATE TABLE delta.`{table}` (s STRUCT<a: INT, b: INT NOT NULL>) USING delta")
    with pytest.raises(SchemaMismatchError, match=r"requires s\.b, which the batch does not have"):
        _stream(spark, table).check_schema(_struct("s STRUCT<a: INT>"))


@pytest.mark.parametrize(("evolves", "allowed"), [(False, "true"), (True, "false")])
def test_types_that_may_not_be_widened_stop_the_run_and_how_to_widen_them_is_reported(spark, table, evolves, allowed):
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id INT, name STRING) USING delta "
        f"TBLPROPERTIES ('delta.enableTypeWidening' = '{allowed}')"
    )
    stream = DeltaTable(spark, DeltaTarget(table=table, schema_evolution=evolves))
    with pytest.raises(SchemaMismatchError) as error:
        stream.check_schema(_struct("id BIGINT, name STRING, note STRING"))
    step = (
        "set the property 'delta.enableTypeWidening'"
        if evolves
        else "set schema_evolution of its DeltaTarget to true; or cast"
    )
    message = f"the column id is int in the table and bigint in the batch. To widen it, {step}"
    assert message in str(error.value)
    assert str(error.value).endswith("The table (-) and the batch (+):\n- id int\n+ id bigint\n+ note string")
    # What Delta does not widen by itself is never tried.
    for other in ("id DOUBLE", "id DECIMAL(20, 0)", "id STRING", "id SMALLINT"):
        with pytest.raises(SchemaMismatchError, match="cast in the transform, or use another table"):
            stream.check_schema(_struct(f"{other}, name STRING"))


def test_a_column_that_only_the_table_has_is_filled_with_nulls_and_case_does_not_matter(spark, table):
    stream = _stream(spark, table)
    rows = _rows(spark, 1).selectExpr("id AS ID")
    assert TableResult(written=stream.check_schema(rows.schema)).columns == (("id", "bigint"), ("name", "string"))
    TableWriter(stream).commit(rows, _document(stream.anchor(), "a"))
    assert landed.rows(table, "id", "name") == [(1, None)]


def test_schema_evolution_adds_columns_and_keeps_document_and_fence(spark, table):
    stream = _stream(spark, table, schema_evolution=True)
    anchor = stream.anchor()
    rows = _rows(spark, 1).selectExpr("id", "named_struct('a', 1) AS added")
    assert TableResult(written=stream.check_schema(rows.schema)).columns == (
        ("id", "bigint"),
        ("name", "string"),
        ("added", "struct<a:int>"),
    )
    TableWriter(stream).commit(rows, _document(anchor, "a"))
    wider = _rows(spark, 2).selectExpr("id", "name", "named_struct('a', 2, 'b', 3) AS added")
    stream.check_schema(wider.schema)
    TableWriter(stream).commit(wider, _document(stream.anchor(), "b", offset=2))
    with pytest.raises(ConcurrentIngestionError):
        TableWriter(stream).commit(wider, _document(anchor, "c", offset=2))
    found = stream.anchor()
    assert found is not None
    assert (found.state, found.version, found.table_rows) == (EnumeratorState({_T0: 2}), 2, 2)
    rows = spark.read.format("delta").load(table).orderBy("id").selectExpr("id", "name", "added.a", "added.b")
    assert [tuple(row) for row in rows.collect()] == [(1, None, 1, None), (2, "n2", 2, 3)]


@pytest.mark.parametrize("option", ["partition_by", "cluster_by"])
def test_a_column_that_the_rows_lack_is_named_before_the_table_is_made(spark, table, option):
    target = DeltaTarget(table=table).model_copy(update={option: ("custmer",)})
    with pytest.raises(
        ConfigurationError, match=rf"^{option}: the rows of .* no column 'custmer'; did you mean customer"
    ):
        DeltaTable(spark, target).create(StructType().add("customer", "string").add("amount", "double"))
    assert not Path(table).exists()


def test_a_missing_store_jar_is_named_with_its_setting(spark):
    table = DeltaTable(spark, DeltaTarget(table="s3a://bucket/orders", single_writer=True))
    with pytest.raises(TableError) as error:
        table.anchor()
    assert 'packages=["org.apache.hadoop:hadoop-aws:' in str(error.value)
    table = DeltaTable(spark, DeltaTarget(table="s3://bucket/orders", single_writer=True))
    with pytest.raises(
        TableError,
        match=r"\. Name the table, or its catalog's location, with s3a://; or set spark\.hadoop\.fs\.s3\.impl=",
    ):
        table.anchor()
