"""Serializers turn columns into keys or values with Spark expressions: the base classes, and those without schemas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import WHOLE, of_spark, parts_of
from dagster_kafka_flip.registry.registered_schema import (
    TOPIC,
    UNKNOWN_ID,
    RegisteredSchema,
    SchemaKind,
    check_subject,
    context_of,
)
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import near_names
from dagster_kafka_flip.sink.conversion import Conversion, SchemaPath, check_columns, conversion_of, of_text
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType
    from typing_extensions import Self

    from dagster_kafka_flip.formats.column_types import ColumnType
    from dagster_kafka_flip.registry.schemas import Schemas
    from dagster_kafka_flip.sink.conversion import Inside


class RowsToEncode(NamedTuple):
    """What is serialized as `key` or `value`: `columns` if the serializer names none.

    With a `schema_id`, a version was published with that registered schema in part.
    """

    schema: StructType
    columns: Sequence[str]
    topic: str
    side: str
    schema_id: int | None = None


class Encoded(NamedTuple):
    """Keys or values: what `serialized` returns, the bytes before the content, and the id of the schema in them."""

    whole: Column
    frame: bytes = b""
    schema_id: int | None = None


class Serializer(Settings, ABC):
    """Turns columns into keys or values."""

    uses_library: ClassVar[bool] = False
    """Whether it calls functions of this package's Java library."""

    @abstractmethod
    def encode(self, rows: RowsToEncode) -> Encoded: ...

    @abstractmethod
    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        """The names of the columns that are serialized; those given if it names none."""


def type_of(schema: StructType, name: str) -> DataType:
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
    from pyspark.sql.types import StructType

    for name in names:
        type_of(schema, name)
    return StructType([schema[name] for name in names])


def struct_of(names: Sequence[str]) -> Column:
    return f.struct(*(f.col(quoted(name)).alias(name) for name in names))


def serialized(content: Column, problem: Column | None = None) -> Column:
    """Returns the struct of the bytes, and why there are none: then the content is not looked at."""
    if problem is not None:
        content = f.when(problem.isNull(), content)
    why = f.lit(None).cast("string") if problem is None else problem
    return f.struct(content.alias("content"), why.alias("problem"))


# Microseconds, as Delta holds them; Spark's default writes milliseconds. UTC, so that no session's zone shows.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}


class _ColumnsSerializer(Serializer):
    """Base class of serializers of some columns, or of all."""

    columns: Sequence[str] = ()

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: Sequence[str]) -> Sequence[str]:
        if twice := sorted({name for name in columns if columns.count(name) > 1}):
            raise ValueError(f"columns: duplicate column {twice[0]!r}")
        return tuple(columns)

    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        return self.columns or tuple(columns)

    def tree_of(self, rows: RowsToEncode) -> ColumnType:
        return of_spark(fields_of(rows.schema, self.columns_of(rows.columns)))


class JsonSerializer(_ColumnsSerializer):
    """A JSON object of columns: all digits of decimals, times in microseconds and UTC, bytes as Base64, nulls as null.

    NaN and infinite numbers are texts, such as `"NaN"`. A text that is not UTF-8 is an error of its row (the change
    data feed gives U+FFFD in its place).

    Attributes:
        columns: The columns. Default: all columns of the table, for a value also `_change_type` if it has deleted rows
            or previous values. `_commit_version` and `_commit_timestamp` can be named, too.
    """

    def encode(self, rows: RowsToEncode) -> Encoded:
        columns = self.tree_of(rows)
        check_json(columns)
        value = struct_of(columns.names)
        problem = conversion_of(columns, None, SchemaPath("JSON"), _texts).problem(value)
        return Encoded(serialized(json_of(value), problem))


def json_of(column: Column, *, has_nulls: bool = True) -> Column:
    return f.to_json(column, JSON_OPTIONS | ({} if has_nulls else {"ignoreNullFields": "true"})).cast("binary")


def _texts(kind: ColumnType, _: Any, at: SchemaPath) -> Sequence[Inside] | Conversion:
    if kind.fields:
        return [(None, None)] * len(kind.fields)
    return of_text(at.path) if kind.name == "STRING" else Conversion()


