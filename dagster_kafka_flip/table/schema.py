"""Compares a batch's columns with the table's before the write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import DataType, StructField, StructType

_COLUMN_MAPPING = "delta.columnMapping.mode"
# Parquet's restriction for column names without column mapping.
_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
_NESTED = frozenset({"array", "map", "struct", "variant"})


def check_schema(batch: StructType, table: StructType, name: str, *, may_add: bool) -> None:
    """Checks that a batch's columns fit a table's.

    Compares names case-insensitively, like Spark and Delta. Columns that only the table has are filled with nulls and
    must be nullable.

    Args:
        batch: The batch's columns.
        table: The table's columns.
        name: The table's name, for messages.
        may_add: Whether to add columns that only the batch has.

    Raises:
        SchemaMismatchError: A column is new and may not be added, has another type, or is required and missing.
    """
    added: list[str] = []
    changed: list[str] = []
    _compare(batch, table, "", added, changed)
    named = {field.name.lower() for field in batch.fields}
    missing = [field.name for field in table.fields if not field.nullable and field.name.lower() not in named]
    if changed:
        msg = (
            f"the batch does not fit the table {name}: {'; '.join(changed)}. Nothing was written. Change the value "
            "format, cast in the transform, or use another table"
        )
        raise SchemaMismatchError(msg)
    if missing:
        msg = (
            f"the table {name} requires {', '.join(missing)}, which the batch does not have. Nothing was written. Add "
            "the column in the transform, or drop NOT NULL from the table's"
        )
        raise SchemaMismatchError(msg)
    if added and not may_add:
        msg = (
            f"the table {name} has no column {', '.join(added)}. Nothing was written. Set schema_evolution=True to "
            "add it, or drop it in the transform"
        )
        raise SchemaMismatchError(msg)


def check_can_be_stored(
    schema: StructType, name: str, *, properties: Mapping[str, str], partition_by: Sequence[str]
) -> None:
    """Checks that Delta can create and write a table with these columns.

    Args:
        schema: The columns.
        name: The table's name, for messages.
        properties: Delta's table properties.
        partition_by: Partition columns.

    Raises:
        ConfigurationError: Delta does not support a column's name or type.
    """
    is_mapped = properties.get(_COLUMN_MAPPING, "none") != "none"
    wrong = [*_not_storable(schema, "", is_mapped=is_mapped)]
    by_name = {field.name.lower(): field for field in schema.fields}
    for column in partition_by:
        kind = by_name[column.lower()].dataType
        if kind.typeName() in _NESTED:
            wrong.append(f"the column {column!r} has the type {kind.simpleString()}, which can't be a partition column")
    if wrong:
        msg = f"the table {name} can't be created: {'; '.join(wrong)}. Nothing was written"
        raise ConfigurationError(msg)


def _not_storable(kind: DataType, path: str, *, is_mapped: bool) -> Iterator[str]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        if not kind.fields:
            yield f"the column {path!r} is a STRUCT without fields, which Parquet can't store; drop it"
        yield from _wrong_names(kind, path, is_mapped=is_mapped)
        for field in kind.fields:
            yield from _not_storable(field.dataType, f"{path}.{field.name}".lstrip("."), is_mapped=is_mapped)
    elif isinstance(kind, ArrayType):
        yield from _not_storable(kind.elementType, path, is_mapped=is_mapped)
    elif isinstance(kind, MapType):
        yield from _not_storable(kind.keyType, path, is_mapped=is_mapped)
        yield from _not_storable(kind.valueType, path, is_mapped=is_mapped)
    elif "interval" in kind.typeName():
        yield (
            f"the column {path!r} has the type {kind.simpleString()}, which Delta can't store; declare it as STRING, "
            "or convert it to a number in the transform"
        )


def _wrong_names(struct: StructType, path: str, *, is_mapped: bool) -> Iterator[str]:
    seen: set[str] = set()
    for field in struct.fields:
        column = f"{path}.{field.name}".lstrip(".")
        if field.name.lower() in seen:
            yield f"there are two columns {column!r}; column names in Spark and Delta are case-insensitive"
        seen.add(field.name.lower())
        if not is_mapped and not _NOT_IN_NAMES.isdisjoint(field.name):
            yield (
                f"the name {column!r} contains a space, a newline, or one of ,;{{}}()=; rename it in the "
                f'transform, or set properties={{"{_COLUMN_MAPPING}": "name"}}'
            )


def _compare(batch: StructType, table: StructType, prefix: str, added: list[str], changed: list[str]) -> None:
    existing = {field.name.lower(): field for field in table.fields}
    for field in batch.fields:
        path = f"{prefix}{field.name}"
        known = existing.get(field.name.lower())
        if known is None:
            added.append(f"{path} ({field.dataType.simpleString()})")
        else:
            _compare_types(field.dataType, known.dataType, path, added, changed)


def _compare_types(batch: DataType, table: DataType, path: str, added: list[str], changed: list[str]) -> None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(batch, StructType) and isinstance(table, StructType):
        _compare(batch, table, f"{path}.", added, changed)
    elif isinstance(batch, ArrayType) and isinstance(table, ArrayType):
        _compare_types(batch.elementType, table.elementType, f"{path}[]", added, changed)
    elif isinstance(batch, MapType) and isinstance(table, MapType):
        _compare_types(batch.keyType, table.keyType, f"{path} key", added, changed)
        _compare_types(batch.valueType, table.valueType, f"{path}{{}}", added, changed)
    elif batch != table:
        changed.append(
            f"the column {path} is {table.simpleString()} in the table and {batch.simpleString()} in the batch"
        )


def column_ddl(schema: StructType) -> str:
    """Formats the columns of a new table as DDL. All columns are nullable: a tombstone has no values.

    Spark's own DDL uses TIMESTAMP, which a session can interpret as another type (`spark.sql.timestampType`).
    """
    return ", ".join(f"{quoted(field.name)} {_type_ddl(field.dataType)}{_comment(field)}" for field in schema.fields)


def _type_ddl(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, StructType):
        fields = (
            f"{quoted(field.name)}: {_type_ddl(field.dataType)}{'' if field.nullable else ' NOT NULL'}{_comment(field)}"
            for field in kind.fields
        )
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_ddl(kind.keyType)}, {_type_ddl(kind.valueType)}>"
    return "TIMESTAMP_LTZ" if isinstance(kind, TimestampType) else kind.simpleString()


def names_and_types(schema: StructType | None) -> tuple[tuple[str, str], ...]:
    """Name and type of each column; empty if they are unknown.

    Args:
        schema: The columns; None if they are unknown.
    """
    return () if schema is None else tuple((field.name, field.dataType.simpleString()) for field in schema.fields)


def comments(schema: StructType | None) -> dict[str, str]:
    """The comment of each column that has one.

    Args:
        schema: The columns; None if they are unknown.
    """
    fields = () if schema is None else schema.fields
    return {field.name: str(text) for field in fields if (text := (field.metadata or {}).get("comment")) is not None}


def _comment(field: StructField) -> str:
    comment = (field.metadata or {}).get("comment")
    return "" if comment is None else f" COMMENT {literal(str(comment))}"
