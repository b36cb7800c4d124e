"""The columns of an Avro schema, and the schema of columns that are given as DDL, as Flink derives it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_schema import ANY_NAME, AvroSchema, kind, member_name, resolved
from dagster_kafka_flip.formats.ddl import fields_of, tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.formats.avro_schema import AvroType

_PLAIN: Mapping[str, Any] = {
    "BOOLEAN": "boolean",
    "INT": "int",
    "INTEGER": "int",
    "BIGINT": "long",
    "LONG": "long",
    "FLOAT": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
    "TIMESTAMP_LTZ": {"type": "long", "logicalType": "timestamp-micros"},
    "TIMESTAMP_NTZ": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_DECIMALS = frozenset({"DEC", "DECIMAL", "NUMERIC"})
_SPARKS_DECIMAL = (10, 0)
_INSTEAD = {"SMALLINT": "INT", "SHORT": "INT", "TINYINT": "INT", "BYTE": "INT", "CHAR": "STRING", "VARCHAR": "STRING"}

# Spark's type of a type and its logical type. Others make no other column.
_SPARKS: Mapping[tuple[str, str | None], str] = {
    ("boolean", None): "Boolean",
    ("int", None): "Integer",
    ("int", "date"): "Date",
    ("long", None): "Long",
    ("long", "timestamp-millis"): "Timestamp",
    ("long", "timestamp-micros"): "Timestamp",
    ("long", "local-timestamp-millis"): "TimestampNTZ",
    ("long", "local-timestamp-micros"): "TimestampNTZ",
    ("float", None): "Float",
    ("double", None): "Double",
    ("string", None): "String",
    ("enum", None): "String",
    ("bytes", None): "Binary",
    ("fixed", None): "Binary",
}


def spark_type(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> Any:
    """Spark's type for the values of an Avro type. All inside of it is nullable.

    Args:
        avro_type: The type.
        named: The definitions of named types.
    """
    from pyspark.sql import types as t

    found = resolved(avro_type, named)
    if isinstance(found, list):
        return _union_type(found, named)
    what, given = kind(found), found if isinstance(found, dict) else {}
    if what == "record":
        fields = given["fields"]
        return t.StructType([t.StructField(field["name"], spark_type(field["type"], named)) for field in fields])
    if what == "array":
        return t.ArrayType(spark_type(given["items"], named))
    if what == "map":
        return t.MapType(t.StringType(), spark_type(given["values"], named))
    logical = given.get("logicalType")
    if logical == "decimal" and what in {"bytes", "fixed"} and given.get("precision"):
        return t.DecimalType(given["precision"], given.get("scale", 0))
    return getattr(t, f"{_SPARKS.get((what, logical)) or _SPARKS[what, None]}Type")()


def _union_type(union: list[Any], named: Mapping[str, dict[str, Any]]) -> Any:
    """The type beside null; of several, one that has them all if they are numbers, else a STRUCT of them."""
    from pyspark.sql import types as t

    branches = [branch for branch in union if branch != "null"]
    if len(branches) == 1:
        return spark_type(branches[0], named)
    numbers = {kind(resolved(branch, named)) for branch in branches}
    if numbers == {"int", "long"}:
        return t.LongType()
    if numbers == {"float", "double"}:
        return t.DoubleType()
    return t.StructType([t.StructField(member_name(branch), spark_type(branch, named)) for branch in branches])


def avro_of(columns: Mapping[str, str]) -> dict[str, Any]:
    """The Avro schema of columns: a record with Flink's name for it, `record`.

    Args:
        columns: The DDL after the name, by name.

    Raises:
        ConfigurationError: A column has a type that Avro lacks. The message names it.
    """
    return _record(columns, ())


def misfit(columns: Mapping[str, str], schema: str) -> str | None:
    """Why an Avro schema does not give the columns; None if it does.

    Args:
        columns: The DDL after the name, by name.
        schema: The Avro schema as JSON.

    Raises:
        ConfigurationError: It is not an Avro schema, or a column has a type that Avro lacks.
    """
    given = AvroSchema.of(schema)
    return _misfit(avro_of(columns), given.root, given.named(), "")


def times_of(columns: Mapping[str, str]) -> list[str]:
    """The columns that are or contain times, whose unit is not in the DDL."""
    return [name for name, column in columns.items() if "timestamp-micros" in json.dumps(_type(column, (name,)))]


def _record(columns: Mapping[str, str], path: tuple[str, ...]) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    for name, column in columns.items():
        avro_type = _type(column, (*path, name))
        default = {"default": None} if isinstance(avro_type, list) else {}
        fields.append({"name": name, "type": avro_type, **default})
    return {"type": "record", "name": "_".join(("record", *path)), "fields": fields, ANY_NAME: True}


def _type(column: str, path: tuple[str, ...]) -> Any:
    """The type of a column, with null unless it is NOT NULL."""
    tokens = [text for text, _, _ in tokens_of(column)]
    words = [each.upper() for each in tokens]
    end = _end_of_type(words)
    found = _not_null(column, words[:end], path)
    is_required = any(pair == ("NOT", "NULL") for pair in zip(words[end:], words[end + 1 :], strict=False))
    return found if is_required else ["null", found]


def _not_null(column: str, words: list[str], path: tuple[str, ...]) -> Any:
    name, where = words[0], ".".join(path)
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _DECIMALS:
        precision, scale = [*(int(word) for word in words if word.isdecimal()), 0][:2] if words[1:] else _SPARKS_DECIMAL
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if name == "STRUCT":
        return _record(fields_of(_inside(column)), path)
    if name == "ARRAY":
        return {"type": "array", "items": _type(_inside(column), path)}
    if name == "MAP":
        inside = _inside(column)
        key, comma = tokens_of(inside)[:2]
        if key[0].upper() != "STRING" or comma[0] != ",":
            raise ConfigurationError(f"schema: {where}: the keys of a MAP in Avro are STRING: declare MAP<STRING, ...>")
        return {"type": "map", "values": _type(inside[comma[2] :], path)}
    instead = _INSTEAD.get(name)
    advice = "leave it out" if instead is None else f"declare {instead}, and cast it in the transform"
    raise ConfigurationError(f"schema: {where}: Avro has no type for {name}; {advice}")


def _end_of_type(words: list[str]) -> int:
    """The number of the tokens that are the type."""
    depth = 0
    for number, word in enumerate(words[1:], start=1):
        if depth == 0 and word not in {"<", "("}:
            return number
        depth += (word in {"<", "("}) - (word in {">", ")"})
    return len(words)


def _inside(column: str) -> str:
    """What is between the outer angle brackets of a type."""
    tokens = tokens_of(column)
    end = _end_of_type([text for text, _, _ in tokens])
    return column[tokens[1][2] : tokens[end - 1][1]]


def _misfit(wanted: Any, given: Any, named: Mapping[str, Any], path: str) -> str | None:
    """Compares what columns they give; whether null is allowed is the schema's to say."""
    wanted, given = _alone(wanted), _alone(given)
    given = named.get(given, given) if isinstance(given, str) else given
    if _column(wanted) != _column(given):
        return f"{path or 'the schema'} is {_column(given)}, but the column is {_column(wanted)}"
    if not isinstance(wanted, dict):
        return None
    for inner, mark in (("items", "[]"), ("values", "{}")):
        if inner in wanted:
            return _misfit(wanted[inner], given[inner], named, f"{path}{mark}")
    return _misfit_inside(wanted, given, named, path) if "fields" in wanted else None


