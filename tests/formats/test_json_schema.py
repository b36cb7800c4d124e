"""JSON Schema into columns."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.json_schema import columns_of


def _object(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


def _columns(schema, **references):
    named = [(name.replace("_", "."), json.dumps(other)) for name, other in references.items()]
    return columns_of(json.dumps(schema), named, what="the schema")


INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
POINT = _object("x", x={"type": "number"})


def _decimal(**parameters):
    """Kafka Connect's Decimal, whose values are Base64 unless a sink says otherwise."""
    parameters |= {"scale": "2", "connect.decimal.precision": "10"}
    title = "org.apache.kafka.connect.data.Decimal"
    return {"type": "number", "title": title, "connect.type": "bytes", "connect.parameters": parameters}


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ({"type": "boolean"}, "BOOLEAN"),
        (INT, "BIGINT"),
        ({"type": "integer", "minimum": 0, "maximum": 9}, "BIGINT"),
        ({"type": "integer", "connect.type": "int8"}, "TINYINT"),
        ({"type": "integer", "connect.type": "int16"}, "SMALLINT"),
        ({"type": "integer", "connect.type": "int32"}, "INT"),
        ({"type": "integer", "connect.type": "int64"}, "BIGINT"),
        ({"type": "integer", "connect.type": "float32"}, "BIGINT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "number", "connect.type": "float32"}, "FLOAT"),
        ({"type": "number", "connect.type": ["float32"]}, "DOUBLE"),
        ({"type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes"}, "DOUBLE"),
        (_decimal(), "DOUBLE"),
        (_decimal(**{"decimal.format": "BASE64"}), "DOUBLE"),
        (_decimal(**{"decimal.format": "NUMERIC"}), "DECIMAL(10, 2)"),
        (TEXT, "STRING"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP_LTZ"),
        ({"type": "string", "format": "time"}, "STRING"),
        ({"type": "string", "contentEncoding": "base64"}, "STRING"),
        (NULL, "STRING"),
        (True, "STRING"),
        (False, "STRING"),
        ({}, "STRING"),
        ({"type": ["null", "integer"]}, "BIGINT"),
        ({"type": ["integer", "number"]}, "DOUBLE"),
        ({"type": ["string", "integer"]}, "STRING"),
        ({"type": []}, "STRING"),
        ({"enum": ["a", "b", None]}, "STRING"),
        ({"enum": [1, 2]}, "BIGINT"),
        ({"enum": [1, 2.5]}, "DOUBLE"),
        ({"enum": [1, True]}, "STRING"),
        ({"enum": [{"a": 1}]}, "STRING"),
        ({"const": False}, "BOOLEAN"),
        ({"type": "integer", "enum": [1, 2]}, "BIGINT"),
        ({"type": "array", "items": INT}, "ARRAY<BIGINT>"),
        ({"type": "array"}, "ARRAY<STRING>"),
        ({"items": INT}, "ARRAY<BIGINT>"),
        ({"type": "array", "items": [INT, INT], "additionalItems": False}, "ARRAY<BIGINT>"),
        ({"type": "array", "items": [INT, INT]}, "ARRAY<STRING>"),
        ({"type": "array", "prefixItems": [INT], "items": {"type": "number"}}, "ARRAY<DOUBLE>"),
        ({"type": "array", "items": POINT}, "ARRAY<STRUCT<`x`: DOUBLE NOT NULL>>"),
        (POINT, "STRUCT<`x`: DOUBLE NOT NULL>"),
        ({"properties": {"x": INT}}, "STRUCT<`x`: BIGINT>"),
        ({"type": "object"}, "STRING"),
        ({"type": "object", "additionalProperties": False}, "STRING"),
        ({"type": "object", "additionalProperties": INT}, "MAP<STRING, BIGINT>"),
        ({"type": "object", "additionalProperties": {}}, "STRING"),
        ({"type": "object", "properties": {"x": INT}, "additionalProperties": TEXT}, "STRUCT<`x`: BIGINT>"),
        ({"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": INT}, "STRING"),
        ({"oneOf": [NULL, INT]}, "BIGINT"),
        ({"anyOf": [INT, NULL]}, "BIGINT"),
        ({"oneOf": [INT, TEXT]}, "STRING"),
        ({"oneOf": [TEXT, {"type": "string", "format": "date"}]}, "STRING"),
        ({"oneOf": [POINT, _object("x", x=INT, y=INT)]}, "STRUCT<`x`: DOUBLE NOT NULL, `y`: BIGINT>"),
        ({"oneOf": [POINT, {"type": "object"}]}, "STRING"),
        ({"oneOf": [POINT, {"type": "object", "additionalProperties": False}]}, "STRUCT<`x`: DOUBLE>"),
        ({"oneOf": [POINT, INT]}, "STRING"),
        ({"type": "string", "anyOf": [{"minLength": 2}, {"pattern": "a"}]}, "STRING"),
        ({"type": "integer", "anyOf": [{"required": ["a"]}, {"minimum": 1}]}, "BIGINT"),
        ({"allOf": [POINT, _object("y", x=INT, y=INT)]}, "STRUCT<`x`: BIGINT NOT NULL, `y`: BIGINT NOT NULL>"),
        ({"allOf": [INT]}, "BIGINT"),
        ({"allOf": [INT, {"minimum": 2}]}, "BIGINT"),
        ({"allOf": [INT, TEXT]}, "STRING"),
        (
            {**POINT, "if": {"properties": {"x": {"const": 1}}}, "then": {"properties": {"y": INT}}},
            "STRUCT<`x`: DOUBLE NOT NULL, `y`: BIGINT>",
        ),
        ({**POINT, "dependentSchemas": {"x": _object(y=INT)}}, "STRUCT<`x`: DOUBLE NOT NULL, `y`: BIGINT>"),
        ({**POINT, "dependencies": {"x": ["y"]}}, "STRUCT<`x`: DOUBLE NOT NULL>"),
        ({"type": "integer", "not": {"const": 1}}, "BIGINT"),
    ],
    ids=json.dumps,
)
def test_the_type_of_a_property(schema, column):
    assert _columns(_object(a=schema)) == f"`a` {column}"
    # As a check: the DDL is one.
    assert JsonFormat(_object(a=schema)).column_names == ["a"] or JsonFormat(_object(a=schema)).column_names == ("a",)


