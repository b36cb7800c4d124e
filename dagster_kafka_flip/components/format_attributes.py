"""Formats in a defs.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.components.schemas import typed
from dagster_kafka_flip.components.templates import create_of_type
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import ResolutionContext


_FORMAT_OF_TYPE: Mapping[str, type[Format]] = {
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
    return create_of_type(context, "format", _FORMAT_OF_TYPE, value, Format)


FORMATS = typed(_FORMAT_OF_TYPE, registry=str | None, declared=str | dict[str, Any] | None)
