"""Avro schemas: what is one, and what columns can be made of."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_schema import AvroSchema


def _record(*fields, name="Order"):
    """A record's schema from a name, a type, and maybe more of each field."""
    made = [{"name": field, "type": kind, **(more[0] if more else {})} for field, kind, *more in fields]
    return {"type": "record", "name": name, "fields": made}


def _decimal(precision, scale, kind="bytes"):
    return {"type": kind, "logicalType": "decimal", "precision": precision, "scale": scale}


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
        (_record(("a", ["null"])), "always null"),
        ("null", "always null"),
        ([], "always null"),
        (_record(("a", "int"), ("A", "int")), "A twice"),
        (
            _record(("a", ["null", _record(("x", "int"), name="one.I"), _record(("x", "int"), name="two.I")])),
            "member_I",
        ),
    ],
    ids=[
        "itself",
        "in an array",
        "empty",
        "empty inside",
        "decimal",
        "null",
        "nulls",
        "only null",
        "root",
        "nothing",
        "case",
        "members",
    ],
)
def test_schemas_without_columns(schema, named):
    with pytest.raises(ConfigurationError, match=named):
        _schema(schema).check_columns("the schema")


_ARRAY, _ENUM = {"type": "array", "items": "int"}, {"type": "enum", "name": "E", "symbols": ["A"]}
_FIXED, _INNER = (
    {"type": "fixed", "name": "F", "size": 2},
    _record(("p", "int"), ("q", "int", {"default": 0}), name="I"),
)


@pytest.mark.parametrize(
    ("avro_type", "good", "bad"),
    [
        ("int", [-(2**31), 0], [2**31, True]),
        ("long", [2**63 - 1], [2**63]),
        ("float", [1, 3.4e38, "NaN"], [1e39]),
        ("double", [1e308, 2**100], ["x"]),
        ("string", ["", "é"], ["\ud800"]),
        ("bytes", ["", "ÿ"], ["Ł"]),
        (_FIXED, ["ab"], ["a", "abc", "Łb"]),
        (_ENUM, ["A"], ["B"]),
        (_ARRAY, [[], [1]], [[2**31]]),
        ({"type": "map", "values": "int"}, [{}], [{"a": 2**31}]),
        (_INNER, [{"p": 1}, {"p": 1, "q": 2}], [{}, {"p": 2**31}]),
        (_record(("a", [_ARRAY, "null"]), name="J"), [{"a": [1]}], [{"a": None}]),
        (["null", "int"], [None, 1], [2**31]),
        ([_ARRAY, "null"], [None, []], [{}, "x"]),
        (["int", "long"], [1], [2**31]),
        (["bytes", "string"], ["a"], ["Ł"]),
        (["int", "string", _ENUM], [1, "B"], [1.5, []]),
    ],
    ids=lambda each: json.dumps(each)[:40],
)
def test_defaults_that_avros_library_would_change_are_refused(avro_type, good, bad):
    for default in good:
        _schema(_record(("x", avro_type, {"default": default}))).check_columns("the schema")
    for default in bad:
        # fastavro looks at some of them, too.
        with pytest.raises(ConfigurationError, match=r"the default of x in the record Order|Default value <"):
            _schema(_record(("x", avro_type, {"default": default}))).check_columns("the schema")


@pytest.mark.parametrize("levels", [90, 480, 5_000])
def test_a_schema_of_many_levels_is_read_or_refused(levels):
    opening = "".join(f'{{"type":"record","name":"R{n}","fields":[{{"name":"x","type":' for n in range(levels))
    text = f'{opening}"int"{"}]}" * levels}'
    if levels == 90:
        assert AvroSchema.of(text).text == text.replace(" ", "")
        return
    with pytest.raises(ConfigurationError, match="invalid Avro schema: it is nested more than"):
        AvroSchema.of(text)


def test_comments_are_the_docs_of_fields():
    schema = _schema(_record(("id", "long", {"doc": "The order's number."}), ("note", "string")))
    assert schema.comments() == {"id": "The order's number."}
