"""Serializer: base class of the serializers, which turn columns into keys or values with Spark expressions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import of_spark, parts_of
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import near_names
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


class RowsToEncode(NamedTuple):
    """What is serialized.

    Attributes:
        schema: Type of the rows.
        columns: The columns, if the serializer names none.
        topic: The sink's topic.
        is_key: Whether they become keys.
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
