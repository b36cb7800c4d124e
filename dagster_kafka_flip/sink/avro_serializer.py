"""AvroSerializer: columns in Avro's binary encoding, with a schema registry.

The schema of columns, and how their values are written with a given one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError, SparkSessionError
from dagster_kafka_flip.formats.avro_columns import to_avro
from dagster_kafka_flip.formats.avro_schema import AvroSchema, declared_text, kind, resolved
from dagster_kafka_flip.formats.column_types import STRING
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.nested import (
    Conversion,
    SchemaPath,
    check_columns,
    of_array,
    of_map,
    of_struct,
    of_text,
    without,
)
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializers import serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

    from dagster_kafka_flip.formats.avro_schema import AvroType
    from dagster_kafka_flip.formats.column_types import ColumnType
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


class AvroSerializer(RegistrySerializer):
    """Writes keys or values in Avro's binary encoding, with Spark's own `to_avro`; AvroFormat reads them.

    The schema is derived from the columns, unless one is given: a record named `record`, with null for columns that
    allow it. Columns and fields are matched by name. Timestamps have microseconds, decimals all their digits. With
    another schema, a column may be written to a wider type (INT to long); a field without a column must allow null, and
    becomes null.

    A schema other than a record takes one column; a null in it becomes a null key or value.

    Args:
        schema: The schema to register, as JSON or a Python object. Default: derived from the columns.
        registry: See RegistrySerializer.
        columns: See RegistrySerializer.
        use_latest: See RegistrySerializer.
        subject: See RegistrySerializer.
    """

    kind = "AVRO"

    @check_arguments
    def __init__(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        registry: SchemaRegistry | str,
        columns: Sequence[str] = (),
        use_latest: bool = False,
        subject: str | None = None,
    ) -> None:
        super().__init__(
            registry=registry,
            columns=columns,  # pyright: ignore[reportArgumentType]
            declared=schema,  # pyright: ignore[reportArgumentType]
            use_latest=use_latest,
            subject=subject,
        )

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> str | None:
        if declared is None:
            return None
        text = declared_text(declared, "AvroSerializer")
        AvroSchema.of(text)
        return text

    def made(self, columns: ColumnType, latest: RegisteredSchema | None) -> str:
        """The schema of columns."""
        del latest
        return json.dumps(avro_of(columns))

    def whole(self, columns: ColumnType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem."""
        try:
            parsed = AvroSchema.of(schema.text, schema.references)
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from None
        conversion = conversion_of(columns, parsed, what)
        whole = struct_of(columns.names)
        value = whole if parsed.fields is not None else whole.getField(columns.names[0])
        problem = None if conversion.wrong is None else conversion.wrong(value)
        return serialized(_to_avro(conversion.changed(value), parsed), problem), b""


def _to_avro(value: Column, schema: AvroSchema) -> Column:
    from pyspark.sql.avro.functions import to_avro

    try:
        return to_avro(value, schema.text)
    except TypeError as error:
        # py4j's, of a session without Spark's functions for Avro.
        raise SparkSessionError(
            "Spark has no to_avro: the session lacks the jar org.apache.spark:spark-avro of Spark's version",
            "Add it to spark.jars.packages; sessions that this package starts have it",
        ) from error


def avro_of(columns: ColumnType) -> dict[str, Any]:
    """Returns the Avro schema of columns: a record with Flink's name for it."""
    check_columns(columns, "Avro", ("STRING",))
    return to_avro(columns, "record", ".")


_TIMES = {"TIMESTAMP_LTZ": "timestamp-", "TIMESTAMP_NTZ": "local-timestamp-"}
# The columns whose values a type has, the one that Spark writes as it first.
_FITTING = {
    "boolean": ("BOOLEAN",),
    "int": ("INT", "SMALLINT", "TINYINT", "DATE"),
    "long": ("BIGINT", "INT", "SMALLINT", "TINYINT"),
    "float": ("FLOAT",),
    "double": ("DOUBLE", "FLOAT", "INT", "SMALLINT", "TINYINT"),
    "bytes": ("BINARY",),
}
_UUID = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"


@dataclass(frozen=True, kw_only=True)
class _AvroPath(SchemaPath):
    """A path in a schema with these named types."""

    named: Mapping[str, dict[str, Any]]


def conversion_of(columns: ColumnType, schema: AvroSchema, what: str) -> Conversion:
    """Returns how columns are written with a schema: by the names of fields, without the loss of a digit."""
    at = _AvroPath(what=what, named=schema.named())
    if schema.fields is not None:
        return _record_conversion(columns, schema.fields, at)
    if len(columns.fields) != 1:
        raise ConfigurationError(
            f"{what} is not a record, but there are {len(columns.fields)} columns ({', '.join(columns.names)})",
            "Name one (columns=...), or use a record",
        )
    (field,) = columns.fields
    # A null is a null key or value.
    return _conversion(field.type, schema.root, at.deeper(field.name), is_null=False)


