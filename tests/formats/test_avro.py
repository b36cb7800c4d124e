"""AvroFormat on real Spark: what fastavro writes is landed, and nothing else."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.frames import schema_id
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.schema_book import UNKNOWN_SCHEMA, SchemaBook
from dagster_kafka_flip.formats.table_options import formats_of
from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
from tests.formats.decoding import landed, plain, problems, records

spark_test = pytest.mark.spark


def _record(*fields, name="Order"):
    made = [{"name": field, "type": kind, **(more[0] if more else {})} for field, kind, *more in fields]
    return {"type": "record", "name": name, "fields": made}


def _written(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def _zigzag(number):
    number = (number << 1) ^ (number >> 63)
    out = b""
    while True:
        number, low = number >> 7, number & 0x7F
        if not number:
            return out + bytes([low])
        out += bytes([low | 0x80])


def _frame(number):
    return b"\x00" + struct.pack(">I", number)


def _of_a_run(schema, known, **options):
    """The format as it is in a run that knows these schemas; None for one that the registry does not have."""
    form = AvroFormat(schema, registry="registry", **options).model_copy()
    found = {
        _frame(number).hex().upper(): None
        if text is None
        else RegisteredSchema(number, "AVRO", text if isinstance(text, str) else json.dumps(text))
        for number, text in known.items()
    }
    form._book = SchemaBook(None, found)
    return form


V1 = _record(
    ("id", "long"),
    ("note", "string"),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
)
V2 = _record(
    ("id", "long"),
    ("text", ["null", "string"], {"aliases": ["note"]}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("count", ["null", "int"], {"default": None}),
)
V3 = _record(
    ("id", "long"),
    ("note", "string"),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}),
)
ONE = _written(V1, {"id": 1, "note": "a", "price": Decimal("1.25")})
TWO = _written(V2, {"id": 2, "text": None, "price": Decimal("-2.50"), "count": 5})


@spark_test
def test_records_of_several_schemas_are_read_as_one(spark):
    form = _of_a_run(V2, {1: V1, 2: V2})
    assert landed(spark, form, [_frame(1) + ONE, _frame(2) + TWO, None]) == [
        ({"id": 1, "text": "a", "price": Decimal("1.25"), "count": None}, None),
        ({"id": 2, "text": None, "price": Decimal("-2.50"), "count": 5}, None),
        (dict.fromkeys(("id", "text", "price", "count")), None),
    ]


@spark_test
def test_old_dates_do_not_depend_on_the_session(spark):
    fields = [
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ]
    schema = _record(*fields)
    value = {"day": dt.date(1500, 1, 1), "at": dt.datetime(1500, 1, 1)}  # noqa: DTZ001 - without a time zone
    spark.conf.set("spark.sql.avro.datetimeRebaseModeInRead", "LEGACY")
    try:
        assert landed(spark, AvroFormat(schema), [_written(schema, value)]) == [(value, None)]
    finally:
        spark.conf.unset("spark.sql.avro.datetimeRebaseModeInRead")


@spark_test
def test_rejected_values_and_their_reasons(spark):
    def price(data):
        return _zigzag(1) + _zigzag(1) + b"a" + _zigzag(len(data)) + data

    form = _of_a_run(V2, {1: V1, 3: V3, 4: "not a schema", 9: None})
    bad = {
        b"": "it is empty",
        b"\x00\x00": "its 2 bytes are too few",
        b'{"id": 1}': "its first byte is 0x7B",
        _frame(1): "schema 1: the value of id is truncated",
        _frame(1) + ONE[:-1]: "schema 1: the value of price claims a length that the record does not have",
        _frame(1) + ONE + b"\x00": "schema 1: it has extra bytes at the end",
        _frame(1) + ONE + ONE: "schema 1: it has extra bytes at the end",
        _frame(1)
        + _zigzag(1)
        + _zigzag(2**31 - 2)
        + b"abc": "schema 1: the value of text claims a length that the record does not have",
        _frame(1)
        + _zigzag(1)
        + _zigzag(-7)
        + b"abc": "schema 1: the value of text claims a length that the record does not have",
        _frame(1) + _zigzag(1) + _zigzag(1) + b"\xff" + _zigzag(1) + b"\x05": "the value of text is not valid UTF-8",
        _frame(1) + price(b"\x01" + bytes(8)): "the value of price has more digits than DECIMAL(9,2) holds",
        _frame(1) + price(b"\x7f" * 8): "the value of price has more digits than DECIMAL(9,2) holds",
        _frame(1) + price(b"\x7f" * 400): "the value of price has more digits than DECIMAL(9,2) holds",
        _frame(1) + price(b""): "the value of price has no bytes, but is a DECIMAL(9,2)",
        _frame(3) + ONE: "schema 3 can't be read as the reader schema: price: a decimal of scale 3 would be read as",
        _frame(4) + ONE: "schema 4: invalid Avro schema",
        _frame(9) + ONE: "the registry has no schema 9",
    }
    for data, (columns, error) in zip(bad, landed(spark, form, bad), strict=True):
        assert set(columns.values()) == {None}, data
        assert error is not None, data
        assert bad[data] in error, data
    # Bytes that only repeat the sign are no digits.
    longer = [_frame(1) + price(bytes(11) + b"\x7f"), _frame(1) + price(b"\xff" * 11 + b"\x9c")]
    assert [(row["price"], error) for row, error in landed(spark, form, longer)] == [
        (Decimal("1.27"), None),
        (Decimal("-1.00"), None),
    ]


@spark_test
@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_a_schema_that_was_not_asked_for_stops_the_read(spark, on_error):
    decoder = Decoder.of(None, _of_a_run(V2, {1: V1}).model_copy(update={"on_error": on_error}), None)
    frame = records(spark, [_frame(1) + ONE, _frame(2) + TWO])
    for leave_out_rejected in (False, True):
        with pytest.raises(Exception, match="schema not asked for yet") as caught:
            decoder.finish(decoder.stage(frame), leave_out_rejected=leave_out_rejected).collect()
        assert UNKNOWN_SCHEMA in str(caught.value)


@spark_test
def test_a_symbol_that_the_writer_does_not_have_is_not_the_readers(spark):
    few, more = (_record(("e", {"type": "enum", "name": "E", "symbols": list(each)})) for each in ("AB", "ABC"))
    form = _of_a_run(more, {1: few, 2: more})
    values = [_frame(number) + _zigzag(symbol) for number in (1, 2) for symbol in range(-1, 4)]
    found = [row["e"] for row, error in landed(spark, form, values) if (row["e"] is None) == (error is not None)]
    assert found == [None, "A", "B", None, None, None, "A", "B", "C", None]


@spark_test
def test_a_guid_in_a_header(spark):
    guid = bytes(range(16))
    name = (b"\x01" + guid).hex().upper()
    assert schema_id(name) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    form = _of_a_run(V2, {1: V1}, schema_id_in="headers")
    form._book = SchemaBook(None, {**form.book.known, name: RegisteredSchema(-1, "AVRO", json.dumps(V1))})
    header = [("other", bytearray(b"x")), ("__value_schema_id", bytearray(b"\x01" + guid))]
    ((row, error),) = landed(spark, form, [ONE], [header])
    assert (row["id"], error) == (1, None)
    # Without one, the number before the payload counts.
    ((row, error),) = landed(spark, form, [_frame(1) + ONE])
    assert (row["id"], error) == (1, None)
    # A key's header names no value's schema.
    ((row, error),) = landed(spark, form, [ONE], [[("__key_schema_id", bytearray(b"\x01" + guid))]])
    assert row["id"] is None
    assert "no header has a schema id" in str(error)


@spark_test
def test_without_a_registry_the_content_has_no_frame(spark):
    form = AvroFormat(V1)
    assert landed(spark, form, [ONE, ONE[:-1], b""]) == [
        ({"id": 1, "note": "a", "price": Decimal("1.25")}, None),
        (dict.fromkeys(("id", "note", "price")), "the value of price claims a length that the record does not have"),
        (dict.fromkeys(("id", "note", "price")), "the value of id is truncated"),
    ]


@spark_test
def test_a_schema_other_than_a_record_is_one_column(spark):
    assert landed(spark, AvroFormat("long"), [_zigzag(7), b"", _zigzag(7) + b"\x00"]) == [
        ({"kafka_value": 7}, None),
        ({"kafka_value": None}, "the value is truncated"),
        ({"kafka_value": None}, "it has extra bytes at the end"),
    ]


@spark_test
def test_logical_types(spark):
    def logical(kind, logical_type, **more):
        return {"type": kind, "logicalType": logical_type, **more}

    schema = _record(
        ("day", logical("int", "date")),
        ("time_ms", logical("int", "time-millis")),
        ("time_us", logical("long", "time-micros")),
        ("ms", logical("long", "timestamp-millis")),
        ("us", logical("long", "timestamp-micros")),
        ("ns", logical("long", "timestamp-nanos")),
        ("local_ms", logical("long", "local-timestamp-millis")),
        ("local_us", logical("long", "local-timestamp-micros")),
        ("id", logical("string", "uuid")),
        ("span", logical("fixed", "duration", name="Span", size=12)),
        ("price", logical("fixed", "decimal", name="Price", size=16, precision=38, scale=10)),
        ("either", ["null", "int", "string"]),
        ("state", {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}),
    )
    price = int(Decimal("-123.4567890123").scaleb(10))
    data = b"".join(
        [
            *map(_zigzag, (20000, 1000, 5, 1_700_000_000_123, 1_700_000_000_123_456, 1_700_000_000_123_456_789)),
            *map(_zigzag, (1_700_000_000_123, 1_700_000_000_123_456)),
            _zigzag(36) + b"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            bytes(range(12)),
            price.to_bytes(16, "big", signed=True),
            _zigzag(2) + _zigzag(1) + b"x",
            _zigzag(1),
        ]
    )
    form = AvroFormat(schema)
    decoder = Decoder.of(None, form, KafkaColumns(fields=()))
    rows = decoder.finish(decoder.stage(records(spark, [data])))
    assert dict(rows.dtypes) == {
        "day": "date",
        "time_ms": "int",
        "time_us": "bigint",
        "ms": "timestamp",
        "us": "timestamp",
        "ns": "bigint",
        "local_ms": "timestamp_ntz",
        "local_us": "timestamp_ntz",
        "id": "string",
        "span": "binary",
        "price": "decimal(38,10)",
        "either": "struct<member_int:int,member_string:string>",
        "state": "string",
    }
    (row,) = rows.selectExpr("* EXCEPT (ms, us)", "unix_millis(ms) AS ms", "unix_micros(us) AS us").collect()
    assert plain(row) == {
        "day": dt.date(2024, 10, 4),
        "time_ms": 1000,
        "time_us": 5,
        "ms": 1_700_000_000_123,
        "us": 1_700_000_000_123_456,
        "ns": 1_700_000_000_123_456_789,
        "local_ms": dt.datetime(2023, 11, 14, 22, 13, 20, 123000),  # noqa: DTZ001 - a local time
        "local_us": dt.datetime(2023, 11, 14, 22, 13, 20, 123456),  # noqa: DTZ001 - a local time
        "id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "span": bytes(range(12)),
        "price": Decimal("-123.4567890123"),
        "either": {"member_int": None, "member_string": "x"},
        "state": "OFF",
    }


@spark_test
def test_records_fields_and_branches_are_found_by_name_and_alias_alone(spark):
    def events(*names):
        return [_record(("id", "int"), ("at", "long"), name=f"shop.{name}") for name in names]

    def order(union, listed, *fields, name="shop.Order"):
        return _record(
            *fields, ("id", "long"), ("event", union), ("list", {"type": "array", "items": listed}), name=name
        )

    state = {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}
    other_state = {**state, "symbols": ["OFF", "BROKEN", "ON"]}
    more = _record(("a", "int"), name="More")
    reader = order(
        ["null", *events("Created", "Deleted"), {**state, "aliases": ["Condition"]}, "string"],
        ["shop.Created", "shop.Deleted"],
        ("y", "int", {"aliases": ["x"], "default": -1}),
        ("one", {**more, "name": "One", "aliases": ["More"]}, {"default": {"a": -1}}),
        ("two", _record(("b", "int", {"aliases": ["a"]}), name="Two") | {"aliases": ["More"]}, {"default": {"b": -1}}),
    )
    same = [["null", *events("Created", "Deleted")], ["shop.Created", "shop.Deleted"]]
    more_branches = [["null", *events("Archived", "Deleted", "Created")], ["shop.Created", "shop.Archived"]]
    writers = [
        order(*same),
        order(*more_branches),
        order(*same, name="elsewhere.Order"),
        order(*same, name="shop.Invoice"),
        order(*same, ("x", "int"), ("y", "int")),
        order(*same, ("x", "int")),
        order([*events("Archived", "Created"), other_state], ["shop.Archived", "shop.Created"]),
        order(
            [*events("Archived", "Created"), {**other_state, "name": "Condition"}], ["shop.Archived", "shop.Created"]
        ),
        order(*same, ("one", more), ("two", "More")),
        order(*same, ("one", {**more, "name": "Less"})),
        order(["null", "bytes", *events("Created")], ["null", "shop.Created"]),
    ]
    created, deleted, archived = ((f"shop.{name}", {"id": 1, "at": 2}) for name in ("Created", "Deleted", "Archived"))
    plain = {"id": 7, "event": created, "list": [created], "x": 4, "y": 5, "one": {"a": 8}, "two": {"a": 9}}
    cases: list[tuple[int, dict[str, Any], Any]] = [
        (number, {**plain, **change}, None)
        for number, change in (
            *((1, {"event": each, "list": [created, deleted]}) for each in (None, created, deleted)),
            *((2, {"event": each}) for each in (None, created, deleted, archived)),
            (2, {"list": [created, archived]}),
            *((number, {}) for number in (3, 4, 6, 9, 10, 11)),
            *((number, {"event": each}) for number in (7, 8) for each in ("ON", "OFF", "BROKEN", archived)),
            (11, {"event": b"text"}),
            (11, {"list": [created, None]}),
        )
    ]
    # fastavro reads a field twice here.
    cases.append((5, plain, {"y": 5}))
    known = dict(enumerate(writers, start=1))
    expected, values = [], []
    for number, value, known_better in cases:
        data = _written(known[number], value)
        values.append(_frame(number) + data)
        parsed = [fastavro.parse_schema(each) for each in (known[1 if known_better else number], reader)]
        try:
            given = _written(known[1], value) if known_better else data
            read: Any = fastavro.schemaless_reader(io.BytesIO(given), *parsed, return_record_name=True)
        except SchemaResolutionError:
            expected.append(None)
            continue
        event = read["event"]
        shown: dict[str, Any] = {f"member_{name}": None for name in ("Created", "Deleted", "State", "string")}
        branch = (
            event[0].rpartition(".")[2] if isinstance(event, tuple) else "State" if event in {"ON", "OFF"} else "string"
        )
        shown[f"member_{branch}"] = event[1] if isinstance(event, tuple) else event
        listed = [
            {f"member_{name}": each if kind == f"shop.{name}" else None for name in ("Created", "Deleted")}
            for kind, each in read["list"]
        ]
        expected.append({**read, "event": None if event is None else shown, "list": listed, **(known_better or {})})
    found = landed(spark, _of_a_run(reader, known), values)
    for case, wanted, (row, error) in zip(cases, expected, found, strict=True):
        assert (error is None) == (wanted is not None), (case, error)
        assert error is not None or row == wanted, case
    assert sum(each is None for each in expected) == 9
    assert "the record shop.Invoice is not the reader's shop.Order" in str(
        found[[each[0] for each in cases].index(4)][1]
    )


@spark_test
def test_a_schema_whose_aliases_name_its_own_fields_reads_its_own_records(spark):
    schema = _record(("x", "int"), ("y", "int", {"aliases": ["x"]}), ("d", {"type": "array", "items": "double"}))
    value = {"x": 1, "y": 2, "d": [0.5]}
    assert landed(spark, AvroFormat(schema), [_written(schema, value)]) == [(value, None)]


@spark_test
def test_flinks_columns_read_records_of_other_names(spark):
    address = {**_record(("street", "string"), ("more", "int")), "name": "shop.Address"}
    writer = _record(
        ("id", "long"),
        ("home", ["null", address]),
        ("past", {"type": "array", "items": "shop.Address"}),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        name="shop.Order",
    )
    columns = (
        "id BIGINT NOT NULL, at TIMESTAMP, home STRUCT<street: STRING>, past ARRAY<STRUCT<street: STRING NOT NULL>>, "
        "extra STRING"
    )
    options = {"format": "avro-confluent", "avro-confluent.url": "http://registry:8081"}
    _, form = formats_of(options, columns)
    assert isinstance(form, AvroFormat)
    streets = [{"street": name, "more": 1} for name in ("Elm", "Oak")]
    when = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
    written = [
        {"id": 1, "home": streets[0], "past": streets, "at": when},
        {"id": 2, "home": None, "past": [], "at": when},
    ]
    values = [_frame(1) + _written(writer, each) for each in written]
    found = landed(spark, _of_a_run(form.declared, {1: writer}), values)
    assert [error for _, error in found] == [None, None]
    assert [(row["id"], row["home"], row["past"], row["extra"]) for row, _ in found] == [
        (1, {"street": "Elm"}, [{"street": "Elm"}, {"street": "Oak"}], None),
        (2, None, [], None),
    ]
    at = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
    in_millis = {**writer, "fields": [*writer["fields"][:-1], at]}
    ((_, error),) = landed(
        spark, _of_a_run(form.declared, {1: in_millis}), [_frame(1) + _written(in_millis, written[1])]
    )
    assert "a timestamp-millis would be read as a timestamp-micros; the reader schema must declare" in str(error)


@spark_test
def test_dead_letters_are_found_again_without_the_registry(spark):
    decoder = Decoder.of(None, _of_a_run(V2, {1: V1, 9: None}), None)
    description = json.loads(json.dumps(describe_decoder(decoder)))
    later = Decoder.of(None, AvroFormat(registry="registry"), None)
    rebuilt = decoder_of(description, later)
    assert rebuilt is not None
    frame = records(spark, [_frame(1) + ONE, _frame(1) + ONE[:-1], _frame(9) + ONE])
    assert problems(frame, rebuilt.value_format) == [
        None,
        "schema 1: the value of price claims a length that the record does not have",
        "the registry has no schema 9",
    ]


# Of each kind one; test_avro_resolution has other schemas.
_ALL: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", st.floats(allow_nan=False, width=32)),
    "double": ("double", st.floats(allow_nan=False)),
    "bytes": ("bytes", st.binary(max_size=20)),
    "string": ("string", st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    "array": ({"type": "array", "items": "double"}, st.lists(st.floats(allow_nan=False), max_size=3)),
    "map": ({"type": "map", "values": ["null", "long"]}, st.dictionaries(st.text("ab"), st.none() | st.just(7))),
    "record": (_record(("x", ["null", "string"]), name="Inner"), st.fixed_dictionaries({"x": st.none() | st.just("")})),
    "optional": (["null", "int"], st.none() | st.integers(-5, 5)),
}


@spark_test
@settings(max_examples=3)
@given(
    wanted=st.lists(st.fixed_dictionaries({name: values for name, (_, values) in _ALL.items()}), min_size=5),
    cut=st.integers(1, 3),
)
def test_records_written_by_fastavro_are_landed(spark, wanted, cut):
    schema = _record(*((name, kind) for name, (kind, _) in _ALL.items()))
    whole = [_written(schema, value) for value in wanted]
    broken = [one[:-cut] for one in whole] + [one + b"\x00" * cut for one in whole]
    everything = landed(spark, AvroFormat(schema), [*whole, *broken])
    read = [fastavro.schemaless_reader(io.BytesIO(one), fastavro.parse_schema(schema)) for one in whole]
    assert everything[: len(whole)] == [(row, None) for row in read]
    # And what is cut, or longer, is not: neither as other values nor as nulls.
    for row, error in everything[len(whole) :]:
        assert error is not None
        assert set(row.values()) == {None}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schema": 5},
        {"schema": "nope"},
        {"schema": V1, "subject": "orders-value"},
        {"schema": V1, "subject": "orders-value", "registry": "registry"},
        {"schema": V1, "schema_id_in": "headers"},
        {"registry": "http://localhost:8081"},
        {"registry": 5},
        {"registry": "registry", "schema_id_in": "elsewhere"},
        {"schema": _record(("next", ["null", "Order"]))},
        {"schem": V1},
    ],
    ids=json.dumps,
)
def test_options_that_are_refused(options):
    with pytest.raises(ConfigurationError, match=r"AvroFormat|Avro schema"):
        AvroFormat(**options)


def test_a_latest_schema_that_is_none_is_named():
    latest = RegisteredSchema(7, "AVRO", '{"type": "nope"}', subject="orders-value", version=3)
    with pytest.raises(ConfigurationError, match="schema 7, the latest of the subject 'orders-value': invalid Avro"):
        AvroFormat(registry="registry").read_with(latest)


def test_the_subject_of_the_reader_schema():
    form = AvroFormat(registry="registry")
    assert form.reader_subject({"orders"}, is_key=False) == "orders-value"
    assert form.reader_subject({"orders"}, is_key=True) == "orders-key"
    named = AvroFormat(registry="registry", subject="{topic}-shop.Order")
    assert named.reader_subject({"orders"}, is_key=False) == "orders-shop.Order"
    assert AvroFormat(registry="registry", subject="shop.Order").reader_subject(None, is_key=False) == "shop.Order"
    for topics in (None, {"one", "two"}):
        with pytest.raises(ConfigurationError, match="value_format: the"):
            form.reader_subject(topics, is_key=False)
