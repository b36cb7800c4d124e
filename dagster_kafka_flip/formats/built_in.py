"""The formats of this package, by the names that commits and defs.yaml have for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.formats.format import Format

BUILT_IN: Mapping[str, type[Format]] = {
    "raw": RawFormat,
    "string": StringFormat,
    "json": JsonFormat,
    "csv": CsvFormat,
    "avro": AvroFormat,
    "protobuf": ProtobufFormat,
    "debezium": DebeziumFormat,
    "debezium-avro": DebeziumAvroFormat,
    "maxwell": MaxwellFormat,
    "canal": CanalFormat,
    "ogg": OggFormat,
}