def _record_conversion(struct: ColumnType, fields: list[dict[str, Any]], at: _AvroPath) -> Conversion:
    by_name = {field["name"]: field for field in fields}
    for name, field in by_name.items():
        if name not in struct.names and "null" not in _branches(field["type"], at):
            raise at.deeper(f".{name}").misfit("is a field that can't be null, and the table has no such column")
    conversions: list[tuple[str, Conversion]] = []
    for column in struct.fields:
        inside = at.deeper(f".{column.name}")
        if column.name not in by_name:
            raise inside.misfit(f"is a column, but the schema has no such field; its fields are {', '.join(by_name)}")
        conversions.append(
            (column.name, _conversion(column.type, by_name[column.name]["type"], inside, is_null=column.is_null))
        )
    return of_struct(conversions)


def _branches(avro_type: AvroType, at: _AvroPath) -> list[AvroType]:
    found = resolved(avro_type, at.named)
    return found if isinstance(found, list) else [found]


def _conversion(column: ColumnType, avro_type: AvroType, at: _AvroPath, *, is_null: bool) -> Conversion:
    branches = _branches(avro_type, at)
    others = [each for each in branches if each != "null"]
    if len(others) != 1:
        raise at.misfit(f"is a union of {len(others)} types, but a column has only one type")
    conversion = _value_conversion(column, resolved(others[0], at.named), at)
    return conversion.required(at.path) if is_null and "null" not in branches else conversion


def _value_conversion(column: ColumnType, avro_type: Any, at: _AvroPath) -> Conversion:
    of = kind(avro_type)
    if column.name == "STRUCT" and of == "record":
        return _record_conversion(column, avro_type["fields"], at)
    if column.name == "ARRAY" and of == "array":
        element = column.inner
        return of_array(_conversion(element.type, avro_type["items"], at.deeper("[]"), is_null=element.is_null))
    if column.name == "MAP" and of == "map" and column.fields[0].type == STRING:
        values, value = at.deeper("{}"), column.inner
        return of_map(_conversion(value.type, avro_type["values"], values, is_null=value.is_null), of_text(values.path))
    given = avro_type if isinstance(avro_type, dict) else {}
    conversion = _scalar_conversion(column, of, given, at)
    if conversion is None:
        logical = given.get("logicalType")
        raise at.misfit(f"is {column}, but {of if logical is None else f'{of} ({logical})'} in the schema")
    return conversion


def _scalar_conversion(column: ColumnType, of: str, given: Mapping[str, Any], at: _AvroPath) -> Conversion | None:
    """The conversion of a value that holds no others; None if the schema has another type."""
    from pyspark.sql import functions as f

    logical = given.get("logicalType")
    if column.name == "DECIMAL":
        return _decimal_conversion(column.digits, of, given)
    if column.name in _TIMES:
        return _time_conversion(_TIMES[column.name], logical, at)
    if column.name == "STRING":
        return _text_conversion(of, given, at)
    if column.name == "BINARY" and of == "fixed" and logical is None:
        size = given["size"]
        wrong = f"{at.path} does not have the {size} bytes of its fixed type"
        return without(lambda value: f.octet_length(value) != size, wrong)
    fitting = _FITTING.get(of, ("",))
    if column.name not in fitting or logical != ("date" if column.name == "DATE" else None):
        return None
    name = fitting[0].lower()
    return Conversion() if column.name in {fitting[0], "DATE"} else Conversion(lambda value: value.cast(name))


def _time_conversion(begin: str, logical: str | None, at: _AvroPath) -> Conversion | None:
    from pyspark.sql import functions as f

    if logical == f"{begin}millis":
        wrong = f"{at.path} has microseconds, but its schema has milliseconds"
        return without(lambda value: f.date_trunc("millisecond", value) != value, wrong)
    return Conversion() if logical == f"{begin}micros" else None


def _text_conversion(of: str, given: Mapping[str, Any], at: _AvroPath) -> Conversion | None:
    if of == "enum":
        symbols = [*given["symbols"]]
        return without(
            lambda value: ~value.isin(symbols), f"{at.path} is none of the {len(symbols)} symbols of its enum"
        )
    if of == "string" and given.get("logicalType") == "uuid":
        # Spark writes any text as one, and readers that know the type fail on the record.
        return without(lambda value: ~value.rlike(_UUID), f"{at.path} is not a UUID, as its schema says")
    return of_text(at.path) if of == "string" else None


def _decimal_conversion(digits: tuple[int, int], of: str, given: Mapping[str, Any]) -> Conversion | None:
    if given.get("logicalType") != "decimal" or of not in {"bytes", "fixed"}:
        return None
    precision, scale = given["precision"], given.get("scale", 0)
    if scale < digits[1] or precision - scale < digits[0] - digits[1]:
        return None
    if (precision, scale) == digits:
        return Conversion()
    return Conversion(lambda value: value.cast(f"decimal({precision}, {scale})"))
