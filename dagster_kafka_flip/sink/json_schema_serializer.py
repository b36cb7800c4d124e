"""JsonSchemaSerializer: the JSON Schema of columns, and how their values fit a given one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import STRING, WHOLE, ColumnType
from dagster_kafka_flip.formats.json_schema import AS_NUMBERS, DECIMAL, HOW_WRITTEN, PRECISION, members_of
from dagster_kafka_flip.formats.json_shapes import ANY_KIND, ArrayOf, Members
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.sink import conversion
from dagster_kafka_flip.sink.conversion import NOT_NULL, Conversion, SchemaPath, of_text, without
from dagster_kafka_flip.sink.serializers import RegistrySerializer, check_json, json_of, serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from dagster_kafka_flip.formats.column_types import Field
    from dagster_kafka_flip.formats.json_shapes import Kind, Shape
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schemas import Schemas
    from dagster_kafka_flip.sink.conversion import Inside


class JsonSchemaSerializer(RegistrySerializer):
    """Writes keys or values as JsonSerializer does, with a JSON Schema in a registry; JsonFormat reads them.

    The schema is derived from the columns, unless one is given. It allows no other fields, and names types as Kafka
    Connect does. With another schema, a null is left out if the schema neither allows it nor requires the field. Types,
    required fields and nulls are checked; `pattern`, `enum` and the like are not.

    Attributes:
        schema: The schema to register, as JSON or a Python object. Default: derived from the columns.
    """

    kind = "JSON"

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

    def made(self, columns: ColumnType, schemas: Schemas, subject: str) -> str:
        del schemas, subject
        return json.dumps(json_schema_of(columns), ensure_ascii=False)

    def whole(self, columns: ColumnType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        members = members_of(schema.text, schema.references, what=what)
        value, problem = struct_of(columns.names), conversion_of(columns, members, what).problem
        return serialized(json_of(value, has_nulls=not _leaves_out(columns, members)), problem(value)), b""


_DRAFT = "http://json-schema.org/draft-07/schema#"

_PLAIN: Mapping[str, Mapping[str, Any]] = {
    "BOOLEAN": {"type": "boolean"},
    **{name: {"type": "integer", "connect.type": f"int{8 << place}"} for place, name in enumerate(WHOLE)},
    "FLOAT": {"type": "number", "connect.type": "float32"},
    "DOUBLE": {"type": "number", "connect.type": "float64"},
    "STRING": {"type": "string"},
    "BINARY": {"type": "string", "contentEncoding": "base64", "connect.type": "bytes"},
    "DATE": {"type": "string", "format": "date"},
    "TIMESTAMP_LTZ": {"type": "string", "format": "date-time"},
    # JSON Schema has no format for times without an offset.
    "TIMESTAMP_NTZ": {"type": "string"},
}


def json_schema_of(columns: ColumnType) -> dict[str, Any]:
    """The JSON Schema of columns, with Kafka Connect's names for their types.

    It allows no other fields: only then a registry takes a column that is added as compatible.
    """
    check_json(columns)
    return {"$schema": _DRAFT, "title": "record", **_schema(columns)}


def _schema(kind: ColumnType) -> dict[str, Any]:
    if kind.name == "STRUCT":
        required = [field.name for field in kind.fields if not field.is_null]
        return {
            "type": "object",
            "properties": {field.name: _of(field) for field in kind.fields},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
    if kind.name == "ARRAY":
        return {"type": "array", "items": _of(kind.inner)}
    if kind.name == "MAP":
        return {"type": "object", "additionalProperties": _of(kind.inner)}
    if kind.name == "DECIMAL":
        precision, scale = map(str, kind.digits)
        parameters = {"scale": scale, PRECISION: precision, HOW_WRITTEN: AS_NUMBERS}
        return {"type": "number", "title": DECIMAL, "connect.type": "bytes", "connect.parameters": parameters}
    return {**_PLAIN[kind.name]}


def _of(field: Field) -> dict[str, Any]:
    found = _schema(field.type)
    return {**found, "type": [found["type"], "null"]} if field.is_null else found


def _leaves_out(kind: ColumnType, given: Kind | None) -> bool:
    """Whether a schema has fields that may be left out, but not be null, of columns that may be null."""
    if kind.name == "ARRAY" and isinstance(given, ArrayOf):
        return _leaves_out(kind.inner.type, given.element.kind)
    if kind.name != "STRUCT" or not isinstance(given, Members):
        return False
    shapes = [(each, given.fields[each.name]) for each in kind.fields if each.name in given.fields]
    return any(
        (each.is_null and not shape.is_null and each.name not in given.required) or _leaves_out(each.type, shape.kind)
        for each, shape in shapes
    )


def conversion_of(columns: ColumnType, members: Members, what: str) -> Conversion:
    """Which rows don't fit a schema. What `pattern`, `enum` and the like demand is not looked at."""
    check_json(columns)
    fit = partial(_fit, _leaves_out(columns, members))
    return conversion.conversion_of(columns, members, SchemaPath(what), fit)


