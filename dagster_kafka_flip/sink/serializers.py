"""Serializers turn columns into keys or values with Spark expressions; those without a schema registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import Field, field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import WHOLE, of_spark, parts_of
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import near_names
from dagster_kafka_flip.sink.nested import Conversion, SchemaPath, check_columns, conversion_of, of_text
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.formats.column_types import ColumnType
    from dagster_kafka_flip.sink.nested import Inside


class RowsToEncode(NamedTuple):
    """What is serialized.

    Attributes:
        columns: The columns, if the serializer names none.
        schema_id: Id of the registered schema to use, because a version was published with it in part; None for any.
    """

    schema: StructType
    columns: Sequence[str]
    topic: str
    is_key: bool
    schema_id: int | None = None

    @property
    def side(self) -> str:
        """Whether they become keys or values, for messages."""
        return "key" if self.is_key else "value"


class Encoded(NamedTuple):
    """Keys or values.

    Attributes:
        whole: A struct of the bytes without a frame, `content`, and of why there are none, `problem`. See `serialized`.
        frame: The bytes before the content.
        schema_id: Id of the schema in the frame; None without one.
    """

    whole: Column
    frame: bytes = b""
    schema_id: int | None = None


class Serializer(Settings, ABC):
    """Turns columns into keys or values."""

    uses_library: ClassVar[bool] = False
    """Whether it calls functions of this package's Java library."""

    @abstractmethod
    def encode(self, rows: RowsToEncode) -> Encoded:
        """Returns the expressions of the bytes."""

    @abstractmethod
    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        """The names of the columns that are serialized; those given if it names none."""


def type_of(schema: StructType, name: str) -> DataType:
    """Returns a column's type."""
    if name not in schema.names:
        raise ConfigurationError(f"the table has no column {name}; {near_names(name, schema.names)}")
    return schema[name].dataType


def check_key(schema: StructType, names: Sequence[str]) -> None:
    """Checks that equal values of columns make equal keys."""
    for path, field in parts_of(of_spark(fields_of(schema, names))):
        if field.type.name == "MAP":
            raise ConfigurationError(
                f"key: the column {path} is a map, whose entries have no order: equal maps would be different keys",
                "Name other columns",
            )


def fields_of(schema: StructType, names: Sequence[str]) -> StructType:
    """Returns the type of the struct of some columns."""
    from pyspark.sql.types import StructType

    for name in names:
        type_of(schema, name)
    return StructType([schema[name] for name in names])


def struct_of(names: Sequence[str]) -> Column:
    """Returns the struct of some columns."""
    from pyspark.sql import functions as f

    return f.struct(*(f.col(quoted(name)).alias(name) for name in names))


def serialized(content: Column, problem: Column | None = None) -> Column:
    """Returns the struct of the bytes, and why there are none: then the content is not looked at."""
    from pyspark.sql import functions as f

    why = f.lit(None).cast("string") if problem is None else problem
    return f.struct(
        (content if problem is None else f.when(problem.isNull(), content)).alias("content"), why.alias("problem")
    )


# Microseconds, as Delta holds them; Spark's default writes milliseconds. UTC, so that no session's zone shows.
JSON_OPTIONS = {
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
            or previous values. `_commit_version` and `_commit_timestamp` can be named, too.
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
        """Returns the expression of the bytes."""
        names = self.columns_of(rows.columns)
        columns = of_spark(fields_of(rows.schema, names))
        check_json(columns)
        value = struct_of(names)
        wrong = conversion_of(columns, None, SchemaPath(what="JSON"), _texts_in).wrong
        return Encoded(serialized(json_of(value), None if wrong is None else wrong(value)))


class _ColumnSerializer(Serializer):
    """Base class of serializers of one column."""

    takes: ClassVar[tuple[str, ...]]
    takes_text: ClassVar[str]
    instead: ClassVar[str]

    column: str = Field(min_length=1)

    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        """The name of the column."""
        del columns
        return (self.column,)

    def encode(self, rows: RowsToEncode) -> Encoded:
        """Returns the expression of the bytes."""
        from pyspark.sql import functions as f

        kind = of_spark(type_of(rows.schema, self.column))
        if kind.name not in self.takes:
            raise ConfigurationError(
                f"the column {self.column} is {kind}; {type(self).__name__} takes {self.takes_text} column",
                self.instead.format(column=self.column),
            )
        value = f.col(quoted(self.column))
        return Encoded(serialized(value if kind.name == "BINARY" else value.cast("string").cast("binary")))


class StringSerializer(_ColumnSerializer):
    """The text of one column, in UTF-8; integers as digits. A null is a null key or value.

    Attributes:
        column: A string or integer column.
    """

    takes = ("STRING", *WHOLE)
    takes_text = "a string or integer"
    instead = 'Use JsonSerializer(columns=["{column}"]), or RawSerializer for bytes'


class RawSerializer(_ColumnSerializer):
    """The bytes of one column, unchanged. A null is a null key or value.

    Attributes:
        column: A binary column.
    """

    takes = ("BINARY",)
    takes_text = "a binary"
    instead = "Use StringSerializer for a string, or JsonSerializer"


def json_of(column: Column, options: Mapping[str, str] = {}) -> Column:
    """Returns the bytes of a value as JSON."""
    from pyspark.sql import functions as f

    return f.to_json(column, {**JSON_OPTIONS, **options}).cast("binary")


def _texts_in(kind: ColumnType, _: Any, at: SchemaPath) -> Sequence[Inside] | Conversion:
    if kind.fields:
        return [(None, None)] * len(kind.fields)
    return of_text(at.path) if kind.name == "STRING" else Conversion()


def check_json(columns: ColumnType) -> None:
    """Checks that JSON has each value of columns exactly."""
    check_columns(columns, "JSON", (*WHOLE, "STRING"), any_name=True)
