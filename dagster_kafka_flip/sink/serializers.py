"""Serializers: columns to the bytes of a key or value, by Spark expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import near_names
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

# Microseconds, as Delta holds them; Spark's default writes milliseconds. UTC, so that no session's zone shows.
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}


class JsonSerializer(Settings):
    """A JSON object of columns: all digits of decimals, times in microseconds and UTC, bytes as Base64, nulls as null.

    Attributes:
        columns: The columns. Default: all columns of the table, for a value also `_change_type` if it has deleted rows
            or previous values. `_change_type`, `_commit_version` and `_commit_timestamp` can be named.
    """

    columns: tuple[str, ...] = ()

    def encode(self, schema: StructType, default: Sequence[str]) -> Column:
        """Returns the expression of the bytes; null if there is no column at all.

        Args:
            schema: Type of the rows.
            default: The columns, if the serializer names none.

        Raises:
            ConfigurationError: A column does not exist, or has no exact form in JSON.
        """
        from pyspark.sql import functions as f

        names = self.columns or tuple(default)
        for name in names:
            _check_json(name, type_of(schema, name))
        fields = f.struct(*(f.col(quoted(name)).alias(name) for name in names))
        return f.to_json(fields, _JSON_OPTIONS).cast("binary")


class StringSerializer(Settings):
    """The text of one column, in UTF-8; whole numbers as digits. A null is a null key or value.

    Attributes:
        column: A string or integer column.
    """

    column: str = Field(min_length=1)

    def encode(self, schema: StructType, default: Sequence[str]) -> Column:
        """Returns the expression of the bytes.

        Args:
            schema: Type of the rows.
            default: Not used.

        Raises:
            ConfigurationError: The column does not exist, or has another type.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import IntegralType, StringType

        del default
        kind = type_of(schema, self.column)
        if not isinstance(kind, (StringType, IntegralType)):
            msg = (
                f"the column {self.column} is {kind.simpleString()}; StringSerializer takes a string or integer "
                f'column. Use JsonSerializer(columns=["{self.column}"]), or RawSerializer for bytes'
            )
            raise ConfigurationError(msg)
        return f.col(quoted(self.column)).cast("string").cast("binary")


class RawSerializer(Settings):
    """The bytes of one column, unchanged. A null is a null key or value.

    Attributes:
        column: A binary column.
    """

    column: str = Field(min_length=1)

    def encode(self, schema: StructType, default: Sequence[str]) -> Column:
        """Returns the expression of the bytes.

        Args:
            schema: Type of the rows.
            default: Not used.

        Raises:
            ConfigurationError: The column does not exist, or has another type.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import BinaryType

        del default
        kind = type_of(schema, self.column)
        if not isinstance(kind, BinaryType):
            msg = (
                f"the column {self.column} is {kind.simpleString()}; RawSerializer takes a binary column. Use "
                "StringSerializer for a string, or JsonSerializer"
            )
            raise ConfigurationError(msg)
        return f.col(quoted(self.column))


def type_of(schema: StructType, name: str) -> DataType:
    """Returns a column's type.

    Args:
        schema: Type of the rows.
        name: The column's name.

    Raises:
        ConfigurationError: There is no such column.
    """
    for field in schema.fields:
        if field.name == name:
            return field.dataType
    msg = f"the table has no column {name}; {near_names(name, schema.names)}"
    raise ConfigurationError(msg)


def _check_json(name: str, kind: DataType) -> None:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        for field in kind.fields:
            _check_json(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, t.ArrayType):
        _check_json(f"{name}[]", kind.elementType)
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, (t.StringType, t.IntegralType)):
            msg = (
                f"the map {name} has keys of type {kind.keyType.simpleString()}, which have no exact form in JSON; "
                "name the other columns in JsonSerializer(columns=...)"
            )
            raise ConfigurationError(msg)
        _check_json(f"{name}{{}}", kind.valueType)
    elif not isinstance(
        kind,
        (t.StringType, t.BinaryType, t.BooleanType, t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType),
    ):
        msg = (
            f"the column {name} is {kind.simpleString()}, which has no exact form in JSON; name the other columns in "
            "JsonSerializer(columns=...)"
        )
        raise ConfigurationError(msg)
