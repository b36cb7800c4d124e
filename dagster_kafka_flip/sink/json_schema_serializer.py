"""JsonSchemaSerializer: columns as JSON, with their JSON Schema in a schema registry.

The schema of columns, and how their values fit a given one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.json_schema import AS_NUMBERS, DECIMAL, HOW_WRITTEN, PRECISION, members_of
from dagster_kafka_flip.formats.json_shapes import ANY_KIND, ArrayOf, Members
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.nested import Conversion, SchemaPath, of_array, of_map, of_struct, of_text
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializer import serialized, struct_of
from dagster_kafka_flip.sink.serializers import check_json, json_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.formats.json_shapes import Kind, Shape
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


class JsonSchemaSerializer(RegistrySerializer):
    """Writes keys or values as JsonSerializer does, with a JSON Schema in a registry; JsonFormat reads them.

    The schema is derived from the columns, unless one is given. It allows no other fields, and names types as Kafka
    Connect does. With another schema, a null is left out if the schema neither allows it nor requires the field. Types,
    required fields and nulls are checked; `pattern`, `enum` and the like are not.

    Args:
        schema: The schema to register, as JSON or as a Python object. Default: derived from the columns.
        registry: See RegistrySerializer.
        columns: See RegistrySerializer.
        use_latest: See RegistrySerializer.
        subject: See RegistrySerializer.
    """

    kind = "JSON"

    @check_arguments
    def __init__(
        self,
        schema: str | Mapping[str, Any] | None = None,
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
        if isinstance(declared, Mapping):
            try:
                declared = json.dumps(declared)
            except RecursionError:
                raise ConfigurationError("the JsonSchemaSerializer's schema: it is nested too deeply") from None
        if not isinstance(declared, str):
            msg = f"a JsonSchemaSerializer's schema is JSON text or a mapping, not {type(declared).__name__}"
            raise ConfigurationError(msg)
        members_of(declared, what="the JsonSchemaSerializer's schema")
        return declared

    def made(self, columns: StructType, latest: RegisteredSchema | None) -> str:
        """The schema of columns."""
        del latest
        return json.dumps(json_schema_of(columns), ensure_ascii=False)

    def whole(self, columns: StructType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem."""
        members = members_of(schema.text, schema.references, what=what)
        leaves_out = leaves_out_nulls(columns, members)
        conversion = conversion_of(columns, members, what, leaves_out=leaves_out)
        value = struct_of(columns.names)
        problem = None if conversion.wrong is None else conversion.wrong(value)
        options = {"ignoreNullFields": "true"} if leaves_out else {}
        return serialized(json_of(value, options), problem), b""


_DRAFT = "http://json-schema.org/draft-07/schema#"


def json_schema_of(columns: StructType) -> dict[str, Any]:
    """Returns the JSON Schema of columns, with Kafka Connect's names for their types.

    It allows no other fields: only then a registry takes a column that is added as compatible.

    Raises:
        ConfigurationError: A column has no exact form in JSON. The message names it.
    """
    for field in columns.fields:
        check_json(field.name, field.dataType)
    return {"$schema": _DRAFT, "title": "record", **_object(columns)}


