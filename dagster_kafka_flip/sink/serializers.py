"""Serializers without a schema registry: JSON, a string, or bytes unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.sink.nested import Conversion, of_array, of_map, of_struct, of_text
from dagster_kafka_flip.sink.serializer import Encoded, RowsToEncode, Serializer, serialized, struct_of, type_of
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Microseconds, as Delta holds them; Spark's default writes milliseconds. UTC, so that no session's zone shows.
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}


class JsonSerializer(Serializer):
    """A JSON object of columns: all digits of decimals, times in microseconds and UTC, bytes as Base64, nulls as null.

    NaN and infinite numbers are texts, such as `"NaN"`. A text that is not UTF-8 is an error of its row.

    Attributes:
        columns: The columns. Default: all columns of the table, for a value also `_change_type` if it has deleted rows
            or previous values. `_change_type`, `_commit_version` and `_commit_timestamp` can be named.
    """

    columns: tuple[str, ...] = ()

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in columns if columns.count(name) > 1}):
            raise ValueError(f"columns: duplicate column {twice[0]!r}")
        return columns

    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        """The names of the columns."""
        return self.columns or tuple(columns)

    def encode(self, rows: RowsToEncode) -> Encoded:
        """Returns the expression of the bytes.

        Raises:
            ConfigurationError: A column does not exist, or has no exact form in JSON.
        """
        names = self.columns_of(rows.columns)
        for name in names:
            check_json(name, type_of(rows.schema, name))
        value = struct_of(names)
        texts = of_struct([(name, _texts_in(name, type_of(rows.schema, name))) for name in names])
        return Encoded(serialized(json_of(value), None if texts.wrong is None else texts.wrong(value)))


class _ColumnSerializer(Serializer):
    """Base class of serializers of one column."""

    column: str = Field(min_length=1)

    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        """The name of the column."""
        del columns
        return (self.column,)


class StringSerializer(_ColumnSerializer):
    """The text of one column, in UTF-8; integers as digits. A null is a null key or value.

    Attributes:
        column: A string or integer column.
    """

    def encode(self, rows: RowsToEncode) -> Encoded:
        """Returns the expression of the bytes.

        Raises:
            ConfigurationError: The column does not exist, or has another type.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import IntegralType, StringType

        kind = type_of(rows.schema, self.column)
        if not isinstance(kind, (StringType, IntegralType)):
            raise ConfigurationError(
                f"the column {self.column} is {kind.simpleString()}; StringSerializer takes a string or integer column",
                f'Use JsonSerializer(columns=["{self.column}"]), or RawSerializer for bytes',
            )
        return Encoded(serialized(f.col(quoted(self.column)).cast("string").cast("binary")))


class RawSerializer(_ColumnSerializer):
    """The bytes of one column, unchanged. A null is a null key or value.

    Attributes:
        column: A binary column.
    """

    def encode(self, rows: RowsToEncode) -> Encoded:
        """Returns the expression of the bytes.

        Raises:
            ConfigurationError: The column does not exist, or has another type.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import BinaryType

        kind = type_of(rows.schema, self.column)
        if not isinstance(kind, BinaryType):
            raise ConfigurationError(
                f"the column {self.column} is {kind.simpleString()}; RawSerializer takes a binary column",
                "Use StringSerializer for a string, or JsonSerializer",
            )
        return Encoded(serialized(f.col(quoted(self.column))))


def json_of(column: Column, options: Mapping[str, str] = {}) -> Column:
    """Returns the bytes of a value as JSON."""
    from pyspark.sql import functions as f

    return f.to_json(column, {**_JSON_OPTIONS, **options}).cast("binary")


def _texts_in(path: str, kind: DataType) -> Conversion:
    """The conversion of the texts in a value."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return of_struct([(field.name, _texts_in(f"{path}.{field.name}", field.dataType)) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return of_array(_texts_in(f"{path}[]", kind.elementType))
    if isinstance(kind, t.MapType):
        inside = f"{path}{{}}"
        return of_map(_texts_in(inside, kind.valueType), _texts_in(inside, kind.keyType))
    return of_text(path) if isinstance(kind, t.StringType) else Conversion()


def check_json(name: str, kind: DataType) -> None:
    """Checks that JSON has each value of a type exactly."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        for field in kind.fields:
            check_json(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, t.ArrayType):
        check_json(f"{name}[]", kind.elementType)
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, (t.StringType, t.IntegralType)):
            raise ConfigurationError(
                f"the map {name} has keys of type {kind.keyType.simpleString()}, which have no exact form in JSON; "
                "name the other columns in JsonSerializer(columns=...)"
            )
        check_json(f"{name}{{}}", kind.valueType)
    elif not isinstance(
        kind,
        (t.StringType, t.BinaryType, t.BooleanType, t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType),
    ):
        raise ConfigurationError(
            f"the column {name} is {kind.simpleString()}, which has no exact form in JSON; name the other columns in "
            "JsonSerializer(columns=...)"
        )