def _fit(leaves_out: bool, kind: ColumnType, given: Kind | None, at: SchemaPath) -> Sequence[Inside] | Conversion:
    is_any = given == ANY_KIND
    if kind.name == "STRUCT" and (is_any or isinstance(given, Members)):
        return _members(kind, given if isinstance(given, Members) else Members(), at, leaves_out=leaves_out)
    if kind.name == "ARRAY" and (is_any or isinstance(given, ArrayOf)):
        return [_inside(given.element if isinstance(given, ArrayOf) else None)]
    if kind.name == "MAP" and (is_any or (isinstance(given, Members) and not given.fields)):
        return [(ANY_KIND, None), _inside(given.values if isinstance(given, Members) else None)]
    if not is_any and (not isinstance(given, ColumnType) or given.name not in _fitting(kind)):
        name = given if isinstance(given, ColumnType) else "an array" if isinstance(given, ArrayOf) else "an object"
        raise at.misfit(f"is {kind}, but {name if given else 'always null'} in the schema")
    if kind.name in {"FLOAT", "DOUBLE"}:
        return without(
            lambda value: f.isnan(value) | f.abs(value).eqNullSafe(f.lit(float("inf"))),
            f"{at.path} is NaN or infinite, which is not a number in JSON",
        )
    return of_text(at.path) if kind == STRING else Conversion()


def _members(struct: ColumnType, members: Members, at: SchemaPath, *, leaves_out: bool) -> Sequence[Inside]:
    for name in sorted(members.required):
        if name not in struct.names:
            raise at.deeper(f".{name}").misfit("is required, but the table has no such column")
    found: list[Inside] = []
    for name in struct.names:
        shape = members.fields.get(name, members.values)
        if shape is None and members.is_closed:
            properties = ", ".join(members.fields)
            why = f"is a column, but the schema has no such property; its properties are {properties}"
            raise at.deeper(f".{name}").misfit(why)
        part, why = _inside(shape)
        if shape is not None and leaves_out:
            # A field that must be there is left out with the others if it is null.
            why = NOT_NULL if name in members.required else None
        found.append((part, why))
    return found


def _inside(shape: Shape | None) -> Inside:
    return (ANY_KIND, None) if shape is None else (shape.kind, None if shape.is_null else NOT_NULL)


def _fitting(kind: ColumnType) -> tuple[str, ...]:
    """The kinds of a schema's values that each value of a column is one of."""
    if kind.name in WHOLE:
        # Each name also covers all numbers of the same size.
        return (*WHOLE[WHOLE.index(kind.name) :], "FLOAT", "DOUBLE", "DECIMAL")
    if kind.name == "DECIMAL":
        return ("FLOAT", "DOUBLE", "DECIMAL", *(("BIGINT",) if kind.digits[1] == 0 else ()))
    found = {**dict.fromkeys(("BOOLEAN", "DOUBLE", "STRUCT", "ARRAY", "MAP"), ()), "FLOAT": ("DOUBLE",)}
    return (kind.name, *found.get(kind.name, ("STRING",)))
