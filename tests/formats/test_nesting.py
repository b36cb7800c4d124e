"""A schema that is nested too deeply is refused where it is defined."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as t

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_schema import AvroSchema
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.ddl import MOST_LEVELS
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer

_DEEP = 1000


def _arrays(levels):
    found = "int"
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


def _array_text(levels):
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def _named_records(levels):
    """Each record is defined near the top, and used in the next one by its name."""
    records = [{"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}]
    records += [
        {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": f"R{level - 1}"}]}
        for level in range(1, levels)
    ]
    fields = [{"name": f"f{level}", "type": record} for level, record in enumerate(records)]
    return {"type": "record", "name": "All", "fields": fields}


def _struct_type(levels: int) -> Any:
    found: Any = t.IntegerType()
    for _ in range(levels):
        found = t.StructType([t.StructField("a", found)])
    return found


def _ddl(levels):
    return "a " + "STRUCT<a: " * levels + "INT" + ">" * levels


def _json_schema(levels):
    found = {"type": "string"}
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return {"type": "object", "properties": {"a": found}}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: AvroFormat(_arrays(_DEEP)), id="Avro, an object"),
        pytest.param(lambda: AvroFormat(_array_text(_DEEP)), id="Avro, a text"),
        pytest.param(lambda: AvroFormat(_array_text(MOST_LEVELS + 1)), id="Avro, one level more"),
        pytest.param(lambda: AvroFormat(_named_records(MOST_LEVELS + 1)), id="Avro, by names"),
        pytest.param(lambda: AvroSchema.of('"int"', [("r", _array_text(_DEEP))]), id="Avro, a reference"),
        pytest.param(lambda: JsonFormat(_ddl(_DEEP)), id="DDL for JSON"),
        pytest.param(lambda: JsonFormat(_ddl(MOST_LEVELS + 1)), id="DDL for JSON, one level more"),
        pytest.param(lambda: CsvFormat(_ddl(_DEEP)), id="DDL for CSV"),
        pytest.param(lambda: JsonFormat(_struct_type(_DEEP)), id="a StructType"),
        pytest.param(lambda: JsonFormat(_struct_type(MOST_LEVELS + 1)), id="a StructType, one level more"),
        pytest.param(lambda: JsonFormat(_json_schema(_DEEP)), id="JSON Schema"),
        pytest.param(lambda: JsonFormat(_json_schema(MOST_LEVELS + 1)), id="JSON Schema, one level more"),
        pytest.param(
            lambda: AvroSerializer(_arrays(_DEEP), registry=SchemaRegistry(url="http://registry")), id="to Avro"
        ),
        pytest.param(
            lambda: JsonSchemaSerializer(_json_schema(_DEEP), registry=SchemaRegistry(url="http://registry")),
            id="to JSON Schema",
        ),
    ],
)
def test_a_schema_that_is_nested_too_deeply_is_refused(make):
    with pytest.raises(ConfigurationError, match=r"nested (more than 100 levels deep|too deeply)"):
        make()


def test_a_schema_of_the_most_levels_is_taken():
    AvroFormat(_arrays(MOST_LEVELS))
    AvroFormat({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", _arrays(MOST_LEVELS - 1)]}]})
    AvroFormat(json.dumps(_named_records(MOST_LEVELS - 1)))
    JsonFormat(_ddl(MOST_LEVELS))
    JsonFormat(_struct_type(MOST_LEVELS))
    JsonFormat(_json_schema(MOST_LEVELS))


def test_the_levels_of_one_field_are_not_those_of_the_next():
    JsonFormat(", ".join(f"a{number} ARRAY<ARRAY<INT>>" for number in range(MOST_LEVELS)))
