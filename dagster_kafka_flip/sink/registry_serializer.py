"""RegistrySerializer: base class of serializers whose records name their schema in a schema registry."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import ColumnType, of_spark
from dagster_kafka_flip.registry.registered_schema import (
    TOPIC,
    UNKNOWN_ID,
    RegisteredSchema,
    SchemaKind,
    check_subject,
    context_of,
)
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.sink.serializers import Encoded, RowsToEncode, Serializer, fields_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from typing_extensions import Self

    from dagster_kafka_flip.registry.schemas import Schemas

_MAGIC = b"\x00"


def frame_of(schema_id: int) -> bytes:
    """What each record of a schema begins with, in Confluent's wire format."""
    return _MAGIC + schema_id.to_bytes(4, "big")


class RegistrySerializer(Serializer):
    """Writes records in Confluent's wire format: a magic byte, the id of their schema, and the content.

    A run asks the registry once, on the driver, before it reads the table. Columns that don't fit the schema, and a
    schema that the registry refuses, end it before anything is published.

    Attributes:
        registry: The registry, or in Dagster the key of a SchemaRegistryResource.
        columns: The columns. Default: all columns of the table, for a value also `_change_type` if it has deleted rows
            or previous values.
        declared: The schema to register, as text; None to derive it from the columns.
        use_latest: Whether to use the subject's latest schema, and to register nothing.
        subject: The schema's subject. `{topic}` in it is the sink's topic. Default: `{topic}-value` or `{topic}-key`,
            Confluent's TopicNameStrategy.
    """

    kind: ClassVar[SchemaKind]
    """The kind of its schemas in the registry."""

    registry: SchemaRegistry | str
    columns: tuple[str, ...] = ()
    declared: str | None = None
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

    def columns_of(self, columns: Sequence[str]) -> Sequence[str]:
        """The names of the columns."""
        return self.columns or tuple(columns)

    def encode(self, rows: RowsToEncode) -> Encoded:
        """Returns the expressions of the bytes, with a schema that is registered."""
        if isinstance(self.registry, str):
            raise ConfigurationError(
                f"registry={self.registry!r} is the key of a SchemaRegistryResource, which only Dagster has; outside "
                f"of it, write {type(self).__name__}(registry=SchemaRegistry(url=...))"
            )
        columns = of_spark(fields_of(rows.schema, self.columns_of(rows.columns)))
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
                number = rows.schema_id
                found = schemas.latest(subject) if number is None else schemas.by_id(number, context)
                number = found.schema_id
                what = f"{rows.side}: schema {number} of the subject {subject!r}"
                if found.kind != self.kind:
                    msg = f"{what} has the type {found.kind}; {type(self).__name__} writes only {self.kind}"
                    raise ConfigurationError(msg)
                whole, between = self.whole(columns, found, what)
        return Encoded(whole, frame_of(number) + between, number)
