"""Which Avro schemas can be read as which, and what is read: compared with fastavro."""

from __future__ import annotations

import base64
import io
import json
import struct
from typing import Any

import fastavro
import pytest
from fastavro.schema import SchemaParseException
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.schema_book import SchemaBook
from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
from tests.formats.library import decoded

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def jvm(spark):
    return spark._jvm


def _record(*fields, name="Order"):
    """A record's schema from a name, a type, and maybe more of each field."""
    made = [{"name": field, "type": kind, **(more[0] if more else {})} for field, kind, *more in fields]
    return {"type": "record", "name": name, "fields": made}


def _logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def _decimal(precision, scale, kind="bytes"):
    return _logical(kind, "decimal", precision=precision, scale=scale)


def _of_a_run(reader, writer):
    """The format in a run whose records all have the schema 1."""
    form = AvroFormat(reader, registry="registry").model_copy()
    form._book = SchemaBook(None, {"0000000001": RegisteredSchema(1, "AVRO", json.dumps(writer))})
    return form


def _read(jvm, writer, reader, values):
    return decoded(jvm, _of_a_run(reader, writer), [b"\x00" + struct.pack(">I", 1) + value for value in values])


def _mismatch(jvm, writer, reader):
    """Why no record of one schema can be read as another; None if some can."""
    ((found),) = _read(jvm, writer, reader, [b""])
    problem = str(found["problem"])
    return problem if "can't be read as the reader schema: " in problem else None


_MILLIS, _MICROS = _logical("long", "timestamp-millis"), _logical("long", "timestamp-micros")
# The last millisecond that 64 bits of microseconds hold.
_LAST_MS = (2**63 - 1) // 1_000
_DEBEZIUM_MILLIS = {"type": "long", "connect.name": "io.debezium.time.Timestamp"}
_DEBEZIUM_MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
_DEBEZIUM_DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
_AB = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (("x", "int"), ("x", ["null", "int"])),
        (("x", "int"), ("x", ["null", "long"])),
        (("x", _MILLIS), ("x", _MILLIS)),
        (("x", _MILLIS), ("x", "long")),
        (("x", "long"), ("x", _MICROS)),
        (("x", _DEBEZIUM_MILLIS), ("x", "long")),
        (("x", _DEBEZIUM_MILLIS), ("x", _MILLIS)),
        (("x", _DEBEZIUM_MICROS), ("x", _logical("long", "local-timestamp-micros"))),
        (("x", _decimal(9, 2)), ("x", "bytes")),
        (("x", _decimal(9, 2)), ("x", _decimal(12, 2))),
        (("x", _decimal(12, 2)), ("x", _decimal(9, 2))),
        (("x", _decimal(9, 2, "string")), ("x", "string")),
        (
            ("x", [_record(("a", "int"), name="I"), _record(("a", "int"), name="K")]),
            ("x", _record(("a", "int"), name="I") | {"aliases": ["K"]}),
        ),
        (("x", _record(("a", "int"), name="one.I")), ("x", _record(("a", "long"), name="other.I"))),
        (
            ("x", _record(("y", ["null", "I"]), name="I")),
            (
                "x",
                _record(
                    ("y", ["null", _record(("z", "int", {"default": 0}), name="J") | {"aliases": ["I"]}]), name="I"
                ),
            ),
        ),
    ],
    ids=lambda field: json.dumps(field[1:])[:60],
)
def test_schemas_that_can_be_read(jvm, writer, reader):
    # Others are those of the property below.
    assert _mismatch(jvm, _record(writer), _record(reader)) is None


