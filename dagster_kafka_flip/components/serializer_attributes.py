"""Serializers in a defs.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.components.schemas import typed
from dagster_kafka_flip.components.templates import create_of_type
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
from dagster_kafka_flip.sink.serializer import Serializer
from dagster_kafka_flip.sink.serializers import JsonSerializer, RawSerializer, StringSerializer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import ResolutionContext


_SERIALIZER_OF_TYPE: Mapping[str, type[Serializer]] = {
    "json": JsonSerializer,
    "string": StringSerializer,
    "raw": RawSerializer,
    "avro": AvroSerializer,
    "json_schema": JsonSchemaSerializer,
    "protobuf": ProtobufSerializer,
}


def serializer_of(context: ResolutionContext, value: Any) -> Serializer:
    """Creates a serializer from its fields."""
    return create_of_type(context, "serializer", _SERIALIZER_OF_TYPE, value, Serializer)


SERIALIZERS = typed(_SERIALIZER_OF_TYPE, registry=str, declared=str | dict[str, Any] | None)
