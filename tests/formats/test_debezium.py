"""DebeziumFormat on real Spark: what an event says, in the words of plain Python, and nothing else."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.runtime.jvm_library import use_library
from tests.formats.decoding import problems, records

spark_test = pytest.mark.spark

# What PostgreSQL's connector of Debezium 3.2 wrote, with its schemas: one event a line.
RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden" / "debezium_postgres.jsonl").read_text("utf-8").splitlines()
]
CUSTOMERS = "id INT NOT NULL, name STRING NOT NULL, amount STRING, big STRING, ts STRING"
PLACEHOLDER = "__debezium_unavailable_value"
OFFSET = KafkaColumns(fields=("topic", "partition", "offset"))


def event(op, after=None, before=None, **more):
    return {"before": before, "after": after, "source": {"db": "shop"}, "op": op, "ts_ms": 1, **more}


def with_schema(value, name="e"):
    return {"schema": {"type": "struct", "name": name, "optional": False}, "payload": value}


def appended(spark, form, *values):
    """The rows by offset."""
    decoder = Decoder.of(None, form, OFFSET)
    found = decoder.finish(decoder.stage(records(spark, values))).collect()
    return {row["kafka_offset"]: row.asDict(recursive=True) for row in found}


def reasons(spark, form, *values):
    """Why each value is rejected, as an error tells it; None for those that are not."""
    return problems(records(spark, values), form)


@spark_test
def test_recorded_events_become_rows_with_their_schemas_and_without(spark):
    form = DebeziumFormat(CUSTOMERS)
    values = [each["value"] for each in RECORDED]
    bare = [value and value["payload"] for value in values]
    rows = appended(spark, form, *values, *bare)
    for offset, value in enumerate(bare):
        for row in (rows.get(offset), rows.get(offset + len(values))):
            if value is None:
                assert row is None, "a tombstone is no change"
                continue
            assert row is not None
            image = {**(value["before"] if value["op"] == "d" else value["after"])}
            left_out = [name for name, each in image.items() if each == PLACEHOLDER]
            expected = {name: None if name in left_out else each for name, each in image.items()}
            assert {name: row[name] for name in image} == expected
            assert row["kafka_op"] == {"c": "insert", "u": "update", "d": "delete"}[value["op"]]
            assert row["kafka_unavailable"] == (left_out or None)
    assert sum(row["kafka_unavailable"] == ["big"] for row in rows.values()) == 4


def image(number, name, price, tags):
    return {"id": number, "name": name, "price": price, "tags": tags}


_IMAGES = st.builds(
    image,
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=4) | st.just(PLACEHOLDER),
    st.none() | st.decimals(-999, 999, places=2).map(str),
    st.none() | st.lists(st.none() | st.text("ab", max_size=2), max_size=2) | st.just([PLACEHOLDER]),
)
_OTHERS = st.sampled_from(
    [
        None,
        {"ts_ms": 5},
        {"status": "BEGIN", "id": "7:1", "event_count": None, "data_collections": None, "ts_ms": 5},
        {"status": "END", "id": "7:1", "event_count": 1, "data_collections": [{"data_collection": "a"}], "ts_ms": 5},
        {
            "source": {},
            "ts_ms": 1,
            "databaseName": "shop",
            "schemaName": None,
            "ddl": "DROP TABLE a",
            "tableChanges": [],
        },
        {**event("m"), "message": {"prefix": "p", "content": "cA=="}},
    ]
)
_CHANGES = st.one_of(
    st.builds(event, st.sampled_from("cr"), _IMAGES),
    st.builds(event, st.just("u"), _IMAGES, st.none() | _IMAGES),
    st.builds(event, st.just("d"), st.none(), _IMAGES),
    st.just(event("t")),
)


def expected_of(value):
    """What lands of an event; None if nothing does."""
    if value is None or value.get("op") in {None, "m"}:
        return None
    row = value["before" if value["op"] == "d" else "after"]
    op = {"c": "insert", "r": "read", "u": "update", "d": "delete", "t": "truncate"}[value["op"]]
    if row is None:
        return {"id": None, "name": None, "price": None, "tags": None, "op": op, "unavailable": None}
    left_out = [name for name, each in row.items() if each in (PLACEHOLDER, [PLACEHOLDER])]
    kept = {name: None if name in left_out else each for name, each in row.items()}
    price = None if row["price"] is None else Decimal(row["price"])
    return {**kept, "price": price, "op": op, "unavailable": left_out or None}


def event_names(value):
    if value is None:
        return "tombstone"
    names = {"status": "transaction", "ddl": "schema change", "message": "message"}
    return next((reported for name, reported in names.items() if name in value), "heartbeat")


@spark_test
@settings(max_examples=3)
@given(values=st.lists(st.tuples(st.one_of(_CHANGES, _CHANGES, _OTHERS), st.booleans()), min_size=30, max_size=60))
def test_random_events_become_what_plain_python_makes_of_them(spark, values):
    form = DebeziumFormat("id BIGINT, name STRING, price DECIMAL(5, 2), tags ARRAY<STRING>")
    decoder = Decoder.of(None, form, OFFSET)
    written = [value and with_schema(value) if wrapped else value for value, wrapped in values]
    staged = decoder.stage(records(spark, written))
    rows = {row["kafka_offset"]: row for row in decoder.finish(staged).collect()}
    expected = {offset: row for offset, (value, _) in enumerate(values) if (row := expected_of(value)) is not None}
    assert {
        offset: {
            **{name: row[name] for name in ("id", "name", "price", "tags")},
            "op": row["kafka_op"],
            "unavailable": row["kafka_unavailable"],
        }
        for offset, row in rows.items()
    } == expected
    counts = decoder.event_counts()
    counted: Any = staged.agg(*(count.alias(name) for name, count in counts.items())).first()
    left_out = [event_names(value) for value, _ in values if expected_of(value) is None]
    assert {name: number for name, number in counted.asDict().items() if number} == {
        name: left_out.count(name) for name in set(left_out)
    }


@spark_test
def test_a_record_that_is_not_a_row_event_is_rejected_with_its_reason(spark):
    whole = {"id": 1, "name": "a", "price": "1.50", "at": None}
    form = DebeziumFormat(
        "id INT NOT NULL, name STRING NOT NULL, price DECIMAL(3, 2), at TIMESTAMP",
        metadata=("before",),
        show_values=True,
    )
    wrong = {
        "not valid UTF-8": b'{"op": "\xff"}',
        "not a JSON object": b"[1]",
        "not valid JSON": b'{"op": "c", ',
        "not an event of Debezium: it has no op": {"id": 1, "name": "a"},
        "not an event of Debezium: its op is unknown (expected c, u, d, r, t or m)": event("x", whole),
        "the insert event has no after": event("c", None, whole),
        "the delete event has no before": with_schema(event("d", whole)),
        "the delete event has an empty row": event("d", None, {}),
        "the update event has an empty row": with_schema(event("u", {}, whole)),
        "the required field name is missing or null": event("u", {"id": 1}),
        "the value of payload.after.id does not fit INT: x": with_schema(event("u", {**whole, "id": "x"})),
        "the value of before.id does not fit INT: 1.5": event("d", None, {**whole, "id": 1.5}),
        "the value of price has more digits than DECIMAL(3,2) holds: 1.239": event("c", {**whole, "price": "1.239"}),
        f"the value of at is not in the years 1 to 9999 (a bare number is seconds since 1970): {10**12}": event(
            "c", {**whole, "at": 10**12}
        ),
        # What is in two events, or in one and around it, is no change of either.
        "the field op is there twice": b'{"op": "d", "before": {"id": 1}, "op": "c"}',
        "the field before is there twice": b'{"op": "d", "before": {"id": 1}, "before": null}',
        "the field payload is there twice": b'{"payload": {"op": "d", "before": {"id": 1}}, "payload": {"op": "d"}}',
        "the update event has no after": {"payload": event("u", None), "after": whole},
    }
    found = reasons(spark, form, *wrong.values())
    assert len(found) == len(wrong)
    for reported, expected in zip(found, wrong, strict=True):
        assert reported is not None
        assert reported.replace("payload.", "").replace("after.", "") == expected.replace("payload.", "").replace(
            "after.", ""
        )
    almost = [
        {"ts_ms": 5, "id": 1},
        {"status": "BEGIN", "id": "7:1", "ts_ms": 5},
        {"source": {}, "ddl": None},
        with_schema({"ts_ms": 5, "id": 1}),
    ]
    assert reasons(spark, form, *almost) == ["not an event of Debezium: it has no op"] * 4, "a row of a table, perhaps"
    fine = [event("d", None, {"id": 1, "name": None}), event("c", whole), event("t"), {"ts_ms": 5}, None]
    assert reasons(spark, form, *fine) == [None] * 5
    spaced = [
        json.dumps({**event("d", None, row), "source": {}}, indent=2).replace("{}", "{" + space + "}").encode()
        for space in ("", " ", "\n  ", "\r\n\t")
        for row in ({}, {"id": 1, "name": None})
    ]
    assert reasons(spark, form, *spaced) == ["the delete event has an empty row", None] * 4


@spark_test
def test_a_left_out_value_is_null_and_named_in_each_type_that_can_tell(spark):
    text = "gone é"
    data = text.encode()
    named = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    columns: dict[str, tuple[str, Any]] = {
        "a": ("STRING", text),
        "b": ("BINARY", base64.b64encode(data).decode()),
        "c": ("ARRAY<STRING>", [text]),
        "d": ("ARRAY<INT>", [byte - 256 if byte > 127 else byte for byte in data]),
        "e": ("ARRAY<BIGINT>", [byte - 256 if byte > 127 else byte for byte in data]),
        "f": ("ARRAY<BINARY>", [base64.b64encode(data).decode()]),
        "g": ("ARRAY<STRING>", [named]),
        "h": ("MAP<STRING, STRING>", {text: text}),
        "i": ("STRING", json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))),
        "j": ("STRING", base64.b64encode(data).decode()),
        "k": ("STRING", data.hex()),
        "l": ("VARIANT", text),
        "m": ("ARRAY<TINYINT>", [byte - 256 if byte > 127 else byte for byte in data]),
    }
    form = DebeziumFormat(
        "id INT, " + ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items()),
        unavailable_value_placeholder=text,
        metadata=("before",),
    )
    gone = {"id": 1, **{name: value for name, (_, value) in columns.items()}}
    there = {
        "id": 2,
        "a": PLACEHOLDER,
        "b": "AAA=",
        "c": [text, text],
        "d": [103],
        "e": [],
        "f": [None],
        "g": [None],
        "h": {},
        "i": "{}",
        "j": "",
        "k": " ",
        "l": [text],
        "m": None,
    }
    rows = appended(spark, form, event("u", gone, there), event("u", there, gone), event("u", {"id": 3}))
    assert rows[0]["kafka_unavailable"] == list(columns)
    assert [name for name in columns if rows[0][name] is not None] == []
    assert (rows[1]["kafka_unavailable"], rows[2]["kafka_unavailable"]) == (None, None)
    assert [name for name in columns if rows[1][name] is None] == ["m"]
    assert (rows[1]["a"], rows[1]["c"], rows[0]["before"]["c"]) == (PLACEHOLDER, [text, text], [text, text])
    assert {name for name, value in rows[1]["before"].items() if value is not None} == {"id"}, "no placeholder lands"


@spark_test
def test_metadata_are_columns_that_were_asked_for(spark):
    source = {"ts_ms": 1767225600123, "db": "shop", "schema": "public", "table": "t", "snapshot": "last", "lsn": 2**40}
    value = event("r", {"id": 1}, None, source={**source, "txId": 728, "xmin": None, "sequence": '[null,"1"]'})
    mysql = {"ts_ms": 10**12, "db": "shop", "table": "t", "pos": 154, "gtid": "a:1", "snapshot": "false"}
    form = DebeziumFormat(
        "id INT",
        metadata=(
            "source_timestamp",
            "source_database",
            "source_schema",
            "source_table",
            "source_snapshot",
            "source_lsn",
            "source_pos",
            "source_gtid",
            "source_tx_id",
            "ingestion_timestamp",
            "source_properties",
            "before",
        ),
    )
    rows = appended(spark, form, value, with_schema(event("u", {"id": 1}, {"id": 2}, source=mysql)))
    postgres, other = rows[0], rows[1]
    moment = dt.datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=dt.timezone.utc)
    assert postgres["source_timestamp"].astimezone(dt.timezone.utc) == moment
    assert [postgres[f"source_{name}"] for name in ("database", "schema", "table", "snapshot", "lsn", "tx_id")] == [
        "shop",
        "public",
        "t",
        "last",
        2**40,
        "728",
    ]
    assert postgres["ingestion_timestamp"].timestamp() == 0.001
    assert postgres["source_properties"]["sequence"] == '[null,"1"]'
    assert (postgres["before"], other["before"]) == (None, {"id": 2})
    assert (other["source_pos"], other["source_gtid"], other["source_lsn"]) == (154, "a:1", None)
    wrong = [{"ts_ms": 10**17}, {"ts_ms": "soon"}, {"lsn": "0/16B3748"}, {"pos": 2**63}]
    assert reasons(spark, form, *(event("c", {"id": 1}, source=each) for each in wrong)) == [
        "source.ts_ms does not fit source_timestamp",
        "source.ts_ms does not fit source_timestamp",
        "source.lsn does not fit source_lsn",
        "source.pos does not fit source_pos",
    ], "no null stands for what could not be read"
    assert list(appended(spark, DebeziumFormat("id INT"), value)[0]) == [
        "id",
        "kafka_op",
        "kafka_unavailable",
        "kafka_topic",
        "kafka_partition",
        "kafka_offset",
    ]


@spark_test
def test_a_rejected_event_may_be_kept(spark):
    form = DebeziumFormat("id INT", on_error="null")
    rows = appended(spark, form, event("c", {"id": "x"}), event("c", {"id": 1}), {"ts_ms": 1}, None, b"\xff")
    assert {offset: (row["id"], row["kafka_op"]) for offset, row in rows.items()} == {
        0: (None, None),
        1: (1, "insert"),
        4: (None, None),
    }
    assert rows[4]["kafka_error"] == "not valid UTF-8"


@spark_test
def test_the_row_before_a_change_need_only_fit_where_something_is_taken_from_it(spark):
    old, new = {"id": "one", "at": "never"}, {"id": 1, "at": None}
    plain = DebeziumFormat("id INT, at TIMESTAMP")
    with_before = DebeziumFormat("id INT, at TIMESTAMP", metadata=("before",))
    events = [event("u", new, old), with_schema(event("u", new, old)), event("d", None, old), event("u", old, new)]
    misfits = [f"the value of {side}.id does not fit INT" for side in ("before", "after")]
    assert reasons(spark, plain, *events) == [None, None, *misfits]
    found = reasons(spark, with_before, *events)
    assert [each and each.replace("payload.", "") for each in found] == [misfits[0], misfits[0], *misfits]


@spark_test
def test_a_key_that_does_not_fit_is_none(spark):
    from pyspark.sql import functions as f

    form = DebeziumFormat("id DECIMAL(5, 2), region STRING, small TINYINT, ratio DOUBLE, name STRING")
    others = {"region": "a", "small": 1, "ratio": 1.5}
    keys = [
        json.dumps({"id": 1, **others}),
        json.dumps({"schema": {}, "payload": {"id": 2, **others}}),
        *(json.dumps({"id": 1, **others, **changed}) for changed in ({"id": 1.239}, {"small": 200}, {"id": None})),
        *(json.dumps({"payload": {"id": 1, **others, **changed}}) for changed in ({"id": 1.239}, {"small": 200})),
        '{"id": 1, "region": "a", "small": 1, "ratio": 1e400}',
        '{"id": 1, "region": "\\ud800", "small": 1, "ratio": 1}',
        f"[{json.dumps({'id': 1, **others})}]",
        '{"id": 1}',
        "x",
        "",
        None,
    ]
    data = spark.createDataFrame(
        [(None if each is None else bytearray(each.encode()),) for each in keys], "data BINARY"
    )
    named = ["region", "ID", "small", "ratio"]
    use_library(spark)
    found = [row[0] for row in data.select(form.key_of(f.col("data"), named)).collect()]
    assert [each and tuple(each) for each in found] == [
        (Decimal(1), "a", 1, 1.5),
        (Decimal(2), "a", 1, 1.5),
        *[None] * (len(keys) - 2),
    ]
    assert (form.key_fields(["kafka_key"]), form.previous_key(f.col("headers"), ["kafka_key"])) == ([], None)


@spark_test
@pytest.mark.parametrize("data_type", ["INT", "STRING"])
@pytest.mark.parametrize("name", ["payload", "schema"])
def test_a_column_of_a_key_may_be_named_as_a_part_of_the_key(spark, name, data_type):
    from pyspark.sql import functions as f

    form = DebeziumFormat(f"{name} {data_type}, id INT")
    schema = {"type": "struct"}
    keys = [
        {"id": 1, name: "7" if data_type == "STRING" else 7},
        {"schema": schema, "payload": {"id": 2, name: 8}},
        {"schema": schema, "payload": {"id": 3}},
        {"id": 4},
        None,
    ]
    data = spark.createDataFrame([(each and bytearray(json.dumps(each).encode()),) for each in keys], "data BINARY")
    use_library(spark)
    found = [row[0] for row in data.select(form.key_of(f.col("data"), [name, "id"])).collect()]
    convert = str if data_type == "STRING" else int
    assert [each and each.asDict() for each in found] == [
        {name: convert(7), "id": 1},
        {name: convert(8), "id": 2},
        None,
        None,
        None,
    ]


def test_wrong_options_are_refused_where_they_are_written():
    with pytest.raises(ConfigurationError, match="metadata"):
        DebeziumFormat("id INT", metadata=("lsn",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="metadata: before is listed twice"):
        DebeziumFormat("id INT", metadata=("before", "before"))
    with pytest.raises(ConfigurationError, match="the connector's setting is not empty"):
        DebeziumFormat("id INT", unavailable_value_placeholder="")
    with pytest.raises(ConfigurationError, match="unsupported type CHAR"):
        DebeziumFormat("id CHAR(3)")
    with pytest.raises(ConfigurationError, match="key_format: DebeziumFormat decodes values"):
        Decoder.of(DebeziumFormat("id INT"), None, None)
    with pytest.raises(ConfigurationError, match="two columns would be named 'kafka_op'"):
        Decoder.of(None, DebeziumFormat("kafka_op INT"), None)