@pytest.mark.parametrize(
    ("schema", "is_null"),
    [
        (INT, False),
        ({"type": ["integer", "null"]}, True),
        ({"oneOf": [NULL, INT]}, True),
        ({"oneOf": [TEXT, INT]}, False),
        ({"enum": ["a"]}, False),
        ({"enum": ["a", None]}, True),
        ({"properties": {"x": INT}}, True),
        ({"allOf": [{"type": ["string", "null"]}, TEXT]}, False),
        ({"$ref": "#/definitions/maybe"}, True),
        ({}, True),
        (NULL, True),
    ],
    ids=json.dumps,
)
def test_required_fields_are_not_null_unless_null_is_allowed(schema, is_null):
    root = {**_object("a", a=schema), "definitions": {"maybe": {"type": ["integer", "null"]}}}
    assert _columns(root).endswith("NOT NULL") is not is_null


def test_a_topic_of_several_events_has_the_columns_of_all():
    created = _object("kind", "id", kind={"const": "created"}, id=INT)
    named = _object("kind", "name", kind={"const": "named"}, name={**TEXT, "description": "Its name."})
    expected = "`kind` STRING NOT NULL, `id` BIGINT, `name` STRING COMMENT 'Its name.'"
    assert _columns({"oneOf": [created, named]}) == expected


def test_descriptions_become_comments():
    text = "It's a \\ in\ntwo lines, \ud800"
    schema = _object(
        a={**INT, "description": text}, b={"$ref": "#/$defs/B"}, c={"oneOf": [NULL, {"$ref": "#/$defs/B"}]}
    )
    schema["$defs"] = {"B": {**POINT, "description": "A point."}}
    assert _columns(schema) == (
        "`a` BIGINT COMMENT 'It\\'s a \\\\ in\ntwo lines, ?', `b` STRUCT<`x`: DOUBLE NOT NULL> COMMENT 'A point.', "
        "`c` STRUCT<`x`: DOUBLE NOT NULL> COMMENT 'A point.'"
    )


def test_names_are_quoted():
    assert _columns(_object(**{"a b": INT, "a`b,": INT})) == "`a b` BIGINT, `a``b,` BIGINT"


def test_references():
    address = {
        "$id": "https://example.com/schemas/address.json",
        **_object(city=TEXT, country={"$ref": "country.json#/$defs/code"}),
        "definitions": {"~/zip code": INT},
    }
    schema = {
        "$id": "https://example.com/schemas/order.json",
        **_object(
            to={"$ref": "address.json"},
            also={"$ref": "https://example.com/schemas/address.json#"},
            zip={"$ref": "address.json#/definitions/~0~1zip%20code"},
            anchored={"$ref": "#here"},
            embedded={"$ref": "inner.json#/$defs/deep"},
            listed={"$ref": "#/anyThing/1"},
        ),
        "anyThing": [INT, TEXT],
        "$defs": {
            "here": {"$anchor": "here", "type": "boolean"},
            "inner": {"$id": "inner.json", "$defs": {"deep": {"$ref": "#/$defs/deeper"}, "deeper": {"type": "number"}}},
        },
    }
    country = {"$defs": {"code": {**TEXT, "format": "date"}}}
    assert _columns(schema, address_json=address, country_json=country) == (
        "`to` STRUCT<`city`: STRING, `country`: DATE>, `also` STRUCT<`city`: STRING, `country`: DATE>, `zip` BIGINT, "
        "`anchored` BOOLEAN, `embedded` DOUBLE, `listed` STRING"
    )


