"""AvroSerializer: the Avro schema of columns, and how their values are written with a given one."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_columns import of_avro, to_avro
from dagster_kafka_flip.formats.avro_schema import AvroSchema, declared_text, kind, resolved
from dagster_kafka_flip.formats.column_types import STRING
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.sink import conversion
from dagster_kafka_flip.sink.conversion import NOT_NULL, SchemaPath, check_columns, of_text, widened, without
from dagster_kafka_flip.sink.serializers import RegistrySerializer, serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

    from dagster_kafka_flip.formats.avro_schema import AvroType
    from dagster_kafka_flip.formats.column_types import ColumnType
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schemas import Schemas
    from dagster_kafka_flip.sink.conversion import Conversion, Inside

    Named = Mapping[str, dict[str, Any]]


class AvroSerializer(RegistrySerializer):
    """Writes keys or values in Avro's binary encoding, with Spark's own `to_avro`; AvroFormat reads them.

    The schema is derived from the columns, unless one is given: a record named `record`, with null for columns that
    allow it. Columns and fields are matched by name. Timestamps have microseconds, decimals all their digits. With
    another schema, a column may be written to a wider type (INT to long); a field without a column must allow null, and
    becomes null.

    A schema other than a record takes one column; a null in it becomes a null key or value.

    Attributes:
        schema: The schema to register, as JSON or a Python object. Default: derived from the columns.
    """

    kind = "AVRO"

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> str | None:
        if declared is None:
            return None
        text = declared_text(declared, "AvroSerializer")
        AvroSchema.of(text)
        return text

    def made(self, columns: ColumnType, schemas: Schemas, subject: str) -> str:
        del schemas, subject
        return json.dumps(avro_of(columns))

    def whole(self, columns: ColumnType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        try:
            parsed = AvroSchema.of(schema.text, schema.references)
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from None
        found = conversion_of(columns, parsed, what)
        value = struct_of(columns.names)
        if parsed.fields is None:
            value = value.getField(columns.names[0])
        # The function of SQL: Spark says of it what to do if the session lacks its jar.
        content = f.call_function("to_avro", found.changed(value), f.lit(parsed.text))
        return serialized(content, found.problem(value)), b""


def avro_of(columns: ColumnType) -> dict[str, Any]:
    """The Avro schema of columns: a record with Flink's name for it."""
    check_columns(columns, "Avro", ("STRING",))
    return to_avro(columns, "record", ".")


_UUID = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"


def conversion_of(columns: ColumnType, schema: AvroSchema, what: str) -> Conversion:
    """How columns are written with a schema: by the names of fields."""
    at, fit = SchemaPath(what), partial(_fit, schema.named())
    if schema.fields is not None:
        return conversion.conversion_of(columns, schema.root, at, fit)
    if len(columns.fields) != 1:
        raise ConfigurationError(
            f"{what} is not a record, but there are {len(columns.fields)} columns ({', '.join(columns.names)})",
            "Name one (columns=...), or use a record",
        )
    (field,) = columns.fields
    # A null is a null key or value.
    return conversion.conversion_of(field.type, schema.root, at.deeper(field.name), fit)


def _fit(named: Named, column: ColumnType, avro_type: AvroType, at: SchemaPath) -> Sequence[Inside] | Conversion:
    others = [each for each in _branches(avro_type, named) if each != "null"]
    if len(others) != 1:
        raise at.misfit(f"is a union of {len(others)} types, but a column has only one type")
    found: Any = resolved(others[0], named)
    of, given = kind(found), found if isinstance(found, dict) else {}
    if column.name == "STRUCT" and of == "record":
        fields = {field["name"]: field["type"] for field in given["fields"]}
        for name, each in fields.items():
            if name not in column.names and "null" not in _branches(each, named):
                raise at.deeper(f".{name}").misfit("is a field that can't be null, and the table has no such column")
        for name in column.names:
            if name not in fields:
                why = f"is a column, but the schema has no such field; its fields are {', '.join(fields)}"
                raise at.deeper(f".{name}").misfit(why)
        return [_inside(fields[name], named) for name in column.names]
    if column.name == "ARRAY" and of == "array":
        return [_inside(given["items"], named)]
    if column.name == "MAP" and of == "map" and column.fields[0].type == STRING:
        return [("string", None), _inside(given["values"], named)]
    found = None if of in {"record", "array", "map"} else _scalar(column, found, given, named, at)
    if found is None:
        logical = given.get("logicalType")
        raise at.misfit(f"is {column}, but {of if logical is None else f'{of} ({logical})'} in the schema")
    return found


def _scalar(
    column: ColumnType, avro_type: AvroType, given: Mapping[str, Any], named: Named, at: SchemaPath
) -> Conversion | None:
    """The conversion of a value that holds no others; None if the schema has another type."""
    found, of, logical = widened(column, of_avro(avro_type, named)), kind(avro_type), given.get("logicalType")
    if found is None:
        return None
    if logical in {"timestamp-millis", "local-timestamp-millis"}:
        wrong = f"{at.path} has microseconds, but its schema has milliseconds"
        return without(lambda value: f.date_trunc("millisecond", value) != value, wrong)
    if of == "fixed" and column.name == "BINARY":
        size = given["size"]
        wrong = f"{at.path} does not have the {size} bytes of its fixed type"
        return without(lambda value: f.octet_length(value) != size, wrong)
    if of == "enum":
        symbols = [*given["symbols"]]
        wrong = f"{at.path} is none of the {len(symbols)} symbols of its enum"
        return without(lambda value: ~value.isin(symbols), wrong)
    if logical == "uuid":
        # Spark writes any text as one, and readers that know the type fail on the record.
        return without(lambda value: ~value.rlike(_UUID), f"{at.path} is not a UUID, as its schema says")
    return of_text(at.path) if column == STRING else found


def _branches(avro_type: AvroType, named: Named) -> list[AvroType]:
    found = resolved(avro_type, named)
    return found if isinstance(found, list) else [found]


def _inside(avro_type: AvroType, named: Named) -> Inside:
    return avro_type, None if "null" in _branches(avro_type, named) else NOT_NULL