@pytest.mark.parametrize(
    ("writer", "reader", "named"),
    [
        (("x", "string"), ("x", "int"), "x: string can't be read as int"),
        (("x", "long"), ("x", "int"), "x: long can't be read as int"),
        (("x", "int"), ("y", "int"), "y: the writer lacks this field"),
        (("x", "int"), ("x", ["null", "string"]), "x: no branch"),
        (("x", _MILLIS), ("x", _MICROS), "x: a timestamp-millis would be read as a timestamp-micros"),
        (("x", {"type": "map", "values": _MILLIS}), ("x", {"type": "map", "values": _MICROS}), "x{}: a timestamp"),
        (("x", _logical("int", "date")), ("x", _MILLIS), "x: a date would be read as a timestamp-millis"),
        (("x", _DEBEZIUM_MILLIS), ("x", _DEBEZIUM_MICROS), "x: a io.debezium.time.Timestamp would be read as a io.d"),
        (("x", _DEBEZIUM_MILLIS), ("x", _MICROS), "x: a io.debezium.time.Timestamp would be read as a t"),
        (("x", _decimal(9, 2)), ("x", "string"), "x: bytes (decimal of scale 2) can't be read as"),
        (("x", "string"), ("x", _decimal(9, 2)), "x: string can't be read as bytes (decimal of scale 2)"),
        (("x", _decimal(9, 2)), ("x", _decimal(9, 4)), "x: a decimal of scale 2 would be read as a decimal of scale 4"),
        (("x", {"type": "fixed", "name": "F", "size": 4}), ("x", {"type": "fixed", "name": "F", "size": 8}), "4 bytes"),
        (("x", _AB), ("x", {**_AB, "name": "Other"}), "the enum E is not the reader's Other"),
        (("x", _record(("a", "int"), name="I")), ("x", _record(("a", "string"), name="I")), "x.a: int"),
        (("x", _record(("a", "int"), name="I")), ("x", _record(("a", "int"), name="J")), "x: the record I is not the"),
        (("x", ["null", "bytes"]), ("x", {**_AB, "default": "B"}), "x: bytes can't be read as enum"),
        (("y", "int"), ("x", _decimal(2, 0), {"default": "\1\0"}), "x: the reader's default has more digits than"),
        (("y", "int"), ("x", _decimal(2, 0), {"default": ""}), "x: the reader's default has no bytes"),
        (("y", "int"), ("x", _MILLIS, {"default": 2**62}), "x: the reader's default is beyond the range of TIMESTAMP"),
    ],
    ids=lambda field: json.dumps(field[1:])[:60] if isinstance(field, tuple) else None,
)
def test_schemas_that_can_not_be_read(jvm, writer, reader, named):
    assert named in str(_mismatch(jvm, _record(writer), _record(reader)))


@pytest.mark.parametrize(
    ("written", "read", "why"),
    [
        (_MILLIS, _MICROS, "a timestamp-millis would be read as a timestamp-micros; the reader schema must declare"),
        (_DEBEZIUM_DATE, _DEBEZIUM_MILLIS, "a io.debezium.time.Date would be read as a io.debezium.time.Timestamp"),
        (_decimal(9, 2), "string", "bytes (decimal of scale 2) can't be read as string"),
        (_decimal(9, 2), _decimal(9, 4), "a decimal of scale 2 would be read as a decimal of scale 4"),
        ("bytes", "int", "no branch of the reader's union matches bytes"),
    ],
    ids=lambda each: json.dumps(each)[:60],
)
def test_a_value_of_another_meaning_is_refused_and_a_null_is_not(jvm, written, read, why):
    union = ["null", written]
    null, other = _read(jvm, _record(("x", union)), _record(("x", ["null", read])), [b"\0", b"\2\2x"])
    assert null == {"row": {"x": None}, "problem": None}
    assert other["problem"].startswith(f"schema 1: x: {why}")


def test_aliases_that_name_several_fields_are_refused(jvm):
    writer = _record(("a", "int"), ("b", "int"))
    for fields in (
        [("y", "int", {"aliases": ["a", "b"]})],
        [("y", "int", {"aliases": ["a"]}), ("z", "int", {"aliases": ["a"]})],
    ):
        mismatch = _mismatch(jvm, writer, _record(*fields))
        assert "by the aliases, several fields would be read as one" in str(mismatch)
    # A name comes before an alias.
    assert _mismatch(jvm, writer, _record(("b", "int", {"aliases": ["a"]}))) is None


