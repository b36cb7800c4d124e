"""Maxwell's, Canal's and GoldenGate's JSON on real Spark: what plain Python makes of it, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.ingestion.keyed_stream import change_rows, with_tombstones
from tests.formats.decoding import records
from tests.formats.test_debezium import appended, reasons

spark_test = pytest.mark.spark

COLUMNS = "id BIGINT NOT NULL, name STRING, weight DECIMAL(5, 2)"


def maxwell(kind, data=None, old=None, **more):
    about = {"database": "shop", "table": "products", "ts": 1596684904, "xid": 7201, "commit": True}
    return {**about, "type": kind, "data": data, **({} if old is None else {"old": old}), **more}


def canal(kind, data=None, old=None, **more):
    about = {"database": "shop", "table": "products", "es": 1589373560000, "ts": 1589373560798, "id": 9, "sql": ""}
    return {**about, "type": kind, "data": data, "old": old, "isDdl": False, "pkNames": ["id"], **more}


def ogg(kind, after=None, before=None, **more):
    about = {"table": "OGG.TEST", "op_ts": "2020-05-13 15:40:06.000000", "current_ts": "2020-05-13T15:40:07.000000"}
    return {**about, "op_type": kind, "pos": "1", "before": before, "after": after, "primary_keys": ["id"], **more}


def row(number, name=None, weight=None):
    return {"id": number, "name": name, "weight": weight}


def texts(values):
    return {name: None if value is None else str(value) for name, value in values.items()}


def changes_of(spark, form, key, *values):
    """The changes of keys in their order: whether each deletes, and its row."""
    decoder = Decoder.of(None, form, KafkaColumns())
    found = change_rows(decoder.stage(with_tombstones(records(spark, values))), decoder, key).collect()
    return [
        (each["kafka_offset"], each["kafka_deleted"], each["id"], each["name"])
        for each in sorted(found, key=lambda each: each["kafka_offset"])
    ]


WEIGHT = Decimal("5.15")


@pytest.mark.parametrize(
    ("form", "insert", "update", "delete", "snapshot"),
    [
        (
            MaxwellFormat(COLUMNS, metadata=("before",)),
            maxwell("insert", row(1, "a", 5.15)),
            maxwell("update", row(1, None, 5.15), {"name": "a"}),
            maxwell("delete", row(1, None, 5.15)),
            maxwell("bootstrap-insert", row(2, "b")),
        ),
        (
            OggFormat(COLUMNS, metadata=("before",)),
            ogg("I", row(1, "a", "5.15")),
            ogg("U", row(1, None, "5.15"), row(1, "a", "5.15")),
            ogg("D", None, row(1, None, "5.15")),
            None,
        ),
        (
            CanalFormat(COLUMNS, metadata=("before",)),
            canal("INSERT", [texts(row(1, "a", 5.15))]),
            canal("UPDATE", [texts(row(1, None, 5.15))], [{"name": "a"}]),
            canal("DELETE", [texts(row(1, None, 5.15))]),
            None,
        ),
    ],
)
@spark_test
def test_changes_land_as_they_are(spark, form, insert, update, delete, snapshot):
    rows = appended(spark, form, insert, update, delete, snapshot)
    changed = row(1, None, WEIGHT)
    expected: dict[int, Any] = {0: (row(1, "a", WEIGHT), "insert", None), 1: (changed, "update", row(1, "a", WEIGHT))}
    expected[2] = (changed, "delete", changed)
    if snapshot is not None:
        expected[3] = (row(2, "b"), "read", None)
    assert {
        offset: ({name: each[name] for name in changed}, each["kafka_op"], each["before"])
        for offset, each in rows.items()
    } == expected
    assert "kafka_unavailable" not in rows[0]


@spark_test
def test_records_without_a_row_are_counted_by_what_they_are(spark):
    of_maxwell = ["table-create", "table-drop", "database-alter", "bootstrap-start", "bootstrap-complete"]
    for form, values, expected in (
        (MaxwellFormat(COLUMNS), [maxwell(kind) for kind in of_maxwell], {"schema change": 3, "bootstrap": 2}),
        (
            CanalFormat(COLUMNS, database="shop", table="products", on_truncate="skip"),
            [
                canal("ALTER", isDdl=True),
                canal("INSERT", [{"id": "x"}], table="others"),
                canal("TRUNCATE", isDdl=True, database="other"),
                canal("TRUNCATE", isDdl=True),
                None,
            ],
            {"schema change": 1, "other table": 2, "truncate": 1, "tombstone": 1},
        ),
        (OggFormat(COLUMNS, on_truncate="skip"), [ogg("T"), None], {"truncate": 1, "tombstone": 1}),
    ):
        decoder = Decoder.of(None, form, None)
        staged = decoder.stage(records(spark, values))
        counts = [count.alias(name) for name, count in decoder.event_counts().items()]
        counted: Any = staged.agg(*counts).first()
        assert {name: number for name, number in counted.asDict().items() if number} == expected
        assert appended(spark, form, *values) == {}
    for form, truncate in ((CanalFormat(COLUMNS), canal("TRUNCATE", isDdl=True)), (OggFormat(COLUMNS), ogg("T"))):
        (landed,) = appended(spark, form, truncate).values()
        assert (landed["id"], landed["name"], landed["kafka_op"]) == (None, None, "truncate")


@spark_test
def test_records_that_do_not_change_a_row_are_rejected_with_a_reason(spark):
    wrong = "is unknown (expected"
    for form, values, kind, update, (side, old), kinds in (
        (
            MaxwellFormat(COLUMNS, show_values=True),
            [maxwell("replace"), maxwell("insert"), maxwell("insert", {"name": "a"}), maxwell("update", row("x"))],
            "type",
            "update",
            ("data", "old"),
            "insert, update, delete, bootstrap-insert",
        ),
        (
            OggFormat(COLUMNS, show_values=True),
            [ogg("X"), ogg("I"), ogg("I", {"name": "a"}), ogg("U", row("x"))],
            "op_type",
            "U",
            ("after", "before"),
            "I, U, D, T",
        ),
    ):
        name = type(form).__name__.removesuffix("Format")
        partial = {**values[0], kind: update, side: {"id": 1}, old: {"id": 1}}
        blind = {**partial, side: row(1), old: None}
        insert = values[2]
        gone = {kind: "D" if update == "U" else "delete", "data": {}, "before": {}}
        empty = [{**insert, side: {}}, gone, {**gone, side: {"id": None}, "before": {"id": None}}]
        rounded = json.loads(json.dumps(values[2]).replace('{"name": "a"}', '{"id": 1, "weight": "1.239"}'))
        assert reasons(spark, form, b"\xff", b"[]", b"{", {"id": 1}, *values, rounded, partial, blind, *empty) == [
            "not valid UTF-8",
            "not a JSON object",
            "not valid JSON",
            f"not a change of {name}: it has no {kind}",
            f"not a change of {name}: its {kind} {wrong} {kinds})",
            f"the insert event has no {side}",
            f"the required field {side}.id is missing or null",
            f"the value of {side}.id does not fit BIGINT: x",
            f"the value of {side}.weight has more digits than DECIMAL(5,2) holds: 1.239",
            "the update lacks the column name, weight; the connector must write whole rows",
            f"the update has no previous values ({old}), so it is unknown whether its key changed",
            "the insert event has an empty row",
            "the delete event has an empty row",
            None,
        ]
    two = [texts(row(1)), {"id": "1.5"}]
    values = [
        canal("QUERY"),
        canal("INSERT"),
        canal("INSERT", []),
        canal("INSERT", [{"name": "a"}]),
        canal("INSERT", two),
    ]
    values += [canal("UPDATE", [texts(row(1, "a", "1.239"))]), canal("INSERT", [None]), canal("DELETE", [{"id": None}])]
    values += [canal("DELETE", [texts(row(1)), {}]), canal("TRUNCATE")]
    assert reasons(spark, CanalFormat(COLUMNS), *values) == [
        f"not a change of Canal: its type {wrong} INSERT, UPDATE, DELETE, TRUNCATE)",
        "the insert event has no data",
        "the insert event has no data",
        "the required field data.id is missing or null",
        "the value of data.id does not fit BIGINT",
        "the value of data.weight has more digits than DECIMAL(5,2) holds",
        "the insert event has no data",
        None,
        "the delete event has an empty row",
        None,
    ]
    twice = json.dumps(canal("INSERT", [texts(row(1))])).replace('"id": "1"', '"id": "1", "id": "2"').encode()
    both = json.dumps(canal("INSERT", [texts(row(1))])).replace('"old"', '"data": [], "old"').encode()
    half = canal("INSERT", [texts(row(1, "\ud83d"))])
    values = [twice, both, half, {**half, "table": "others"}]
    assert reasons(spark, CanalFormat(COLUMNS, table="products"), *values) == [
        "the field data.id is there twice",
        "the field data is there twice",
        "the value of data.name has half of a surrogate pair",
        None,
    ]
    updates = [
        canal("UPDATE", [{"id": "1", "name": "a"}], [{}]),
        *(canal("UPDATE", [texts(row(1)), texts(row(2))], old) for old in (None, [{}], [{}, None], [{}, {}])),
        canal("INSERT", [texts(row(1))], table=None),
        # Rounded, it would be the key of another row, which the change would delete.
        canal("UPDATE", [texts(row(1, "a", "2.00"))], [{"weight": "1.239"}]),
    ]
    blind = "the update has no previous values (old), so it is unknown whether its key changed"
    assert reasons(spark, CanalFormat(COLUMNS, table="products"), *updates) == [
        "the update lacks the column weight; the connector must write whole rows",
        blind,
        blind,
        blind,
        None,
        "the record names no table",
        "the value of old.weight has more digits than DECIMAL(5,2) holds",
    ]


@spark_test
def test_metadata_are_columns_that_were_asked_for(spark):
    moment = dt.datetime(2020, 8, 6, 3, 35, 4, tzinfo=dt.timezone.utc)
    form = MaxwellFormat("id INT", metadata=("source_timestamp", "source_database", "source_table", "primary_key"))
    (found,) = appended(spark, form, maxwell("insert", {"id": 1}, primary_key_columns=["id"])).values()
    assert found["source_timestamp"].astimezone(dt.timezone.utc) == moment
    assert (found["source_database"], found["source_table"], found["primary_key"]) == ("shop", "products", ["id"])
    form = CanalFormat("id INT", metadata=("source_table", "source_timestamp", "ingestion_timestamp", "primary_key"))
    (found,) = appended(spark, form, canal("INSERT", [{"id": 1}])).values()
    assert (found["source_table"], found["primary_key"]) == ("products", ["id"])
    assert (found["ingestion_timestamp"] - found["source_timestamp"]).total_seconds() == 0.798
    form = OggFormat("id INT", metadata=("source_table", "source_timestamp", "ingestion_timestamp", "primary_key"))
    (found,) = appended(spark, form, ogg("I", {"id": 1})).values()
    assert (found["source_table"], found["source_timestamp"]) == ("OGG.TEST", dt.datetime(2020, 5, 13, 15, 40, 6))  # noqa: DTZ001
    assert (found["ingestion_timestamp"] - found["source_timestamp"]).total_seconds() == 1
    times = [{"ts": "soon"}, {"ts": 10**12}, {"ts": None}]
    assert reasons(
        spark,
        MaxwellFormat("id INT", metadata=("source_timestamp",)),
        *(maxwell("insert", {"id": 1}, **each) for each in times),
    ) == [*["ts does not fit source_timestamp"] * 2, None]
    assert (
        reasons(spark, MaxwellFormat("id INT"), *(maxwell("insert", {"id": 1}, **each) for each in times)) == [None] * 3
    )
    wrong = [ogg("I", {"id": 1}, op_ts="soon"), ogg("I", {"id": 1}, current_ts="2020-13-01 00:00:00")]
    assert reasons(spark, form, *wrong) == [
        "op_ts does not fit source_timestamp",
        "current_ts does not fit ingestion_timestamp",
    ], "no null stands for what could not be read"


@spark_test
def test_an_update_that_changes_the_key_deletes_the_previous_row(spark):
    for form, value in (
        (MaxwellFormat(COLUMNS), maxwell("update", row(2, "b"), {"id": 1, "name": None})),
        (OggFormat(COLUMNS), ogg("U", row(2, "b"), row(1))),
        (CanalFormat(COLUMNS), canal("UPDATE", [texts(row(2, "b"))], [{"id": "1", "name": None}])),
    ):
        assert changes_of(spark, form, ["id"], value) == [(0, True, 1, None), (0, False, 2, "b")]
    # What all rows of a record have in common may be in the key, too.
    assert changes_of(spark, CanalFormat(COLUMNS), ["kafka_topic", "id"], value) == [
        (0, True, 1, None),
        (0, False, 2, "b"),
    ]


_ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=4
)


@spark_test
@settings(max_examples=3)
@given(written=st.lists(st.tuples(st.sampled_from(["INSERT", "UPDATE", "DELETE"]), _ROWS), min_size=10, max_size=30))
def test_several_rows_of_a_record_end_in_the_last_of_each_key(spark, written):
    values, expected = [], []
    for offset, (kind, rows) in enumerate(written):
        is_update = kind == "UPDATE"
        old = [{"name": "z"} if before is None else {"id": str(before)} for _, before, _ in rows] if is_update else None
        values.append(canal(kind, [texts(row(number, name)) for number, _, name in rows], old))
        last = {}
        for number, before, _ in rows:
            if is_update and before not in {None, number}:
                last[before] = (offset, True, before)
            last[number] = (offset, kind == "DELETE", number)
        expected += sorted(last.values())
    found = changes_of(spark, CanalFormat(COLUMNS), ["id"], *values)
    assert sorted(each[:3] for each in found) == sorted(expected)
    by_key = {(offset, number): name for offset, (_, rows) in enumerate(written) for number, _, name in rows}
    assert all(by_key[offset, number] == name for offset, deleted, number, name in found if not deleted)


def test_wrong_options_are_refused_where_they_are_written():
    with pytest.raises(ConfigurationError, match="unsupported type BINARY in Canal's JSON"):
        CanalFormat("a INT, b BINARY")
    for name in ("database", "table"):
        with pytest.raises(ConfigurationError, match=f"{name}: empty"):
            CanalFormat("a INT", **{name: ""})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="unsupported type ARRAY"):
        CanalFormat("a ARRAY<INT>")
    with pytest.raises(ConfigurationError, match="metadata"):
        MaxwellFormat("a INT", metadata=("ingestion_timestamp",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="key_format: OggFormat decodes values"):
        Decoder.of(OggFormat("a INT"), None, None)
