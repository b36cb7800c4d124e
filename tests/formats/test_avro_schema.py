"""Avro schemas: what is one, what columns can be made of, and which can be read as which."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_resolution import Fitted, fitted
from dagster_kafka_flip.formats.avro_schema import AvroSchema


def _record(*fields, name="Order"):
    """A record's schema from a name, a type, and maybe more of each field."""
    made = [{"name": field, "type": kind, **(more[0] if more else {})} for field, kind, *more in fields]
    return {"type": "record", "name": name, "fields": made}


def _logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def _decimal(precision, scale, kind="bytes"):
    return _logical(kind, "decimal", precision=precision, scale=scale)


def _schema(schema, *references):
    return AvroSchema.of(json.dumps(schema), [(name, json.dumps(one)) for name, one in references])


_ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}


def test_a_referenced_type_is_defined_where_it_first_occurs():
    order = _record(("bill_to", "shop.Address"), ("ship_to", ["null", "shop.Address"]))
    schema = _schema(order, ("shop.Address", _ADDRESS))
    first, second = schema.fields or ({}, {})
    assert first["type"]["name"] == "shop.Address"
    assert second["type"] == ["null", "shop.Address"]
    # It needs no reference any more.
    assert AvroSchema.of(schema.text) == schema


def test_references_of_references():
    customer = _record(("address", "shop.Address"), name="shop.Customer")
    schema = _schema(_record(("c", "shop.Customer")), ("a", _ADDRESS), ("c", customer))
    assert sorted(schema.named()) == ["Order", "shop.Address", "shop.Customer"]


def test_a_primitive_may_stand_without_quotes():
    assert AvroSchema.of("string") == AvroSchema.of('"string"')
    assert AvroSchema.of("long").fields is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nope",
        "5",
        "{}",
        '{"type": "recrd"}',
        '{"type": "record", "name": "O", "fields": [{"name": "a", "type": "Address"}]}',
        '{"type": "record", "name": "O", "fields": [{"name": "a b", "type": "int"}]}',
        '{"type": "enum", "name": "E"}',
        '{"type": "fixed", "name": "F"}',
        "null and void",
        '{"type": "record", "name": "a..b", "fields": [{"name": "a", "type": "int"}]}',
        '{"type": "record", "name": "O", "fields": [{"name": "a", "type": ["int", ["null"]]}]}',
        '{"type": "record", "name": "O", "fields": [{"name": "a", "type": ["int", "int"]}]}',
        '{"type": "record", "name": "O", "fields": [{"name": "a", "type": "double", "default": NaN}]}',
        '{"type": "record", "name": "dagster_kafka_flip_end", "fields": [{"name": "a", "type": "int"}]}',
    ],
)
def test_invalid_schemas(text):
    with pytest.raises(ConfigurationError, match="invalid Avro schema"):
        AvroSchema.of(text)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (_record(("next", ["null", "Order"])), "the record Order contains itself"),
        (_record(("next", {"type": "array", "items": "Order"})), "the record Order contains itself"),
        (_record(), "has no fields"),
        (_record(("a", _record(name="Inner"))), "Inner has no fields"),
        (_record(("a", {"type": "map", "values": _decimal(39, 0)})), "39 digits"),
        (_record(("a", "null")), "always null"),
        (_record(("a", {"type": "array", "items": "null"})), "always null"),
        (_record(("a", "int"), ("A", "int")), "A twice"),
        (
            _record(("a", ["null", _record(("x", "int"), name="one.I"), _record(("x", "int"), name="two.I")])),
            "member_I",
        ),
    ],
    ids=["itself", "in an array", "empty", "empty inside", "decimal", "null", "nulls", "case", "members"],
)
def test_schemas_without_columns(schema, named):
    with pytest.raises(ConfigurationError, match=named):
        _schema(schema).check_columns("the schema")


def test_comments_are_the_docs_of_fields():
    schema = _schema(_record(("id", "long", {"doc": "The order's number."}), ("note", "string")))
    assert schema.comments() == {"id": "The order's number."}


_MILLIS, _MICROS = _logical("long", "timestamp-millis"), _logical("long", "timestamp-micros")
_DEBEZIUM_MILLIS = {"type": "long", "connect.name": "io.debezium.time.Timestamp"}
_DEBEZIUM_MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
_DEBEZIUM_DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
_AB = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (("x", "int"), ("x", "long")),
        (("x", "int"), ("x", "double")),
        (("x", "bytes"), ("x", "string")),
        (("x", "int"), ("x", ["null", "int"])),
        (("x", "int"), ("x", ["null", "long"])),
        (("x", ["null", "int"]), ("x", "int")),
        (("x", ["null", "int"]), ("x", ["int", "string", "null"])),
        (("x", "int"), ("y", "int", {"aliases": ["x"]})),
        (("x", "int"), ("y", "int", {"default": 0})),
        (("x", _MILLIS), ("x", _MILLIS)),
        (("x", _MILLIS), ("x", "long")),
        (("x", "long"), ("x", _MICROS)),
        (("x", _DEBEZIUM_MILLIS), ("x", "long")),
        (("x", _DEBEZIUM_MILLIS), ("x", _MILLIS)),
        (("x", _DEBEZIUM_MICROS), ("x", _logical("long", "local-timestamp-micros"))),
        (("x", _decimal(9, 2)), ("x", "bytes")),
        (("x", _decimal(9, 2)), ("x", _decimal(12, 2))),
        (("x", _AB), ("x", {**_AB, "symbols": ["A"]})),
        (("x", {"type": "array", "items": "int"}), ("x", {"type": "array", "items": "long"})),
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
def test_schemas_that_can_be_read(writer, reader):
    assert isinstance(fitted(_schema(_record(writer)), _schema(_record(reader))), Fitted)