def test_references_of_draft_4():
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/root",
        **_object(a={"$ref": "#inner"}, b={"$ref": "http://example.com/root#/definitions/B"}),
        "definitions": {"A": {"id": "#inner", "type": "integer"}, "B": TEXT},
    }
    assert _columns(schema) == "`a` BIGINT, `b` STRING"


_DOUBLING = {
    **_object(a={"$ref": "#/$defs/0"}),
    "$defs": {
        **{str(n): _object(x={"$ref": f"#/$defs/{n + 1}"}, y={"$ref": f"#/$defs/{n + 1}"}) for n in range(40)},
        "40": INT,
    },
}


def _nested(depth):
    schema = INT
    for _ in range(depth):
        schema = _object(a=schema)
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], r"a schema must be an object, true or false, not \[\]"),
        (TEXT, "it is not an object with properties"),
        ({"type": "object"}, "it is not an object with properties"),
        ({"oneOf": [POINT, {"type": "object"}]}, "it is not an object with properties"),
        (_object(a={"type": "text"}), 'a: unknown type "text"'),
        (_object(a={"type": {"type": "string"}}), "a: unknown type {"),
        (_object(a=POINT | {"required": True}), "a: required must be a list, not true"),
        (_object(a=POINT | {"required": [1]}), "a: required must list names of fields, not 1"),
        (_object(a={"type": "object", "properties": []}), r"a: properties must be an object, not \[\]"),
        (_object(a=_object(b=5)), r"a\.b: a schema must be an object, true or false, not 5"),
        (_object(a={"oneOf": {}}), "a: oneOf must be a list"),
        (_object(**{"": INT}), "a property has an empty name"),
        (_object(**{"\ud800": INT}), "half of a surrogate pair"),
        (_object(a=_object(B=INT, b=INT)), r"a\.b and B differ only in case"),
        (_object(a={"$ref": "other.json"}), r"a: it refers to 'other\.json', which is neither"),
        (_object(a={"$ref": "#/$defs/no"}), "a: it refers to '#/"),
        (_object(a={"$ref": 5}), "a: it refers to 5"),
        (_object(a={"$ref": "#/required/x"}), "a: it refers to '#/required/x'"),
        (_object(a={"$ref": "#x"}) | {"$defs": []}, "a: it refers to '#x'"),
        (_object(a=INT | {"$id": 5}), r"its \$schema, or the \$id of a part of it, is not a text"),
        (_object(a=INT) | {"$schema": 5}, r"its \$schema, or the \$id of a part of it, is not a text"),
        (_object(a={"$dynamicRef": "#a"}), r"a: \$dynamicRef is not supported"),
        (_object(a={"type": "array", "items": {"$ref": "#"}}), r"a\[\] contains itself"),
        ({"$ref": "#"}, "the root contains itself"),
        (_object(a={"anyOf": [NULL, {"$ref": "#"}]}), "a contains itself"),
        (_DOUBLING, "more than 20000 parts"),
        (_nested(400), "nested too deeply"),
    ],
    ids=[
        "list", "text", "free", "union", "type", "draft-3", "required", "names", "properties", "part", "oneOf",
        "empty", "surrogate", "case", "other", "pointer", "number", "index", "anchor", "id", "draft", "dynamic",
        "array", "loop", "recursive", "doubling", "deep",
    ],
)  # fmt: skip
def test_schemas_that_can_not_become_columns_are_refused(schema, message):
    with pytest.raises(ConfigurationError, match=f"^the schema: .*{message}"):
        _columns(schema)


def test_invalid_json_is_refused():
    with pytest.raises(ConfigurationError, match="the JsonFormat's JSON Schema: invalid JSON: "):
        JsonFormat('{"type": "object",}')
    with pytest.raises(ConfigurationError, match="the JSON Schema of a JsonFormat is not JSON, or nested too deeply: "):
        JsonFormat({"properties": {"a": {1, 2}}})
    deep = {"type": "integer"}
    for _ in range(2000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        JsonFormat(deep)


def test_a_schema_as_text_and_as_a_mapping_and_as_ddl_are_the_same_format():
    schema = _object("a", a=INT)
    assert JsonFormat(schema) == JsonFormat("\n" + json.dumps(schema)) == JsonFormat("`a` BIGINT NOT NULL")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "JsonFormat needs a schema, or a registry"),
        ({"schema": "a INT", "subject": "x"}, "subject and schema_id_in need a registry"),
        ({"schema": "a INT", "schema_id_in": "headers"}, "subject and schema_id_in need a registry"),
        ({"schema": "a INT", "subject": "x", "registry": "r"}, "remove one"),
        ({"registry": "http://localhost"}, r"write SchemaRegistry\(url=\.\.\.\)"),
        ({"registry": "r", "schema": " "}, "needs a schema, such as"),
    ],
    ids=str,
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        JsonFormat(**options)


def test_the_columns_of_the_latest_schema_are_not_known_without_a_run():
    form = JsonFormat(registry="registry")
    assert form.column_names is None
    with pytest.raises(ConfigurationError, match="used outside a run"):
        form.struct()