def test_deep_schemas_are_compared_in_time(jvm):
    schema = _record(("x", "int"), name="L0")
    for level in range(1, 60):
        schema = _record(("inner", ["null", schema]), name=f"L{level}")
    assert _mismatch(jvm, schema, schema) is None


# Names that Spark, which ignores their case, tells apart.
_NAMES = ["a", "b", "c", "d"]
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=20) | st.text(max_size=5).map(str.encode),
    "string": st.text(max_size=20),
}
_READ_AS = {
    "int": ["int", "long", "float", "double"],
    "long": ["long", "float", "double"],
    "float": ["float", "double"],
    "bytes": ["bytes", "string"],
    "string": ["string", "bytes"],
    "double": ["double"],
    "boolean": ["boolean"],
}
_DEFAULTS: list[tuple[Any, Any]] = [
    ("int", -1),
    ("double", 0.5),
    ("string", "é"),
    ("bytes", "\xff"),
    (["null", "string"], None),
    ({"type": "array", "items": "long"}, [1, 2]),
    ({"type": "map", "values": ["null", "int"]}, {"x": None}),
]


@st.composite
def _types(draw, depth, in_union=False):  # noqa: PLR0911 - one for each kind
    """A writer's type, a type that a reader may have for it, and a strategy for values."""
    kinds = [*_VALUES, "enum", "fixed", *(["array", "map", "record"] if depth else [])]
    kind = draw(st.sampled_from([*kinds, *([] if in_union else ["union", "union", "union"])]))
    # A named type is defined once.
    name = f"{kind.title()}{draw(st.integers(0, 2**60))}"
    if kind in _VALUES:
        return kind, draw(st.sampled_from(_READ_AS[kind])), _VALUES[kind]
    if kind == "fixed":
        fixed = {"type": kind, "name": name, "size": 3}
        return fixed, fixed, st.binary(min_size=3, max_size=3)
    if kind == "enum":
        read = draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True))
        default = draw(st.sampled_from([{}, {"default": read[0]}]))
        enum = {"type": kind, "name": name, "symbols": ["A", "B", "C"]}
        return enum, {**enum, "symbols": read, **default}, st.sampled_from("ABC")
    if kind == "record":
        return draw(_records(depth - 1, name))
    if kind == "union":
        return draw(_unions(depth))
    written, read, values = draw(_types(depth - 1))
    if kind == "array":
        return {"type": kind, "items": written}, {"type": kind, "items": read}, st.lists(values, max_size=3)
    keyed = st.dictionaries(_VALUES["string"], values, max_size=3)
    return {"type": kind, "values": written}, {"type": kind, "values": read}, keyed


def _kind(avro_type):
    return avro_type["type"] if isinstance(avro_type, dict) else avro_type


@st.composite
def _unions(draw, depth):
    branches = [("null", "null", st.none())]
    branches += draw(
        st.lists(_types(depth, in_union=True), min_size=1, max_size=3, unique_by=lambda one: _kind(one[0]))
    )
    branches = draw(st.permutations(branches))
    # Of each kind one, so that it is clear which of them is right.
    read = list({_kind(each): each for _, each, _ in branches}.values())
    if len(read) < len(branches):
        read = [written for written, _, _ in branches]
    some = [each for each in read if each != "null"]
    left: list[Any] = draw(st.lists(st.sampled_from(some), min_size=1, unique_by=_kind))
    union = left[0] if draw(st.booleans()) else draw(st.permutations(["null", *left]))
    return [each for each, _, _ in branches], union, st.one_of(*(values for _, _, values in branches))


