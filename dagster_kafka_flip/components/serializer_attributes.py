"""Serializers in a defs.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from dagster import Model, ResolutionContext
from pydantic import Field

from dagster_kafka_flip.components.docstrings import entries
from dagster_kafka_flip.components.templates import Template, create_of_type
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializer import Serializer
from dagster_kafka_flip.sink.serializers import JsonSerializer, RawSerializer, StringSerializer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class JsonSerializerAttributes(Model):
    """Columns as a JSON object."""

    type: Literal["json"]
    columns: list[str] | Template = Field(default=[], description=entries(JsonSerializer)["columns"])


class StringSerializerAttributes(Model):
    """The text of one column."""

    type: Literal["string"]
    column: str = Field(description=entries(StringSerializer)["column"])


class RawSerializerAttributes(Model):
    """The bytes of one column."""

    type: Literal["raw"]
    column: str = Field(description=entries(RawSerializer)["column"])


_REGISTERED = entries(RegistrySerializer)


class _RegistrySerializerAttributes(Model):
    """What the serializers with a schema registry have in common."""

    registry: str = Field(description="The key of a SchemaRegistryResource.")
    columns: list[str] | Template = Field(default=[], description=_REGISTERED["columns"])
    use_latest: bool | Template = Field(default=False, description=_REGISTERED["use_latest"])
    subject: str | None = Field(default=None, description=_REGISTERED["subject"])


class _JsonDeclaredAttributes(_RegistrySerializerAttributes):
    """What the serializers whose schema is JSON have in common."""

    declared: str | dict[str, Any] | None = Field(
        default=None,
        alias="schema",
        description="The schema to register, as JSON or as YAML. Default: one made of the columns.",
    )


class AvroSerializerAttributes(_JsonDeclaredAttributes):
    """Columns as an Avro record, with a schema registry."""

    type: Literal["avro"]


class JsonSchemaSerializerAttributes(_JsonDeclaredAttributes):
    """Columns as a JSON object, with a JSON Schema in a schema registry."""

    type: Literal["json_schema"]


class ProtobufSerializerAttributes(_RegistrySerializerAttributes):
    """Columns as a Protobuf message, with a schema registry."""

    type: Literal["protobuf"]
    declared: str | None = Field(
        default=None,
        alias="schema",
        description="The schema to register: the text of a .proto file. Default: derived from the columns.",
    )
    message: str | None = Field(default=None, description=entries(ProtobufSerializer)["message"])


_SERIALIZER_OF_TYPE: Mapping[str, Callable[..., Serializer]] = {
    "json": JsonSerializer,
    "string": StringSerializer,
    "raw": RawSerializer,
    "avro": AvroSerializer,
    "json_schema": JsonSchemaSerializer,
    "protobuf": ProtobufSerializer,
}


def serializer_of(context: ResolutionContext, value: Any) -> Serializer:
    """Creates a serializer from its fields."""
    return create_of_type(context, Serializer, _SERIALIZER_OF_TYPE, value)


SERIALIZERS = Annotated[
    JsonSerializerAttributes
    | StringSerializerAttributes
    | RawSerializerAttributes
    | AvroSerializerAttributes
    | JsonSchemaSerializerAttributes
    | ProtobufSerializerAttributes,
    Field(discriminator="type"),
]
