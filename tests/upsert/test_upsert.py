"""A table that follows its keys: the current row of each, whatever a batch holds of it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from dagster_kafka_flip.errors import ConfigurationError, KeyOrderUnknownError, NullKeyError, SchemaMismatchError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.observation import Observed
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.commit import MergedRows
from dagster_kafka_flip.table.mode import Upsert
from tests import landed
from tests.upsert.conftest import change

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_the_table_has_the_current_row_of_each_key_and_the_run_reports_its_changes(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b"), change(1, "c"), change(3, "d")])
    first = follow()
    assert first.merged == MergedRows(inserted=3, updated=0, deleted=0, unchanged=0)
    assert (first.records, first.rejected_records, first.rows, first.known.table_rows) == (4, 0, 3, 3)
    assert landed.rows(table, "id", "name", "kafka_offset") == [(1, "c", 2), (2, "b", 1), (3, "d", 3)]
    assert "kafka_deleted" not in dict(first.columns)

    kafka.produce(topic, [change(2), change(3, "e"), change(9), change(4, "f")])
    second = follow()
    assert second.merged == MergedRows(inserted=1, updated=1, deleted=1, unchanged=1)
    assert (second.records, second.rows, second.known.table_rows) == (4, 2, 3)
    assert landed.rows(table, "id", "name") == [(1, "c"), (3, "e"), (4, "f")]
    assert follow().is_idle

    kafka.produce(topic, [change(9)] * 2)
    third = follow(limits=Limits(max_records_per_batch=1))
    assert [batch.committed.merged for batch in third.batches] == [MergedRows(0, 0, 0, 1)] * 2
    assert third.known.table_rows == 3
    assert follow().is_idle, "the position moves where nothing else does"
    assert landed.operations(table) == ["CREATE TABLE", *["MERGE"] * 4]


@pytest.fixture
def adaptive(spark):
    """Spark plans as it does for users: then it drops the observation of what is empty."""
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    yield
    spark.conf.set("spark.sql.adaptive.enabled", "false")


def test_a_batch_without_a_record_is_known_to_have_none(kafka, follow, topic, adaptive):
    # As after compaction: offsets, and nothing in them.
    kafka.create(topic)
    kafka.open_transaction(topic, [change(1, "a")]).abort()
    (batch,) = follow(
        target={"mode": Upsert(key=("kafka_key",))}, key_format=StringFormat(), value_format=StringFormat()
    ).batches
    assert batch.plan.offset_span == 2
    assert batch.observed == Observed(records=0, bytes=0, rejected=0)


def test_a_batch_is_read_once_and_counted_and_rewrites_no_file(kafka, follow, topic, table, tmp_path):
    def counted(records):
        def note(batches):
            rows = 0
            for batch in batches:
                rows += batch.num_rows
                yield batch
            (tmp_path / f"read-{uuid.uuid4().hex}").write_text(str(rows))

        return records.mapInArrow(note, records.schema)

    kafka.create(topic)
    for changes in ([change(1, "a"), change(2, "b"), change(3, "c")], [change(4, "d")], [change(1), change(2, "e")]):
        kafka.produce(topic, changes)
        result = follow(transform=counted)
        notes = list(tmp_path.glob("read-*"))
        assert sum(int(note.read_text()) for note in notes) == len(changes), "each record was read once"
        for note in notes:
            note.unlink()
        size = sum(len(key) + len(value or "") for key, value in changes)
        assert (result.records, result.bytes) == (len(changes), size)
        assert landed.history(table, 1)[0]["operationMetrics"]["numTargetFilesRemoved"] == "0", changes
    metrics = landed.history(table, 1)[0]["operationMetrics"]
    assert int(metrics["numTargetDeletionVectorsAdded"]) > 0, "replaced rows are marked"
    assert landed.rows(table, "id", "name") == [(2, "e"), (3, "c"), (4, "d")]


def test_a_transform_marks_deletes_and_an_empty_batch_moves_the_position(kafka, follow, topic, table):
    from pyspark.sql import functions as f

    def transform(records):
        """No compaction: deletes are records of their own."""
        return (
            records.withColumn("kafka_deleted", f.coalesce(f.col("name") == "gone", f.lit(False)))
            .withColumn("id", f.col("kafka_key").cast("bigint"))
            .where("id < 100")
            .drop("kafka_key", "kafka_headers", "kafka_timestamp_type")
        )

    options = {"key_format": StringFormat(), "value_format": JsonFormat(schema="name STRING"), "transform": transform}
    kafka.create(topic)
    kafka.produce(topic, [("1", '{"name": "a"}'), ("2", '{"name": "b"}'), ("3", '{"name": "c"}')])
    follow(**options)
    kafka.produce(topic, [("1", '{"name": "gone"}'), ("2", None)])
    assert follow(**options).merged == MergedRows(inserted=0, updated=1, deleted=1, unchanged=0)
    assert landed.rows(table, "id", "name") == [(2, None), (3, "c")], "the function made the tombstone an update"

    kafka.produce(topic, [("100", '{"name": "d"}')])
    left_out = follow(**options)
    assert (left_out.merged, left_out.records, left_out.known.table_rows) == (MergedRows(0, 0, 0, 0), 1, 2)
    assert follow(**options).is_idle
    assert landed.operations(table) == ["CREATE TABLE", "MERGE", "MERGE", "WRITE"]


def test_a_row_without_a_key_ends_the_run_and_says_which_record_it_is(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), ('{"id": null}', '{"name": "b"}')])
    with pytest.raises(NullKeyError, match=rf"^the row of {topic}-0 offset 1 has no value in a column that identifies"):
        follow()
    assert landed.operations(table) == ["CREATE TABLE"]

    # With an undecoded key there is nothing to fill a tombstone's columns from.
    kafka.trim(topic, 0, 2)
    kafka.produce(topic, [change(3)])
    with pytest.raises(NullKeyError, match=r"take its key from the record's key, with key_format or in the transform"):
        follow(target={"table": f"{table}-raw"}, key_format=None)


def test_a_tombstone_whose_key_does_not_fit_the_column_deletes_no_other_row(kafka, follow, topic, table):
    options: dict[str, Any] = {
        "key_format": JsonFormat(schema="id DECIMAL(10, 3), at STRUCT<x: INT, y: INT>"),
        "value_format": JsonFormat(schema="id DECIMAL(10, 2), at STRUCT<x: INT, y: INT>"),
        "target": {"mode": Upsert(key=("id", "at"))},
    }
    row = '{"id": %s, "at": {"x": 1, "y": 2}}'
    kafka.create(topic)
    kafka.produce(topic, [(row % 1.23, row % 1.23), (row % 4.56, row % 4.56), (row % 4.56, None)])
    assert follow(**options).merged == MergedRows(inserted=1, updated=0, deleted=0, unchanged=1)
    # Rounded to the column's scale, it would be the key of the row.
    kafka.produce(topic, [(row % 1.234, None)])
    as_text = {
        "key_format": JsonFormat(schema="id STRING, at STRUCT<x: INT, y: INT>"),
        "target": {**options["target"], "table": f"{table}-text"},
    }
    for changed in ({}, as_text):
        with pytest.raises(NullKeyError, match=rf"^the row of {topic}-0 offset 3 has no value .* or none that fits"):
            follow(**{**options, **changed})
    for key, found in (
        # Spark would take these fields by their order, and a number for seconds.
        ("at STRUCT<y: INT, x: INT>", "at is struct<y:int,x:int> in the record's key and struct<x:int,y:int> in the"),
        ("day BIGINT", "day is bigint in the record's key and timestamp in the value"),
    ):
        value = JsonFormat(schema="id BIGINT, at STRUCT<x: INT, y: INT>, day TIMESTAMP")
        target = {"table": f"{table}-other", "mode": Upsert(key=("id", key.split()[0]))}
        with pytest.raises(ConfigurationError, match=found):
            follow(key_format=JsonFormat(schema=f"id BIGINT, {key}"), value_format=value, target=target)
    assert len(landed.rows(table, "id")) == 1


def test_a_key_that_is_not_utf_8_finds_its_row(kafka, follow, spark, topic, table):
    from pyspark.sql import functions as f

    # Python, and the lowest and highest values that Delta keeps for a file, have U+FFFD for such bytes.
    keys = [b"a", b"\x80", "é".encode()]
    options = {
        "key_format": RawFormat(),
        "value_format": StringFormat(),
        "transform": lambda rows: rows.withColumn("kafka_key", f.col("kafka_key").cast("string")),
    }
    target = {"mode": Upsert(key=("kafka_key",))}
    kafka.create(topic)

    def landed_keys():
        rows = spark.table(f"delta.`{table}`").selectExpr("hex(kafka_key) AS key").orderBy("key").collect()
        return [bytes.fromhex(row.key) for row in rows]

    for changed in (keys[1:2], keys):
        kafka.produce(topic, [(key, "a") for key in changed])
        follow(target=target, **options)
    assert landed_keys() == keys
    kafka.produce(topic, [(key, None) for key in keys[1:]])
    follow(target=target, **options)
    assert landed_keys() == keys[:1]


@pytest.mark.nightly
def test_an_empty_text_in_a_key_that_partitions_the_table_is_refused(kafka, follow, topic, table):
    value = JsonFormat(schema="id STRING, n INT")
    target = {"mode": Upsert(key=("id", "n")), "partition_by": ("id",)}
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"id": "a", "n": 1}')])
    follow(value_format=value, target=target)
    kafka.produce(topic, [(None, '{"id": "", "n": 1}')])
    with pytest.raises(NullKeyError, match=rf"^the row of {topic}-0 offset 1 has an empty string"):
        follow(value_format=value, target=target)
    assert landed.rows(table, "id", "n") == [("a", 1)]
    # Elsewhere it is a key as any other.
    free = {"table": f"{table}-free", "mode": Upsert(key=("id", "n"))}
    assert follow(value_format=value, target=free).rows == 2


def test_a_float_key_does_not_become_a_double(kafka, follow, topic, table):
    target = {"properties": {"delta.enableTypeWidening": "true"}, "schema_evolution": True}
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"id": 0.1}')])
    follow(target=target, value_format=JsonFormat(schema="id FLOAT"))
    kafka.produce(topic, [(None, '{"id": 0.1}')])
    with pytest.raises(SchemaMismatchError, match="is FLOAT, but DOUBLE in the batch"):
        follow(target=target, value_format=JsonFormat(schema="id DOUBLE"))
    assert follow(target=target, value_format=JsonFormat(schema="id FLOAT")).merged == MergedRows(0, 1, 0, 0)


def test_the_fields_of_a_struct_key_keep_their_order(kafka, follow, topic, table):
    target = {"mode": Upsert(key=("kafka_key",))}
    options = {"value_format": JsonFormat(schema="n INT"), "target": target}
    kafka.create(topic)
    kafka.produce(topic, [('{"map_a": 1, "b": 2}', '{"n": 1}'), ('{"map_a": 2, "b": 1}', '{"n": 2}')])
    follow(key_format=JsonFormat(schema="map_a INT, b INT"), **options)
    kafka.produce(topic, [('{"map_a": 1, "b": 2}', '{"n": 3}')])
    with pytest.raises(SchemaMismatchError, match="Spark compares the fields of a key by their order"):
        follow(key_format=JsonFormat(schema="b INT, map_a INT"), **options)
    assert landed.rows(table, "n") == [(1,), (2,)]
    follow(key_format=JsonFormat(schema="map_a INT, b INT"), **options)
    assert landed.rows(table, "n") == [(2,), (3,)]


def test_a_row_that_does_not_say_whether_it_deletes_ends_the_run(kafka, follow, topic, table):
    from pyspark.sql import functions as f

    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(1)])
    # Of a tombstone the name is null, and so is the comparison.
    with pytest.raises(ConfigurationError, match=rf"returns a row of {topic}-0 offset 1 whose kafka_deleted is null"):
        follow(transform=lambda records: records.withColumn("kafka_deleted", f.col("name") == "gone"))
    assert landed.operations(table) == ["CREATE TABLE"]


def test_a_key_in_two_topic_partitions_ends_the_run_in_one_batch_and_in_two(kafka, follow, topic, table):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [change(1, "a"), change(2, "x")], partition=0)
    kafka.produce(topic, [change(3, "y")], partition=1)
    follow()
    # A delete is no better known than an update.
    kafka.produce(topic, [change(1)], partition=1)
    both = rf"^{topic}-1 offset 1 and {topic}-0 offset 0 have the same key \(id\), and Kafka orders records only within"
    with pytest.raises(KeyOrderUnknownError, match=both):
        follow()
    assert landed.rows(table, "id", "name") == [(1, "a"), (2, "x"), (3, "y")]
    with pytest.raises(KeyOrderUnknownError, match=both):
        follow(target={"table": f"{table}-at-once"})
    assert landed.operations(f"{table}-at-once") == ["CREATE TABLE"]


def test_a_record_that_becomes_several_rows_of_one_key_ends_the_run(kafka, follow, topic):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    with pytest.raises(KeyOrderUnknownError, match=rf"several rows with the same key \(id\) for the record {topic}-0 "):
        follow(transform=lambda records: records.union(records.where("id = 2")))


@pytest.mark.parametrize(
    ("column", "change_it", "reported"),
    [
        ("kafka_deleted", lambda rows: rows.drop("kafka_deleted"), "have no column kafka_deleted, which its mode"),
        ("kafka_offset", lambda rows: rows.drop("kafka_offset", "id"), r"have no column id, kafka_offset, which its"),
        (
            "kafka_deleted",
            lambda rows: rows.selectExpr("* EXCEPT (kafka_deleted)", "1 AS kafka_deleted"),
            "not boolean",
        ),
    ],
)
def test_a_transform_that_drops_what_a_change_needs_is_refused_before_there_is_a_table(
    kafka, follow, topic, table, column, change_it, reported
):
    kafka.create(topic)
    with pytest.raises(ConfigurationError, match=reported) as raised:
        follow(transform=change_it)
    assert column in str(raised.value)


@pytest.mark.parametrize(
    ("field", "transform"), [("previous_key STRING", None), ("UNAVAILABLE ARRAY<STRING>", lambda records: records)]
)
def test_a_field_that_the_table_would_not_get_is_refused(kafka, follow, topic, table, field, transform):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a")])
    with pytest.raises(ConfigurationError, match=r"and is not landed\. Nothing was written\. Set another [\w ]+$"):
        follow(value_format=JsonFormat(f"id BIGINT, {field}"), columns=KafkaColumns(prefix=""), transform=transform)
    assert not Path(table).exists()


def test_new_columns_are_added_and_what_others_added_is_kept(kafka, follow, spark, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    follow()
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (note STRING)")
    spark.sql(f"UPDATE delta.`{table}` SET note = 'kept'")
    kafka.produce(topic, [(change(1)[0], json.dumps({"id": 1, "name": "c", "age": 7}))])
    result = follow(
        target={"schema_evolution": True}, value_format=JsonFormat(schema="id BIGINT, name STRING, age INT")
    )
    assert result.column_changes == ("+ age int",)
    assert (result.merged, result.known.table_rows) == (MergedRows(0, 1, 0, 0), 2)
    assert landed.rows(table, "id", "name", "note", "age") == [(1, "c", "kept", 7), (2, "b", "kept", None)]


def test_structs_have_the_table_s_fields_in_its_order_and_a_null_stays_one_as_in_an_append(
    kafka, follow, spark, topic, table
):
    inside = "a: INT"
    value = f"id BIGINT, s STRUCT<{inside}>, l ARRAY<STRUCT<{inside}>>, m MAP<STRING, STRUCT<s: STRUCT<{inside}>>>"
    options = {"value_format": JsonFormat(schema=value)}
    kafka.create(topic)
    kafka.produce(topic, [(change(1)[0], '{"id": 1, "s": {"a": 1}}')])
    follow(**options)
    for column in ("s.b", "l.element.b", "m.value.s.b"):
        spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS ({column} INT FIRST)")
    spark.sql(f"UPDATE delta.`{table}` SET s = named_struct('b', 2, 'a', 1)")
    full = '"s": {"a": 3}, "l": [{"a": 4}, null], "m": {"k": {"s": {"a": 5}}}'
    kafka.produce(topic, [(change(1)[0], f'{{"id": 1, {full}}}'), (change(2)[0], '{"id": 2}')])
    follow(**options)

    def rows():
        found = spark.table(f"delta.`{table}`").orderBy("id").select("s", "l", "m.k.s").collect()
        return [tuple(map(str, row)) for row in found]

    nothing = ("None", "None", "None")
    assert rows() == [("Row(b=None, a=3)", "[Row(b=None, a=4), None]", "Row(b=None, a=5)"), nothing]

    # The writer adds a field in the middle, which the table gets at the end.
    inside = "a: INT, c: INT, b: INT"
    wider = f"id BIGINT, s STRUCT<{inside}>, l ARRAY<STRUCT<{inside}>>, m MAP<STRING, STRUCT<s: STRUCT<{inside}>>>"
    full = '"s": {"a": 6, "c": 7}, "l": [null, {"b": 8}], "m": {"k": {"s": null}}'
    kafka.produce(topic, [(change(2)[0], f'{{"id": 2, {full}}}'), (change(3)[0], '{"id": 3}'), (change(1)[0], None)])
    follow(target={"schema_evolution": True}, value_format=JsonFormat(schema=wider))
    assert rows() == [("Row(b=None, a=6, c=7)", "[None, Row(b=8, a=None, c=None)]", "None"), nothing]


def test_the_user_s_settings_change_nothing(kafka, follow, spark, topic, table):
    """Keys that have several spellings, and a session that is strict, or lenient, where Spark's default is not."""
    value = JsonFormat(schema="ID DOUBLE, name STRING")
    options = {"value_format": value, "key_format": JsonFormat(schema="id DOUBLE"), "transform": _not_a_number}
    target = {"cluster_by": ("name",), "properties": {"delta.deletedFileRetentionDuration": "interval 0 hours"}}
    kafka.create(topic)
    for ansi, name in (("true", "a"), ("false", "b")):
        strict = {
            "spark.sql.ansi.enabled": ansi,
            "spark.sql.caseSensitive": ansi,
            "spark.sql.ansi.enforceReservedKeywords": ansi,
            "spark.databricks.delta.schema.autoMerge.enabled": "true",
            "spark.sql.storeAssignmentPolicy": "STRICT" if ansi == "true" else "ANSI",
        }
        before = {setting: spark.conf.get(setting, None) for setting in strict}
        zero = "0.0" if ansi == "true" else "-0.0"
        kafka.produce(topic, [(None, f'{{"ID": {number}, "name": "{name}"}}') for number in (zero, "7.5", "99")])
        try:
            for setting, set_to in strict.items():
                spark.conf.set(setting, set_to)
            follow(target=target, **options)
        finally:
            for setting, set_to in before.items():
                spark.conf.unset(setting) if set_to is None else spark.conf.set(setting, set_to)
        rows = spark.table(f"delta.`{table}`").collect()
        assert sorted((str(row["ID"]).lstrip("-"), row["name"]) for row in rows) == [
            ("0.0", name),
            ("7.5", name),
            ("nan", name),
        ]
        spark.sql(f"OPTIMIZE delta.`{table}`")
        spark.sql(f"VACUUM delta.`{table}`")
    assert "kafka_deleted" not in spark.table(f"delta.`{table}`").columns


def _not_a_number(records):
    from pyspark.sql import functions as f

    return records.withColumn("ID", f.when(records.ID == 99, f.lit(float("nan"))).otherwise(records.ID))