@st.composite
def _records(draw, depth, name="Order"):
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, unique=True))
    fields = {each: draw(_types(depth)) for each in names}
    written = [{"name": each, "type": kind} for each, (kind, _, _) in fields.items()]
    read: list[dict[str, Any]] = []
    for each in draw(st.permutations(names)):
        change = draw(st.sampled_from(["same", "same", "same", "renamed", "left out"]))
        if change == "same":
            read.append({"name": each, "type": fields[each][1]})
        elif change == "renamed":
            read.append({"name": f"{each}2", "type": fields[each][1], "aliases": [each]})
    for number in range(draw(st.integers(0 if read else 1, 1))):
        kind, default = draw(st.sampled_from(_DEFAULTS))
        read.append({"name": f"new{number}", "type": kind, "default": default})
    renamed = draw(st.sampled_from([{}, {}, {}, {"name": f"New{name}", "aliases": [name]}, {"name": f"Other{name}"}]))
    values = st.fixed_dictionaries({each: values for each, (_, _, values) in fields.items()})
    whole = {"type": "record", "name": name, "fields": written}
    return whole, {**whole, "fields": read, **renamed}, values


def _is_same(avro_type, found, ours):  # noqa: PLR0911 - one for each kind
    """Whether a value that fastavro gives is what the library made of it."""
    if isinstance(avro_type, list):
        return _is_same_of_union([each for each in avro_type if each != "null"], found, ours)
    kind = _kind(avro_type)
    if kind == "record":
        # Within a union, fastavro names the record.
        name, found = found if isinstance(found, tuple) else (avro_type["name"], found)
        fields = {field["name"]: field["type"] for field in avro_type["fields"]}
        is_it = name in (avro_type["name"], *avro_type.get("aliases", ())) and [*ours] == [*fields]
        return is_it and all(_is_same(fields[each], found[each], ours[each]) for each in fields)
    if kind == "array":
        pairs = zip(found, ours, strict=False)
        return len(found) == len(ours) and all(_is_same(avro_type["items"], *pair) for pair in pairs)
    if kind == "map":
        return found.keys() == ours.keys() and all(_is_same(avro_type["values"], found[key], ours[key]) for key in ours)
    if kind in {"bytes", "fixed"}:
        # As a default it is a text.
        return base64.b64decode(ours) == (found.encode("latin-1") if isinstance(found, str) else found)
    if kind in {"float", "double"}:
        found, ours = float(found), float(ours)
        found = struct.unpack("f", struct.pack("f", found))[0] if kind == "float" else found
        return repr(found) == repr(ours)
    return type(found) is type(ours) and found == ours


def _is_same_of_union(branches, found, ours):
    if found is None:
        return ours is None
    if len(branches) == 1:
        return _is_same(branches[0], found, ours)
    kinds = {_kind(each) for each in branches}
    if kinds in ({"int", "long"}, {"float", "double"}):
        return _is_same("double" if "double" in kinds else "long", found, ours)
    members = [pair for pair in zip(branches, ours.values(), strict=True) if pair[1] is not None]
    return len(members) == 1 and _is_same(members[0][0], found, members[0][1])


def _expected(written, read, data):
    """What fastavro makes of bytes, in a tuple; None if it refuses them."""
    stream = io.BytesIO(data)
    try:
        found = fastavro.schemaless_reader(stream, written, read, return_record_name=True)
    except Exception:  # noqa: BLE001 - of many kinds
        return None
    return None if stream.read() else (found,)


