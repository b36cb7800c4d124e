"""Schemas of a table's columns, and columns that don't fit a given one: without Spark and without a registry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as t

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_schema import AvroSchema
from dagster_kafka_flip.formats.column_types import of_spark
from dagster_kafka_flip.formats.json_schema import columns_of, members_of
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_schema import schema_of
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.sink import avro_serializer, json_schema_serializer, protobuf_serializer
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
from dagster_kafka_flip.sink.serializers import check_key
from dagster_kafka_flip.sink.table_rows import settings_text

REGISTRY = SchemaRegistry(url="http://alice:hunter2@registry:8081")
WRONG: Any = 7
INT, STRING = t.IntegerType(), t.StringType()


def columns(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


def avro_of(struct: t.StructType) -> dict[str, Any]:
    return avro_serializer.avro_of(of_spark(struct))


def json_schema_of(struct: t.StructType) -> dict[str, Any]:
    return json_schema_serializer.json_schema_of(of_spark(struct))


def proto_of(struct: t.StructType, known: str | None = None) -> str:
    before = None if known is None else schema_of(compiled(known)).message(protobuf_serializer.MESSAGE)
    return protobuf_serializer.proto_of(of_spark(struct), before)


MAKERS = {"Avro": avro_of, "JSON": json_schema_of, "Protobuf": proto_of}


@pytest.mark.parametrize(
    ("maker", "kind", "output"),
    [
        *((maker, t.DayTimeIntervalType(), "column v is INTERVAL, which") for maker in MAKERS),
        *((maker, t.VariantType(), "column v is VARIANT, which has no exact form in") for maker in MAKERS),
        *((maker, t.NullType(), "column v is VOID, which has no exact form in") for maker in MAKERS),
        ("Avro", t.MapType(INT, INT), "the map v has keys of type INT, which have no exact form in Avro"),
        ("JSON", t.MapType(t.DateType(), INT), "the map v has keys of type DATE"),
        ("Protobuf", t.MapType(t.DoubleType(), INT), "the map v has keys of type DOUBLE"),
        ("Protobuf", t.ArrayType(t.ArrayType(INT)), r"column v\[\] is a list or map inside another"),
        ("Avro", columns(**{"a b": INT}), "column v.a b has a name that Avro does not allow"),
        ("Protobuf", columns(**{"1": INT}), "column v.1 has a name that Protobuf does not allow"),
    ],
)
def test_a_column_without_an_exact_form_is_named(maker, kind, output):
    with pytest.raises(ConfigurationError, match=output):
        MAKERS[maker](columns(id=INT, v=kind))


def test_a_thousand_columns_have_a_schema_in_each_format():
    struct = columns(**{f"c{number}": INT for number in range(1000)}, s=columns(a=columns(b=STRING)))
    avro = AvroSchema.of(json.dumps(avro_of(struct)))
    assert len(avro.fields or ()) == 1001
    assert len(members_of(json.dumps(json_schema_of(struct)), what="x").fields) == 1001
    assert len(schema_of(compiled(proto_of(struct))).message("Record").fields) == 1001


def test_structs_of_one_name_are_several_types_in_avro():
    inner = columns(a=INT)
    struct = columns(a=columns(b=inner), b=columns(a=inner), c=t.ArrayType(columns(b=STRING)))
    assert set(AvroSchema.of(json.dumps(avro_of(struct))).named()) == {
        "record", "record.a", "record.a.b", "record.b", "record.b.a", "record.c"
    }  # fmt: skip


def test_decimals_and_bytes_are_read_again_from_a_json_schema():
    struct = t.StructType(
        [t.StructField("n", t.DecimalType(38, 18), nullable=False), t.StructField("b", t.BinaryType())]
    )
    assert columns_of(json.dumps(json_schema_of(struct)), what="x") == ("`n` DECIMAL(38, 18) NOT NULL, `b` BINARY")


def test_fields_keep_their_numbers_and_those_of_columns_that_are_gone_are_reserved():
    first = proto_of(columns(a=INT, s=columns(x=INT, y=INT), s_type=INT))
    second = proto_of(columns(s=columns(y=INT, z=STRING), b=INT, s_type=INT), first)
    third = proto_of(columns(a=INT, s=columns(y=INT, z=STRING), b=INT, s_type=INT), second)
    assert proto_of(columns(a=INT, s=columns(y=INT, z=STRING), b=INT, s_type=INT), third) == third
    record = schema_of(compiled(third)).message("Record")
    assert {field.name: field.number for field in record.fields} == {"s": 2, "s_type": 3, "b": 4, "a": 5}
    inner = record.fields_by_name["s"].message_type
    assert inner is not None
    assert {field.name: field.number for field in inner.fields} == {"y": 2, "z": 3}
    assert "reserved 1;" in third
    assert third.count("reserved 1;") == 2


def _avro(struct: t.StructType, *fields: dict[str, object]):
    schema = AvroSchema.of(json.dumps({"type": "record", "name": "R", "fields": fields}))
    avro_serializer.conversion_of(of_spark(struct), schema, "value: schema 7")


def _proto(struct: t.StructType, fields: str):
    message = schema_of(compiled(f'syntax = "proto3"; message R {{ {fields} }}')).message("R")
    protobuf_serializer.conversion_of(of_spark(struct), message, "value: schema 7")


def _json(struct: t.StructType, properties: dict[str, object], **more: object):
    members = members_of(json.dumps({"type": "object", "properties": properties, **more}), what="x")
    json_schema_serializer.conversion_of(of_spark(struct), members, "value: schema 7")


@pytest.mark.parametrize(
    ("check", "given", "output"),
    [
        (_avro, ({"name": "w", "type": "int"},), "w is a field that can't be null, and the table"),
        (_avro, ({"name": "w", "type": ["null", "int"]},), "v is a column, but the schema has no such field; "),
        (_avro, ({"name": "v", "type": ["int", "string"]},), "v is a union of 2 types"),
        (_avro, ({"name": "v", "type": "string"},), "v is BIGINT, but string in the schema"),
        (_avro, ({"name": "v", "type": "int"},), "v is BIGINT, but int in the schema"),
        (_avro, ({"name": "v", "type": {"type": "long", "logicalType": "timestamp-micros"}},), r"long \(timestamp-m"),
        (_proto, ("int64 w = 1;",), "v is a column, but R has no such field; its fields are w"),
        (_proto, ("int32 v = 1;",), "v is BIGINT, but int in the schema"),
        (_proto, ("repeated int64 v = 1;",), "v is BIGINT, but a repeated field"),
        (_json, ({"w": {}}, ), None),
        (_json, ({"w": {"type": "integer"}},), None),
        (_json, ({"v": {"type": "string"}},), "v is BIGINT, but STRING in the schema"),
        (_json, ({"v": {"type": "integer", "connect.type": "int32"}},), "v is BIGINT, but INT in the schema"),
        (_json, ({"v": {"type": "object", "properties": {"a": {}}}},), "v is BIGINT, but an object"),
    ],
)  # fmt: skip
def test_a_column_that_does_not_fit_a_given_schema_is_named(check, given, output):
    struct = columns(v=t.LongType())
    if output is None:
        check(struct, *given)
        return
    with pytest.raises(ConfigurationError, match=f"value: schema 7 does not fit the table: .*{output}"):
        check(struct, *given)


@pytest.mark.parametrize("kind", [columns(a=INT), t.ArrayType(INT), t.MapType(STRING, INT)])
def test_a_nested_column_is_no_text_in_a_json_schema(kind):
    with pytest.raises(ConfigurationError, match=r"v is (STRUCT|ARRAY|MAP)<.*, but STRING in the schema"):
        _json(columns(v=kind), {"v": {"type": ["string", "null"]}})


def test_a_key_of_a_map_in_protobuf_is_of_a_type_that_has_each_of_its_values():
    for key, wanted in ((STRING, "string"), (INT, "int64"), (t.DateType(), "string")):
        _proto(columns(v=t.MapType(key, INT)), f"map<{wanted}, int32> v = 1;")
    with pytest.raises(ConfigurationError, match=r"v\{\} is BIGINT, but int in the schema"):
        _proto(columns(v=t.MapType(t.LongType(), INT)), "map<int32, int32> v = 1;")


def test_keywords_of_a_json_schema_that_limit_values_are_not_looked_at():
    limits = {"enum": ["A"], "pattern": "^A$", "maxLength": 1, "format": "email"}
    given = {
        "type": "object",
        "minProperties": 9,
        "properties": {
            "v": {"type": ["string", "null"], **limits},
            "n": {"type": ["integer", "null"], "minimum": 0, "maximum": 1, "multipleOf": 2, "const": 0},
            "a": {"type": ["array", "null"], "items": {"type": ["string", "null"], **limits}, "uniqueItems": True},
        },
    }
    members = members_of(json.dumps(given), what="it")
    # Bytes, as Base64: of texts it is looked at whether they are UTF-8.
    struct = columns(v=t.BinaryType(), n=INT, a=t.ArrayType(t.BinaryType()))
    assert json_schema_serializer.conversion_of(of_spark(struct), members, "value: schema 7").wrong is None


def test_required_and_closed_json_schema_serializer_are_held():
    with pytest.raises(ConfigurationError, match="w is required, but the table has no such column"):
        _json(columns(v=INT), {"w": {"type": "integer"}}, required=["w"])
    with pytest.raises(
        ConfigurationError, match="v is a column, but the schema has no such property; its properties are w"
    ):
        _json(columns(v=INT), {"w": {"type": "integer"}}, additionalProperties=False)


@pytest.mark.parametrize("kind", [t.MapType(STRING, INT), t.ArrayType(columns(m=t.MapType(STRING, INT)))])
def test_a_key_with_a_map_is_refused(kind):
    with pytest.raises(ConfigurationError, match=r"key: the column m.* is a map"):
        check_key(columns(id=INT, m=kind), ["id", "m"])


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda: AvroSerializer(registry="http://registry"), "AvroSerializer needs a registry"),
        (lambda: AvroSerializer("{", registry=REGISTRY), "invalid Avro schema"),
        (lambda: AvroSerializer(WRONG, registry=REGISTRY), "JSON text or a Python object, not int"),
        (lambda: AvroSerializer('"string"', registry=REGISTRY, use_latest=True), "schema and use_latest both choose"),
        (lambda: AvroSerializer(registry=REGISTRY, subject="{topc}-value"), "or has {topic} in it"),
        (lambda: JsonSchemaSerializer({"type": "string"}, registry=REGISTRY), "not an object with properties"),
        (lambda: ProtobufSerializer(WRONG, registry=REGISTRY), "the text of a .proto file"),
    ],
)
def test_a_wrong_serializer_is_refused_before_anything_runs(make, output):
    with pytest.raises(ConfigurationError, match=output):
        make()


def test_the_progress_never_has_the_registrys_login():
    sink = KafkaSink(topic="t", transactional_id_prefix="s", value=AvroSerializer(registry=REGISTRY, columns=["id"]))
    text = settings_text(DeltaSource(table="lake/t"), sink)
    assert '"AvroSerializer"' in text
    assert "alice" not in text
    assert "hunter2" not in text + repr(sink)