def _misfit_inside(
    wanted: Mapping[str, Any], given: Mapping[str, Any], named: Mapping[str, Any], path: str
) -> str | None:
    names, others = ([field["name"] for field in each["fields"]] for each in (wanted, given))
    if names != others:
        inside = f"{path} has" if path else "it has"
        return f"{inside} the fields {', '.join(others)}, but the columns are {', '.join(names)}"
    pairs = zip(wanted["fields"], given["fields"], strict=True)
    found = (
        _misfit(one["type"], other["type"], named, f"{path}.{one['name']}" if path else one["name"])
        for one, other in pairs
    )
    return next(filter(None, found), None)


def _alone(avro_type: Any) -> Any:
    """The type beside null."""
    if not isinstance(avro_type, list):
        return avro_type
    others = [each for each in avro_type if each != "null"]
    return others[0] if len(others) == 1 else others


def _column(avro_type: Any) -> str:
    """What decides which column Spark makes of a type."""
    found = kind(avro_type)
    logical = avro_type.get("logicalType") if isinstance(avro_type, dict) else None
    if logical == "decimal":
        return f"decimal({avro_type['precision']}, {avro_type.get('scale', 0)})"
    return (_SPARKS.get((found, logical)) or _SPARKS.get((found, None)) or found).lower()