@settings(max_examples=60)
@given(data=st.data())
def test_records_are_read_as_fastavro_reads_them(jvm, data):
    written, read, values = data.draw(_records(2) | _types(2))
    try:
        parsed = [fastavro.parse_schema(each) for each in (written, read)]
    except SchemaParseException:
        # A named type twice.
        return
    whole: list[bytes] = []
    for value in data.draw(st.lists(values, min_size=1, max_size=3)):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed[0], value)
        whole.append(out.getvalue())
    others = [one[:size] for one in whole for size in range(min(len(one), 40))]
    others += [one + b"\0" for one in whole] + data.draw(st.lists(st.binary(max_size=30), max_size=5))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=9)):
        others += [one[:at] + bytes([byte]) + one[at + 1 :] for one in whole if one for at in [place % len(one)]]

    is_record = _kind(read) == "record"
    found = _read(jvm, written, read, [*whole, *others])
    for number, (one, ours) in enumerate(zip([*whole, *others], found, strict=True)):
        expected = _expected(parsed[0], parsed[1], one)
        if ours["problem"] is None:
            assert expected is not None, one
            assert _is_same(read, expected[0], ours["row"] if is_record else ours["row"]["value"]), one
        else:
            # It is stricter: a boolean is 0 or 1, an int has 32 bits, a key occurs once.
            assert expected is None or number >= len(whole), one


