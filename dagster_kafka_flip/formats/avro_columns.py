"""Avro's types as columns, and columns as Avro's types."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_schema import ANY_NAME, AvroSchema, kind, member_name, resolved
from dagster_kafka_flip.formats.column_types import STRING, ColumnType, Field, array_of, map_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dagster_kafka_flip.formats.avro_schema import AvroType

_AVROS: Mapping[str, Any] = {
    "BOOLEAN": "boolean",
    "TINYINT": "int",
    "SMALLINT": "int",
    "INT": "int",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMP_LTZ": {"type": "long", "logicalType": "timestamp-micros"},
    "TIMESTAMP_NTZ": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_INSTEAD = {"SMALLINT": "INT", "TINYINT": "INT", "CHAR": "STRING", "VARCHAR": "STRING"}

# The column of a type and its logical type. Others make no other column.
_COLUMNS: Mapping[tuple[str, str | None], str] = {
    ("boolean", None): "BOOLEAN",
    ("int", None): "INT",
    ("int", "date"): "DATE",
    ("long", None): "BIGINT",
    ("long", "timestamp-millis"): "TIMESTAMP_LTZ",
    ("long", "timestamp-micros"): "TIMESTAMP_LTZ",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
    ("float", None): "FLOAT",
    ("double", None): "DOUBLE",
    ("string", None): "STRING",
    ("enum", None): "STRING",
    ("bytes", None): "BINARY",
    ("fixed", None): "BINARY",
}


def of_avro(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> ColumnType:
    """The column of an Avro type that has one. All inside of it is nullable."""
    found = resolved(avro_type, named)
    if isinstance(found, list):
        return _of_union(found, named)
    what, given = kind(found), found if isinstance(found, dict) else {}
    if what == "record":
        return _struct((field["name"], of_avro(field["type"], named)) for field in given["fields"])
    if what == "array":
        return array_of(of_avro(given["items"], named))
    if what == "map":
        return map_of(STRING, of_avro(given["values"], named))
    logical = given.get("logicalType")
    if logical == "decimal" and what in {"bytes", "fixed"} and given.get("precision"):
        return ColumnType("DECIMAL", digits=(given["precision"], given.get("scale", 0)))
    return ColumnType(_COLUMNS.get((what, logical)) or _COLUMNS[what, None])


def _of_union(union: list[Any], named: Mapping[str, dict[str, Any]]) -> ColumnType:
    """The column beside null; of several, one that has them all if they are numbers, else a STRUCT of them."""
    branches = [branch for branch in union if branch != "null"]
    if len(branches) == 1:
        return of_avro(branches[0], named)
    numbers = {kind(resolved(branch, named)) for branch in branches}
    if numbers == {"int", "long"}:
        return ColumnType("BIGINT")
    if numbers == {"float", "double"}:
        return ColumnType("DOUBLE")
    return _struct((member_name(branch), of_avro(branch, named)) for branch in branches)


def _struct(fields: Iterable[tuple[str, ColumnType]]) -> ColumnType:
    return ColumnType("STRUCT", tuple(Field(name, each) for name, each in fields))


def to_avro(column: ColumnType, name: str, between: str, marks: Mapping[str, Any] = {}) -> Any:
    """The Avro type of a checked column; null comes first where it is allowed. Records are named by their path."""

    def inside(field: Field, name: str) -> Any:
        found = to_avro(field.type, name, between, marks)
        return ["null", found] if field.is_null else found

    if column.name == "STRUCT":
        fields = [
            {
                "name": field.name,
                "type": inside(field, f"{name}{between}{field.name}"),
                **({"default": None} if field.is_null else {}),
            }
            for field in column.fields
        ]
        return {"type": "record", "name": name, "fields": fields, **marks}
    if column.name == "ARRAY":
        return {"type": "array", "items": inside(column.inner, name)}
    if column.name == "MAP":
        return {"type": "map", "values": inside(column.inner, name)}
    if column.name == "DECIMAL":
        precision, scale = column.digits
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return _AVROS[column.name]


def reader_of(columns: ColumnType) -> dict[str, Any]:
    """The reader schema of declared columns, named as Flink's; an error names a type that Avro lacks."""
    for path, field in parts_of(columns):
        column = field.type
        if column.name == "MAP" and column.fields[0].type != STRING:
            msg = f"schema: {path}: the keys of a MAP in Avro are STRING: declare MAP<STRING, ...>"
            raise ConfigurationError(msg)
        if column.name not in {*_AVROS, "DECIMAL", "STRUCT", "ARRAY", "MAP"} - _INSTEAD.keys():
            instead = _INSTEAD.get(column.name)
            advice = "leave it out" if instead is None else f"declare {instead}, and cast it in the transform"
            msg = f"schema: {path}: Avro has no type for {column.name}; {advice}"
            raise ConfigurationError(msg)
    return to_avro(columns, "record", "_", {ANY_NAME: True})


def misfit(columns: ColumnType, schema: str) -> str | None:
    """Why an Avro schema does not give the columns; None if it does. Whether null is allowed is the schema's to say."""
    given = AvroSchema.of(schema)
    given.check_columns("it")
    pairs = zip_longest(_parts(columns), _parts(of_avro(given.root, given.named())), fillvalue="no more")
    return next((f"it has {other}, but the columns have {one}" for one, other in pairs if one != other), None)


def _parts(kind: ColumnType) -> Iterator[str]:
    for path, field in parts_of(kind):
        yield f"{path} {field.type if field.type.name == 'DECIMAL' else field.type.name}"