def _object(struct: StructType) -> dict[str, Any]:
    required = [field.name for field in struct.fields if not field.nullable]
    return {
        "type": "object",
        "properties": {field.name: _of(field.dataType, is_null=field.nullable) for field in struct.fields},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _of(kind: DataType, *, is_null: bool) -> dict[str, Any]:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        found = _object(kind)
    elif isinstance(kind, t.ArrayType):
        found = {"type": "array", "items": _of(kind.elementType, is_null=kind.containsNull)}
    elif isinstance(kind, t.MapType):
        found = {"type": "object", "additionalProperties": _of(kind.valueType, is_null=kind.valueContainsNull)}
    elif isinstance(kind, t.DecimalType):
        found = {
            "type": "number",
            "title": DECIMAL,
            "connect.type": "bytes",
            "connect.parameters": {
                "scale": str(kind.scale),
                PRECISION: str(kind.precision),
                HOW_WRITTEN: AS_NUMBERS,
            },
        }
    elif isinstance(kind, t.StringType):
        found = {"type": "string"}
    else:
        plain: dict[type[DataType], dict[str, Any]] = {
            t.BooleanType: {"type": "boolean"},
            t.ByteType: {"type": "integer", "connect.type": "int8"},
            t.ShortType: {"type": "integer", "connect.type": "int16"},
            t.IntegerType: {"type": "integer", "connect.type": "int32"},
            t.LongType: {"type": "integer", "connect.type": "int64"},
            t.FloatType: {"type": "number", "connect.type": "float32"},
            t.DoubleType: {"type": "number", "connect.type": "float64"},
            t.BinaryType: {"type": "string", "contentEncoding": "base64", "connect.type": "bytes"},
            t.DateType: {"type": "string", "format": "date"},
            t.TimestampType: {"type": "string", "format": "date-time"},
            # JSON Schema has no format for times without an offset.
            t.TimestampNTZType: {"type": "string"},
        }
        found = plain[type(kind)]
    return {**found, "type": [found["type"], "null"]} if is_null else found


@dataclass(frozen=True, kw_only=True)
class _JsonPath(SchemaPath):
    """A path in a schema, and whether fields that are null are left out."""

    leaves_out: bool


def leaves_out_nulls(columns: StructType, members: Members) -> bool:
    """Whether a schema has fields that may be left out, but not be null, of columns that may be null."""
    return any(_left_out(columns, members))


def _left_out(struct: StructType, members: Members) -> Iterator[bool]:
    from pyspark.sql.types import StructType

    for column in struct.fields:
        shape = members.fields.get(column.name)
        if shape is None:
            continue
        yield column.nullable and not shape.is_null and column.name not in members.required
        kind, inner = column.dataType, shape.kind
        while isinstance(inner, ArrayOf) and kind.typeName() == "array":
            kind, inner = kind.elementType, inner.element.kind  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(kind, StructType) and isinstance(inner, Members):
            yield from _left_out(kind, inner)


def conversion_of(columns: StructType, members: Members, what: str, *, leaves_out: bool) -> Conversion:
    """Returns which rows don't fit a schema. What `pattern`, `enum` and the like demand is not looked at.

    Args:
        columns: The columns, as one struct.
        members: What the schema's objects look like.
        what: The schema's name in an error.
        leaves_out: Whether fields that are null are left out.

    Raises:
        ConfigurationError: The columns don't fit. The message names one.
    """
    for field in columns.fields:
        check_json(field.name, field.dataType)
    return _object_conversion(columns, members, _JsonPath(what=what, leaves_out=leaves_out))


def _object_conversion(struct: StructType, members: Members, at: _JsonPath) -> Conversion:
    for name in sorted(members.required):
        if name not in struct.names:
            raise at.deeper(f".{name}").misfit("is required, but the table has no such column")
    conversions: list[tuple[str, Conversion]] = []
    for column in struct.fields:
        inside, shape = at.deeper(f".{column.name}"), members.fields.get(column.name, members.values)
        if shape is None and members.is_closed:
            properties = ", ".join(members.fields)
            raise inside.misfit(f"is a column, but the schema has no such property; its properties are {properties}")
        if shape is None:
            conversion = _value_conversion(column.dataType, ANY_KIND, inside)
        else:
            conversion = _value_conversion(column.dataType, shape.kind, inside)
            is_left_out = at.leaves_out and column.name not in members.required
            # A field that must be there is left out with the others if it is null.
            if column.nullable and not is_left_out and (at.leaves_out or not shape.is_null):
                conversion = conversion.required(inside.path)
        conversions.append((column.name, conversion))
    return of_struct(conversions)


def _inner_conversion(kind: DataType, shape: Shape | None, at: _JsonPath, *, is_null: bool) -> Conversion:
    if shape is None:
        return _value_conversion(kind, ANY_KIND, at)
    conversion = _value_conversion(kind, shape.kind, at)
    return conversion.required(at.path) if is_null and not shape.is_null else conversion


def _value_conversion(kind: DataType, shape: Kind | None, at: _JsonPath) -> Conversion:
    from pyspark.sql import types as t

    is_any = shape == ANY_KIND
    if isinstance(kind, t.StructType) and (
        is_any or (isinstance(shape, Members) and (shape.fields or not shape.values))
    ):
        return _object_conversion(kind, shape if isinstance(shape, Members) else Members(), at)
    if isinstance(kind, t.ArrayType) and (is_any or isinstance(shape, ArrayOf)):
        element = shape.element if isinstance(shape, ArrayOf) else None
        return of_array(_inner_conversion(kind.elementType, element, at.deeper("[]"), is_null=kind.containsNull))
    if isinstance(kind, t.MapType) and (is_any or (isinstance(shape, Members) and not shape.fields)):
        values, inside = shape.values if isinstance(shape, Members) else None, at.deeper("{}")
        key = of_text(inside.path) if isinstance(kind.keyType, t.StringType) else Conversion()
        return of_map(_inner_conversion(kind.valueType, values, inside, is_null=kind.valueContainsNull), key)
    if not is_any and (not isinstance(shape, str) or shape.partition("(")[0] not in _fitting(kind)):
        name = shape if isinstance(shape, str) else "an array" if isinstance(shape, ArrayOf) else "an object"
        raise at.misfit(f"is {kind.simpleString()}, but {name if shape else 'always null'} in the schema")
    if isinstance(kind, t.StringType):
        return of_text(at.path)
    return _number_conversion(at) if isinstance(kind, (t.FloatType, t.DoubleType)) else Conversion()


def _fitting(kind: DataType) -> tuple[str, ...]:
    """The kinds of a schema's values that each value of a column is one of."""
    from pyspark.sql import types as t

    if isinstance(kind, t.IntegralType):
        # Each name also covers all numbers of the same size.
        names = ("TINYINT", "SMALLINT", "INT", "BIGINT")
        sizes = {"byte": 0, "short": 1, "integer": 2, "long": 3}
        return (*names[sizes[kind.typeName()] :], "FLOAT", "DOUBLE", "DECIMAL")
    if isinstance(kind, t.DecimalType):
        return ("FLOAT", "DOUBLE", "DECIMAL", *(("BIGINT",) if kind.scale == 0 else ()))
    found: dict[type[DataType], tuple[str, ...]] = {
        t.BooleanType: ("BOOLEAN",),
        t.FloatType: ("FLOAT", "DOUBLE"),
        t.DoubleType: ("DOUBLE",),
        t.BinaryType: ("BINARY", "STRING"),
        t.DateType: ("DATE", "STRING"),
        t.TimestampType: ("TIMESTAMP_LTZ", "STRING"),
    }
    return found.get(type(kind), ("STRING",))


def _number_conversion(at: _JsonPath) -> Conversion:
    from pyspark.sql import functions as f

    wrong, infinite = f"{at.path} is NaN or infinite, which is not a number in JSON", float("inf")
    return Conversion(
        wrong=lambda value: f.when(f.isnan(value) | f.abs(value).eqNullSafe(f.lit(infinite)), f.lit(wrong))
    )