def _number(number):
    """A number as Avro writes it."""
    out, rest = bytearray(), (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


_NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize(
    ("avro_type", "value", "problem"),
    [
        ("string", _number(2**31 - 1), "claims a length that the record does not have"),
        ("bytes", _number(2**62), "claims a length that the record does not have"),
        ({"type": "array", "items": "int"}, _number(2**40), "claims more elements than the record has bytes"),
        ({"type": "array", "items": "int"}, _number(-(2**63)) + b"\0", "claims more elements"),
        ({"type": "map", "values": "int"}, _number(2**62), "claims more elements"),
        ({"type": "array", "items": "null"}, _number(200_000) + b"\0", "claims more elements"),
        ({"type": "map", "values": "int"}, _number(2) + b"\2a\0\2a\0\0", "has a key twice"),
        ("int", _number(2**31), "is beyond the range of an int"),
        ("long", b"\xff" * 9 + b"\2", "is beyond the range of a long"),
        ("boolean", b"\2", "is neither true nor false"),
        (["null", "int"], b"\4", "has a number beyond the 2 that the schema has"),
        (_NODE, b"\2" * 1_000 + b"\0", "is nested more than 500 levels deep"),
        (_logical("long", "timestamp-millis"), _number(2**62), "is beyond the range of TIMESTAMP"),
        (_logical("long", "timestamp-millis"), _number(-_LAST_MS - 1), "is beyond the range of TIMESTAMP"),
        (_logical("long", "local-timestamp-millis"), _number(_LAST_MS + 1), "is beyond the range of TIMESTAMP"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_value_that_claims_too_much_is_refused_where_it_is(jvm, avro_type, value, problem):
    writer = _record(("before", "int"), ("x", avro_type), ("after", "int"))
    readable = avro_type not in (_NODE, {"type": "array", "items": "null"})
    readers = [_record(("after", "int")), *([writer] if readable else [])]
    for reader in readers:
        is_skipped = reader is not writer and "TIMESTAMP" in problem
        found = _read(jvm, writer, reader, [_number(1) + value + b"\2", _number(1)])
        assert found[1]["problem"].startswith("schema 1: the value of x ")
        if not is_skipped:
            assert found[0]["problem"].startswith(f"schema 1: the value of x {problem}")


def test_the_last_time_is_landed(jvm):
    schema = _record(("x", _logical("long", "timestamp-millis")))
    ((found),) = _read(jvm, schema, schema, [_number(_LAST_MS)])
    assert found == {"row": {"x": "294247-01-10 04:00:54"}, "problem": None}


def test_what_only_the_writer_has_may_contain_itself(jvm):
    writer = _record(("tree", _NODE), ("id", "int"))
    ((found),) = _read(jvm, writer, _record(("id", "int")), [b"\2\2\2\0" + _number(7)])
    assert found == {"row": {"id": 7}, "problem": None}


def test_a_null_is_a_fields_default_whatever_the_unions_first_branch(jvm):
    array, mapped = {"type": "array", "items": "int"}, {"type": "map", "values": "int"}
    inner = _record(("p", "int", {"default": 1}), name="I")
    branches = [[array, "null"], [mapped, "null"], [inner, "null"], ["int", array, "null"], ["null", array]]
    nulls = [(f"x{number}", each, {"default": None}) for number, each in enumerate(branches)]
    reader = _record(*nulls, ("y", ["null", array], {"default": [1]}))
    ((found),) = _read(jvm, _record(("a", "int")), reader, [b"\2"])
    assert found == {"row": {**dict.fromkeys(f"x{number}" for number in range(5)), "y": [1]}, "problem": None}


@pytest.mark.parametrize("order", ["upwards", 5])
def test_a_schema_that_avros_library_fails_for_rejects_its_records(jvm, order):
    ((found),) = _read(jvm, _record(("x", "int", {"order": order})), _record(("x", "int")), [b"\2"])
    assert found["row"] is None
    assert found["problem"].startswith("schema 1: invalid Avro schema: ")


@pytest.mark.parametrize("kind", ["long", _MILLIS, _MICROS, _logical("long", "local-timestamp-millis")], ids=json.dumps)
def test_a_time_of_debezium_is_not_taken_for_another_unit(jvm, kind):
    row = _record(("id", "int"), name="Value")
    fields = [("before", ["null", row]), ("after", ["null", "Value"]), ("op", "string"), ("ts_ms", ["null", kind])]
    form = DebeziumAvroFormat(_record(*fields), registry="registry", metadata=("ingestion_timestamp",)).model_copy()
    written = _record(*fields[:3], ("ts_ms", ["null", "long"]))
    form._book = SchemaBook(None, {"0000000001": RegisteredSchema(1, "AVRO", json.dumps(written))})
    start = b"\x00\x00\x00\x00\x01\0\2\2\2c"
    found, none = decoded(jvm, form, [start + b"\2" + _number(2_000), start + b"\0"])
    assert none["problem"] is None
    assert none["about"]["ingestion_timestamp"] is None
    if kind == "long":
        assert found["about"]["ingestion_timestamp"].endswith(":02")
    else:
        assert (found["row"], found["problem"]) == (None, "ts_ms does not fit ingestion_timestamp")


def test_events_of_debezium_have_one_type_of_row():
    rows = [_record(("id", kind), name=f"Value{kind}") for kind in ("int", "long")]
    fields = [("before", ["null", rows[0]]), ("after", ["null", rows[1]]), ("op", "string")]
    with pytest.raises(ConfigurationError, match="the columns of before and after have different types"):
        DebeziumAvroFormat(_record(*fields)).struct()


def test_decimals_keep_their_digits(jvm):
    value = b"\2\xff" + b"\x0f\xff" + _number(8) + b"\xff" * 8 + b"\2\x63"
    schema = _record(
        ("short", _decimal(2, 1)),
        ("fixed", {**_decimal(4, 4, "fixed"), "name": "F", "size": 2}),
        ("long", _decimal(38, 0)),
        ("full", _decimal(2, 0)),
    )
    ((found),) = _read(jvm, schema, schema, [value])
    assert found["row"] == {"short": "-0.1", "fixed": "0.4095", "long": -1, "full": 99}
    for good, bad, name in (
        (b"\x0f\xff", b"\x7f\xff", "fixed has more digits than DECIMAL(4,4)"),
        (b"\x63", b"\x64", "full"),
    ):
        ((found),) = _read(jvm, schema, schema, [value.replace(good, bad)])
        assert found["problem"].startswith(f"schema 1: the value of {name}")


def test_a_type_without_a_namespace_is_not_taken_for_one_of_the_record_around_it(jvm):
    schema = _record(("x", {**_AB, "namespace": ""}), ("y", {**_AB, "symbols": ["C"]}), ("z", "E"), name="shop.Order")
    ((found),) = _read(jvm, schema, schema, [b"\2\0\0"])
    assert found["row"] == {"x": "B", "y": "C", "z": "C"}
