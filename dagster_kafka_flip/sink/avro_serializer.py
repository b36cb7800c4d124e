"""AvroSerializer: columns in Avro's binary encoding, with a schema registry.

The schema of columns, and how their values are written with a given one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_schema import AvroSchema, declared_text, kind, no_spark_avro, resolved
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.nested import (
    INSTEAD,
    Conversion,
    SchemaPath,
    check_name,
    of_array,
    of_map,
    of_struct,
    of_text,
)
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializer import serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.formats.avro_schema import AvroType
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
        schema: The schema to register, as JSON or as a Python object. Default: derived from the columns.
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

    def made(self, columns: StructType, latest: RegisteredSchema | None) -> str:
        """The schema of columns."""
        del latest
        return json.dumps(avro_of(columns))

    def whole(self, columns: StructType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
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
        raise no_spark_avro("to_avro") from error


# Flink's name for the record of a table's columns.
_RECORD = "record"


def avro_of(columns: StructType) -> dict[str, Any]:
    """Returns the Avro schema of columns: a record with one field for each, null first where a column allows it.

    Raises:
        ConfigurationError: A column has no exact form in Avro. The message names it.
    """
    return _record(columns, _RECORD, "")


def _record(struct: StructType, name: str, path: str) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    for field in struct.fields:
        at = f"{path}.{field.name}".lstrip(".")
        check_name(field.name, at, "Avro")
        avro_type = _nullable(_type(field.dataType, f"{name}.{field.name}", at), is_null=field.nullable)
        fields.append({"name": field.name, "type": avro_type, **({"default": None} if field.nullable else {})})
    return {"type": "record", "name": name, "fields": fields}


def _nullable(avro_type: Any, *, is_null: bool) -> Any:
    return ["null", avro_type] if is_null else avro_type


def _type(found: DataType, name: str, path: str) -> Any:
    from pyspark.sql import types as t

    if isinstance(found, t.StructType):
        return _record(found, name, path)
    if isinstance(found, t.ArrayType):
        return {
            "type": "array",
            "items": _nullable(_type(found.elementType, name, f"{path}[]"), is_null=found.containsNull),
        }
    if isinstance(found, t.MapType):
        if not isinstance(found.keyType, t.StringType):
            raise ConfigurationError(
                f"the map {path} has keys of type {found.keyType.simpleString()}, but keys in Avro are strings. "
                f"{INSTEAD}"
            )
        values = _nullable(_type(found.valueType, name, f"{path}{{}}"), is_null=found.valueContainsNull)
        return {"type": "map", "values": values}
    if isinstance(found, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": found.precision, "scale": found.scale}
    if isinstance(found, t.StringType):
        return "string"
    plain: dict[type[DataType], Any] = {
        t.BooleanType: "boolean",
        t.ByteType: "int",
        t.ShortType: "int",
        t.IntegerType: "int",
        t.LongType: "long",
        t.FloatType: "float",
        t.DoubleType: "double",
        t.BinaryType: "bytes",
        t.DateType: {"type": "int", "logicalType": "date"},
        t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
        t.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
    }
    if type(found) not in plain:
        raise ConfigurationError(
            f"the column {path} is {found.simpleString()}, which has no exact form in Avro", INSTEAD
        )
    return plain[type(found)]


@dataclass(frozen=True, kw_only=True)
class _AvroPath(SchemaPath):
    """A path in a schema with these named types."""

    named: Mapping[str, dict[str, Any]]


def conversion_of(columns: StructType, schema: AvroSchema, what: str) -> Conversion:
    """Returns how columns are written with a schema: by the names of fields, without the loss of a digit.

    Args:
        columns: The columns, as one struct.
        schema: A schema whose root is a record; or another one, for a single column.
        what: The schema's name in an error.
    """
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
    return _conversion(field.dataType, schema.root, at.deeper(field.name), is_null=False)


def _record_conversion(struct: StructType, fields: list[dict[str, Any]], at: _AvroPath) -> Conversion:
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
            (column.name, _conversion(column.dataType, by_name[column.name]["type"], inside, is_null=column.nullable))
        )
    return of_struct(conversions)


def _branches(avro_type: AvroType, at: _AvroPath) -> list[AvroType]:
    found = resolved(avro_type, at.named)
    return found if isinstance(found, list) else [found]


def _conversion(column: DataType, avro_type: AvroType, at: _AvroPath, *, is_null: bool) -> Conversion:
    branches = _branches(avro_type, at)
    others = [each for each in branches if each != "null"]
    if len(others) != 1:
        raise at.misfit(f"is a union of {len(others)} types, but a column has only one type")
    conversion = _value_conversion(column, resolved(others[0], at.named), at)
    return conversion.required(at.path) if is_null and "null" not in branches else conversion


def _value_conversion(column: DataType, avro_type: Any, at: _AvroPath) -> Conversion:
    from pyspark.sql import types as t

    of = kind(avro_type)
    if isinstance(column, t.StructType) and of == "record":
        return _record_conversion(column, avro_type["fields"], at)
    if isinstance(column, t.ArrayType) and of == "array":
        return of_array(
            _conversion(column.elementType, avro_type["items"], at.deeper("[]"), is_null=column.containsNull)
        )
    if isinstance(column, t.MapType) and of == "map" and isinstance(column.keyType, t.StringType):
        values = at.deeper("{}")
        value = _conversion(column.valueType, avro_type["values"], values, is_null=column.valueContainsNull)
        return of_map(value, of_text(values.path))
    conversion = _scalar_conversion(column, of, avro_type if isinstance(avro_type, dict) else {}, at)
    if conversion is None:
        logical = avro_type.get("logicalType") if isinstance(avro_type, dict) else None
        name = of if logical is None else f"{of} ({logical})"
        raise at.misfit(f"is {column.simpleString()}, but {name} in the schema")
    return conversion


def _scalar_conversion(column: DataType, of: str, avro_type: Mapping[str, Any], at: _AvroPath) -> Conversion | None:
    """The conversion of a value that holds no others; None if the schema has another type."""
    from pyspark.sql import types as t

    logical = avro_type.get("logicalType")
    if isinstance(column, t.DecimalType):
        return _decimal_conversion(column, of, avro_type)
    if isinstance(column, (t.TimestampType, t.TimestampNTZType)):
        return _time_conversion(
            "timestamp-" if isinstance(column, t.TimestampType) else "local-timestamp-", logical, at
        )
    if isinstance(column, t.StringType) and of == "enum":
        return _enum_conversion([*avro_type["symbols"]], at)
    if isinstance(column, t.BinaryType) and of == "fixed" and logical is None:
        return _fixed_conversion(avro_type["size"], at)
    plain = {t.DateType: "int", t.StringType: "string", t.BinaryType: "bytes", t.BooleanType: "boolean"}
    name = next((name for each, name in plain.items() if isinstance(column, each)), None)
    # A text may be a uuid; of other types a logical type is another type.
    if name != "string" and logical != ("date" if name == "int" else None):
        return None
    plain_conversion = (of_text(at.path) if name == "string" else Conversion()) if of == name else None
    return _number_conversion(column, of) if name is None else plain_conversion


def _time_conversion(begin: str, logical: str | None, at: _AvroPath) -> Conversion | None:
    from pyspark.sql import functions as f

    if logical == f"{begin}micros":
        return Conversion()
    if logical != f"{begin}millis":
        return None
    wrong = f"{at.path} has microseconds, but its schema has milliseconds"
    return Conversion(wrong=lambda value: f.when(f.date_trunc("millisecond", value) != value, f.lit(wrong)))


def _enum_conversion(symbols: list[str], at: _AvroPath) -> Conversion:
    from pyspark.sql import functions as f

    # The value is not shown: it may be a secret.
    wrong = f"{at.path} is none of the {len(symbols)} symbols of its enum"
    return Conversion(wrong=lambda value: f.when(value.isNotNull() & ~value.isin(symbols), f.lit(wrong)))


def _fixed_conversion(size: int, at: _AvroPath) -> Conversion:
    from pyspark.sql import functions as f

    wrong = f"{at.path} does not have the {size} bytes of its fixed type"
    return Conversion(wrong=lambda value: f.when(f.octet_length(value) != size, f.lit(wrong)))


def _decimal_conversion(column: Any, of: str, avro_type: Mapping[str, Any]) -> Conversion | None:
    if avro_type.get("logicalType") != "decimal" or of not in {"bytes", "fixed"}:
        return None
    precision, scale = avro_type["precision"], avro_type.get("scale", 0)
    if scale < column.scale or precision - scale < column.precision - column.scale:
        return None
    if (precision, scale) == (column.precision, column.scale):
        return Conversion()
    return Conversion(lambda value: value.cast(f"decimal({precision}, {scale})"))


def _number_conversion(column: DataType, of: str) -> Conversion | None:
    from pyspark.sql import types as t

    small = (t.ByteType, t.ShortType, t.IntegerType)
    wide: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        "int": (small, "int"),
        "long": ((*small, t.LongType), "bigint"),
        "float": ((t.FloatType,), "float"),
        "double": ((t.FloatType, t.DoubleType, *small), "double"),
    }
    if of not in wide or not isinstance(column, wide[of][0]):
        return None
    name = wide[of][1]
    return Conversion() if column.simpleString() == name else Conversion(lambda value: value.cast(name))