def check_json(columns: ColumnType) -> None:
    check_columns(columns, "JSON", (*WHOLE, "STRING"), any_name=True)


class _ColumnSerializer(Serializer):
    """Base class of serializers of one column."""

    takes: ClassVar[tuple[str, ...]]
    takes_text: ClassVar[str]
    instead: ClassVar[str]

    column: str = Field(min_length=1)

    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        del columns
        return (self.column,)

    def encode(self, rows: RowsToEncode) -> Encoded:
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


class RegistrySerializer(_ColumnsSerializer):
    """Writes records in Confluent's wire format: a magic byte, the id of their schema, and the content.

    A run asks the registry once, on the driver, before it reads the table. Columns that don't fit the schema, and a
    schema that the registry refuses, end it before anything is published.

    Attributes:
        declared: The schema to register, as text; None to derive it from the columns.
        registry: The registry, or in Dagster the key of a SchemaRegistryResource.
        columns: The columns. Default: all columns of the table, for a value also `_change_type` if it has deleted rows
            or previous values.
        use_latest: Whether to use the subject's latest schema, and to register nothing.
        subject: The schema's subject. `{topic}` in it is the sink's topic. Default: `{topic}-value` or `{topic}-key`,
            Confluent's TopicNameStrategy.
    """

    kind: ClassVar[SchemaKind]
    """The kind of its schemas in the registry."""

    declared: Any = Field(default=None, alias="schema", kw_only=False)
    registry: SchemaRegistry | str
    use_latest: bool = False
    subject: str | None = None

    @field_validator("registry", mode="before")
    @classmethod
    def _check_registry(cls, registry: Any) -> Any:
        if not isinstance(registry, (SchemaRegistry, str)) or (isinstance(registry, str) and "://" in registry):
            msg = f"{cls.__name__} needs a registry: a SchemaRegistry(url=...), or the key of a SchemaRegistryResource"
            raise ConfigurationError(msg)
        return registry

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, subject: str | None) -> str | None:
        return check_subject(cls.__name__, subject)

    @model_validator(mode="after")
    def _check_source_of_schema(self) -> Self:
        if self.use_latest and self.declared is not None:
            raise ConfigurationError(f"{type(self).__name__}: schema and use_latest both choose the schema; remove one")
        return self

    @abstractmethod
    def made(self, columns: ColumnType, schemas: Schemas, subject: str) -> str:
        """The schema of columns, for a subject of the registry."""

    @abstractmethod
    def whole(self, columns: ColumnType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem (see `serialized`), and what lies between id and content."""

    def encode(self, rows: RowsToEncode) -> Encoded:
        if isinstance(self.registry, str):
            raise ConfigurationError(
                f"registry={self.registry!r} is the key of a SchemaRegistryResource, which only Dagster has; outside "
                f"of it, write {type(self).__name__}(registry=SchemaRegistry(url=...))"
            )
        columns = self.tree_of(rows)
        subject = (self.subject or f"{TOPIC}-{rows.side}").replace(TOPIC, rows.topic)
        with self.registry.schemas() as schemas:
            if rows.schema_id is None and not self.use_latest:
                text = self.declared or self.made(columns, schemas, subject)
                what = f"{rows.side}: the schema of the {type(self).__name__}"
                # Checked first, so that no schema is registered that the columns don't fit.
                whole, between = self.whole(columns, RegisteredSchema(UNKNOWN_ID, self.kind, text), what)
                number = schemas.register(subject, self.kind, text).schema_id
            else:
                context = subject if context_of(subject) else None
                found = schemas.latest(subject) if rows.schema_id is None else schemas.by_id(rows.schema_id, context)
                number = found.schema_id
                what = f"{rows.side}: schema {number} of the subject {subject!r}"
                if found.kind != self.kind:
                    msg = f"{what} has the type {found.kind}; {type(self).__name__} writes only {self.kind}"
                    raise ConfigurationError(msg)
                whole, between = self.whole(columns, found, what)
        # As in Confluent's wire format.
        return Encoded(whole, b"\x00" + number.to_bytes(4, "big") + between, number)
