"""Formats in a defs.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.components.schemas import create_of_type, typed
from dagster_kafka_flip.formats.built_in import BUILT_IN
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
from dagster_kafka_flip.sink.serializers import JsonSerializer, RawSerializer, Serializer, StringSerializer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import ResolutionContext

_FORMAT_OF_TYPE = {name.replace("-", "_"): kind for name, kind in BUILT_IN.items()}


def format_of(context: ResolutionContext, value: Any) -> Format:
    """Creates a format from its fields."""
    return create_of_type(context, "format", _FORMAT_OF_TYPE, value, Format)


FORMATS = typed(_FORMAT_OF_TYPE, registry=str | None, declared=str | dict[str, Any] | None)


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
