"""Formats in a defs.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from dagster import Model, ResolutionContext
from pydantic import Field

from dagster_kafka_flip.components.templates import Template, create_of_type
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.canal import CanalFormat, CanalMetadata
from dagster_kafka_flip.formats.changelog import OnTruncate
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.debezium import DebeziumFormat, DebeziumMetadata
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.format import Format, OnError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.maxwell import MaxwellFormat, MaxwellMetadata
from dagster_kafka_flip.formats.ogg import OggFormat, OggMetadata
from dagster_kafka_flip.formats.placeholder import PLACEHOLDER
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _FormatAttributes(Model):
    """What all formats have in common."""

    on_error: OnError | Template = "fail"


class RawFormatAttributes(_FormatAttributes):
    """Unchanged bytes."""

    type: Literal["raw"]


class StringFormatAttributes(_FormatAttributes):
    """UTF-8 text."""

    type: Literal["string"]


_SHOW_VALUES = "Whether the error about a rejected record quotes the start of each value that does not fit."


class _FramedFormatAttributes(_FormatAttributes):
    """What the formats with a schema registry have in common."""

    registry: str | None = Field(
        default=None, description="The key of a SchemaRegistryResource; without it, records have no schema id."
    )
    subject: str | None = Field(
        default=None,
        description="The subject of the reader schema. Default: the topic's, such as `orders-value`.",
    )
    schema_id_in: Literal["payload", "headers"] = Field(
        default="payload", description="Where records name their schema."
    )


class JsonFormatAttributes(_FramedFormatAttributes):
    """A JSON object with declared fields, with a schema registry or without."""

    type: Literal["json"]
    declared: str | dict[str, Any] | None = Field(
        default=None,
        alias="schema",
        description="The fields as DDL, such as `carrier STRING NOT NULL, flight INT`, or a JSON Schema, as JSON or as "
        "YAML. Default: the subject's latest.",
    )
    show_values: bool | Template = Field(default=False, description=_SHOW_VALUES)


_ON_TRUNCATE = "What to do with a change that deletes all rows."
_METADATA = "Parts of a change to land with its row, each as a column with that name."


class _RowFormatAttributes(_FormatAttributes):
    """What the formats of a database's changes in JSON have in common."""

    declared: str = Field(
        alias="schema",
        description="The columns of the database's table as DDL, such as `id BIGINT NOT NULL, name STRING`.",
    )


class DebeziumFormatAttributes(_RowFormatAttributes):
    """Debezium's change events in JSON, with schema or without."""

    type: Literal["debezium"]
    metadata: list[DebeziumMetadata] | Template = Field(default=[], description=_METADATA)
    unavailable_value_placeholder: str = Field(
        default=PLACEHOLDER, description="The connector's setting `unavailable.value.placeholder`."
    )
    on_truncate: OnTruncate | Template = Field(default="fail", description=_ON_TRUNCATE)
    show_values: bool | Template = Field(default=False, description=_SHOW_VALUES)


class DebeziumAvroFormatAttributes(_FramedFormatAttributes):
    """Debezium's change events in Avro, with a schema registry."""

    type: Literal["debezium_avro"]
    declared: str | dict[str, Any] | None = Field(
        default=None,
        alias="schema",
        description="The reader schema of the whole event, as JSON or as YAML. Default: the subject's latest.",
    )
    metadata: list[DebeziumMetadata] | Template = Field(default=[], description=_METADATA)
    unavailable_value_placeholder: str = Field(
        default=PLACEHOLDER, description="The connector's setting `unavailable.value.placeholder`."
    )
    on_truncate: OnTruncate | Template = Field(default="fail", description=_ON_TRUNCATE)


class MaxwellFormatAttributes(_RowFormatAttributes):
    """Maxwell's JSON."""

    type: Literal["maxwell"]
    metadata: list[MaxwellMetadata] | Template = Field(default=[], description=_METADATA)
    show_values: bool | Template = Field(default=False, description=_SHOW_VALUES)


class CanalFormatAttributes(_RowFormatAttributes):
    """Canal's flat JSON."""

    type: Literal["canal"]
    database: str | None = Field(default=None, description="The database whose changes land. Default: all.")
    table: str | None = Field(default=None, description="The database's table whose changes land. Default: all.")
    metadata: list[CanalMetadata] | Template = Field(default=[], description=_METADATA)
    on_truncate: OnTruncate | Template = Field(default="fail", description=_ON_TRUNCATE)


class OggFormatAttributes(_RowFormatAttributes):
    """The JSON of Oracle GoldenGate."""

    type: Literal["ogg"]
    metadata: list[OggMetadata] | Template = Field(default=[], description=_METADATA)
    on_truncate: OnTruncate | Template = Field(default="fail", description=_ON_TRUNCATE)
    show_values: bool | Template = Field(default=False, description=_SHOW_VALUES)


class CsvFormatAttributes(_FormatAttributes):
    """One row of CSV with declared fields."""

    type: Literal["csv"]
    declared: str = Field(
        alias="schema", description="The fields as DDL, such as `carrier STRING NOT NULL, flight INT`."
    )
    delimiter: str = Field(default=",", description="The character between two fields.")
    quote: str | None = Field(
        default='"', description="The character around a field that holds a delimiter or a line break; null if none."
    )
    escape: str | None = Field(
        default=None,
        description="The character that escapes a quote or itself inside quotes, instead of a doubled quote.",
    )
    null_literal: str | None = Field(default=None, description="The text that means null.")
    allow_comments: bool | Template = Field(
        default=False, description="Whether lines before the row that begin with `#` are left out."
    )


class AvroFormatAttributes(_FramedFormatAttributes):
    """Avro's binary encoding, with a schema registry or without."""

    type: Literal["avro"]
    declared: str | dict[str, Any] | None = Field(
        default=None,
        alias="schema",
        description="The reader schema, as JSON or as YAML. Default: the subject's latest.",
    )


class ProtobufFormatAttributes(_FramedFormatAttributes):
    """Protobuf's binary encoding, with a schema registry or without."""

    type: Literal["protobuf"]
    descriptor_set: str | None = Field(
        default=None,
        description="The path of a descriptor set, made by protoc. Default: the subject's latest schema.",
    )
    message: str | None = Field(
        default=None, description="The full name of the message, such as `shop.Order`. Default: the schema's only one."
    )


_FORMAT_OF_TYPE: Mapping[str, Callable[..., Format]] = {
    "raw": RawFormat,
    "string": StringFormat,
    "json": JsonFormat,
    "csv": CsvFormat,
    "avro": AvroFormat,
    "protobuf": ProtobufFormat,
    "debezium": DebeziumFormat,
    "debezium_avro": DebeziumAvroFormat,
    "maxwell": MaxwellFormat,
    "canal": CanalFormat,
    "ogg": OggFormat,
}


def format_of(context: ResolutionContext, value: Any) -> Format:
    """Creates a format from its fields."""
    return create_of_type(context, Format, _FORMAT_OF_TYPE, value)


FORMATS = Annotated[
    RawFormatAttributes
    | StringFormatAttributes
    | JsonFormatAttributes
    | CsvFormatAttributes
    | AvroFormatAttributes
    | ProtobufFormatAttributes
    | DebeziumFormatAttributes
    | DebeziumAvroFormatAttributes
    | MaxwellFormatAttributes
    | CanalFormatAttributes
    | OggFormatAttributes,
    Field(discriminator="type"),
]