@pytest.mark.parametrize(
    ("writer", "reader", "named"),
    [
        (("x", "string"), ("x", "int"), "x: string can't be read as int"),
        (("x", "long"), ("x", "int"), "x: long can't be read as int"),
        (("x", "int"), ("y", "int"), "y: the writer lacks this field"),
        (("x", "int"), ("x", ["null", "string"]), "x: no branch"),
        (("x", _MILLIS), ("x", _MICROS), "x: a timestamp-millis would be read as a timestamp-micros"),
        (("x", ["null", _MILLIS]), ("x", ["null", _MICROS]), "x: a timestamp-millis"),
        (("x", ["null", "string", _MILLIS]), ("x", ["null", "string", _MICROS]), "x: a timestamp-millis"),
        (("x", {"type": "map", "values": _MILLIS}), ("x", {"type": "map", "values": _MICROS}), "x{}: a timestamp"),
        (("x", _logical("int", "date")), ("x", _MILLIS), "x: a date would be read as a timestamp-millis"),
        (("x", _DEBEZIUM_MILLIS), ("x", _DEBEZIUM_MICROS), "x: a io.debezium.time.Timestamp would be read as a io.d"),
        (
            ("x", _DEBEZIUM_MILLIS),
            ("x", _MICROS),
            "x: a io.debezium.time.Timestamp would be read as a t",
        ),
        (("x", ["null", _DEBEZIUM_DATE]), ("x", ["null", _DEBEZIUM_MILLIS]), "x: a io.debezium.time.Date would be"),
        (("x", ["null", _decimal(9, 2)]), ("x", ["null", "string"]), "x: bytes (decimal) can't"),
        (("x", _decimal(9, 2)), ("x", "string"), "x: bytes (decimal) can't be read as string"),
        (("x", "string"), ("x", _decimal(9, 2)), "x: string can't be read as bytes (decimal)"),
        (("x", _decimal(9, 2)), ("x", _decimal(9, 4)), "x: a decimal with the scale 2"),
        (("x", _decimal(12, 2)), ("x", _decimal(9, 2)), "x: a decimal of 12 digits"),
        (("x", {"type": "fixed", "name": "F", "size": 4}), ("x", {"type": "fixed", "name": "F", "size": 8}), "4 bytes"),
        (("x", _AB), ("x", {**_AB, "name": "Other"}), "the enum E is not the reader's Other"),
        (("x", _record(("a", "int"), name="I")), ("x", _record(("a", "string"), name="I")), "x.a: int"),
        (("x", _record(("a", "int"), name="I")), ("x", _record(("a", "int"), name="J")), "x: the record I is not the"),
        (
            ("x", [_record(("a", "int"), name="I"), _record(("a", "int"), name="K")]),
            ("x", _record(("a", "int"), name="I") | {"aliases": ["K"]}),
            "x: several branches of the writer's union would be read as record",
        ),
    ],
    ids=lambda field: json.dumps(field[1:])[:60] if isinstance(field, tuple) else None,
)
def test_schemas_that_can_not_be_read(writer, reader, named):
    problem = fitted(_schema(_record(writer)), _schema(_record(reader)))
    assert isinstance(problem, str)
    assert named in problem


def test_aliases_that_name_several_fields_are_refused():
    writer = _schema(_record(("a", "int"), ("b", "int")))
    for fields in (
        [("y", "int", {"aliases": ["a", "b"]})],
        [("y", "int", {"aliases": ["a"]}), ("z", "int", {"aliases": ["a"]})],
    ):
        assert "by the aliases, several fields would be read as one" in str(fitted(writer, _schema(_record(*fields))))
    # A name comes before an alias.
    assert isinstance(fitted(writer, _schema(_record(("b", "int", {"aliases": ["a"]})))), Fitted)


def test_an_enum_of_fewer_symbols_is_never_read_by_its_numbers():
    def symbols(written, read):
        found = fitted(*(_schema({**_AB, "symbols": each}) for each in (written, read)))
        assert isinstance(found, Fitted)
        assert isinstance(found.reader.root, dict)
        return found.reader.root["symbols"]

    assert symbols(["A", "B"], ["A", "B", "C"]) == ["B", "C", "A"]
    assert symbols(["A"], ["A", "B"]) == ["B", "A"]
    for written, read in ((["A", "B"], ["A", "B"]), (["B", "A"], ["A", "B", "C"]), (["A", "B", "C"], ["A", "B"])):
        assert symbols(written, read) == read


def test_deep_schemas_are_compared_in_time():
    schema = _record(("x", "int"), name="L0")
    for level in range(1, 60):
        schema = _record(("inner", ["null", schema]), name=f"L{level}")
    assert isinstance(fitted(_schema(schema), _schema(schema)), Fitted)
