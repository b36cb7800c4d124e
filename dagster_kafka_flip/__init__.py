"""Ingests Kafka topics into Delta Lake tables as Dagster assets: exactly once, in bounded batches.

All public names are exported here. They are imported on first use, so that the command line starts fast and a code
location does not load Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_kafka_flip.assets.asset_options import AssetOptions
    from dagster_kafka_flip.assets.asset_per_topic import build_kafka_delta_assets, matching_topics
    from dagster_kafka_flip.assets.delta_kafka_asset import build_delta_kafka_asset, delta_kafka_asset
    from dagster_kafka_flip.assets.kafka_cluster_config import KafkaClusterConfig
    from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset, kafka_delta_asset
    from dagster_kafka_flip.assets.maintenance_asset import kafka_delta_maintenance
    from dagster_kafka_flip.assets.multi_asset import KafkaDeltaTable, build_kafka_delta_multi_asset
    from dagster_kafka_flip.assets.resources import KafkaResource, SparkResource
    from dagster_kafka_flip.assets.run_config import IngestRunConfig, PublishRunConfig, WindowsRunConfig
    from dagster_kafka_flip.assets.schema_registry_resource import SchemaRegistryResource
    from dagster_kafka_flip.assets.topic_asset import kafka_topic_asset, topic_asset_key
    from dagster_kafka_flip.broker.local_broker import LocalBroker
    from dagster_kafka_flip.checks.delta_kafka_checks import delta_kafka_checks
    from dagster_kafka_flip.checks.kafka_delta_checks import kafka_delta_checks
    from dagster_kafka_flip.components.delta_kafka import DeltaKafkaComponent
    from dagster_kafka_flip.components.kafka_delta import KafkaDeltaComponent
    from dagster_kafka_flip.components.kafka_resources import KafkaResourcesComponent
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.avro import AvroFormat
    from dagster_kafka_flip.formats.canal import CanalFormat
    from dagster_kafka_flip.formats.csv import CsvFormat
    from dagster_kafka_flip.formats.debezium import DebeziumFormat
    from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.json import JsonFormat
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.formats.maxwell import MaxwellFormat
    from dagster_kafka_flip.formats.ogg import OggFormat
    from dagster_kafka_flip.formats.protobuf import ProtobufFormat
    from dagster_kafka_flip.formats.raw import RawFormat
    from dagster_kafka_flip.formats.string import StringFormat
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, decode_dead_letters
    from dagster_kafka_flip.ingestion.ingest import ingest
    from dagster_kafka_flip.ingestion.kafka_table_options import KafkaTableOptions
    from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult, WindowsResult
    from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
    from dagster_kafka_flip.runtime.session import build_session
    from dagster_kafka_flip.runtime.spark_jars import spark_packages
    from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
    from dagster_kafka_flip.sink.publish import publish
    from dagster_kafka_flip.sink.result import PublishResult
    from dagster_kafka_flip.sink.serializers import JsonSerializer, RawSerializer, StringSerializer
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.offsets import OffsetResetStrategy, OffsetsInitializer
    from dagster_kafka_flip.source.plan import Limits, ReadPlan, Spread
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window, Windows
    from dagster_kafka_flip.table.known_position import KnownPosition
    from dagster_kafka_flip.table.mode import Append, Scd2, Upsert
    from dagster_kafka_flip.table.target import DeltaTarget

_HOMES = {
    "Append": "table.mode",
    "AssetOptions": "assets.asset_options",
    "AvroFormat": "formats.avro",
    "AvroSerializer": "sink.avro_serializer",
    "BatchResult": "ingestion.result",
    "CanalFormat": "formats.canal",
    "CsvFormat": "formats.csv",
    "DeadLetters": "ingestion.dead_letters",
    "DebeziumAvroFormat": "formats.debezium_avro",
    "DebeziumFormat": "formats.debezium",
    "DeltaKafkaComponent": "components.delta_kafka",
    "DeltaSource": "sink.delta_source",
    "DeltaTarget": "table.target",
    "EnumeratorState": "source.state",
    "Format": "formats.format",
    "IngestResult": "ingestion.result",
    "IngestRunConfig": "assets.run_config",
    "JsonFormat": "formats.json",
    "JsonSchemaSerializer": "sink.json_schema_serializer",
    "JsonSerializer": "sink.serializers",
    "KafkaClusterConfig": "assets.kafka_cluster_config",
    "KafkaColumns": "formats.kafka_columns",
    "KafkaConnection": "source.connection",
    "KafkaDeltaComponent": "components.kafka_delta",
    "KafkaDeltaTable": "assets.multi_asset",
    "KafkaFlipError": "errors",
    "KafkaPartitionSplit": "source.split",
    "KafkaResource": "assets.resources",
    "KafkaResourcesComponent": "components.kafka_resources",
    "KafkaSink": "sink.kafka_sink",
    "KafkaSource": "source.kafka_source",
    "KafkaTableOptions": "ingestion.kafka_table_options",
    "KnownPosition": "table.known_position",
    "Limits": "source.plan",
    "LocalBroker": "broker.local_broker",
    "MaxwellFormat": "formats.maxwell",
    "OffsetResetStrategy": "source.offsets",
    "OffsetsInitializer": "source.offsets",
    "OggFormat": "formats.ogg",
    "ProtobufFormat": "formats.protobuf",
    "ProtobufSerializer": "sink.protobuf_serializer",
    "PublishResult": "sink.result",
    "PublishRunConfig": "assets.run_config",
    "RawFormat": "formats.raw",
    "RawSerializer": "sink.serializers",
    "ReadPlan": "source.plan",
    "Scd2": "table.mode",
    "SchemaRegistry": "registry.schema_registry",
    "SchemaRegistryResource": "assets.schema_registry_resource",
    "SparkResource": "assets.resources",
    "Spread": "source.plan",
    "StringFormat": "formats.string",
    "StringSerializer": "sink.serializers",
    "TopicPartition": "source.split",
    "Upsert": "table.mode",
    "Window": "source.window",
    "Windows": "source.window",
    "WindowsResult": "ingestion.result",
    "WindowsRunConfig": "assets.run_config",
    "build_delta_kafka_asset": "assets.delta_kafka_asset",
    "build_kafka_delta_asset": "assets.kafka_delta_asset",
    "build_kafka_delta_assets": "assets.asset_per_topic",
    "build_kafka_delta_multi_asset": "assets.multi_asset",
    "build_session": "runtime.session",
    "decode_dead_letters": "ingestion.dead_letters",
    "delta_kafka_asset": "assets.delta_kafka_asset",
    "delta_kafka_checks": "checks.delta_kafka_checks",
    "ingest": "ingestion.ingest",
    "kafka_delta_asset": "assets.kafka_delta_asset",
    "kafka_delta_checks": "checks.kafka_delta_checks",
    "kafka_delta_maintenance": "assets.maintenance_asset",
    "kafka_topic_asset": "assets.topic_asset",
    "matching_topics": "assets.asset_per_topic",
    "publish": "sink.publish",
    "rewrite_windows": "ingestion.rewrite_windows",
    "spark_packages": "runtime.spark_jars",
    "topic_asset_key": "assets.topic_asset",
}

__all__ = [
    "Append",
    "AssetOptions",
    "AvroFormat",
    "AvroSerializer",
    "BatchResult",
    "CanalFormat",
    "CsvFormat",
    "DeadLetters",
    "DebeziumAvroFormat",
    "DebeziumFormat",
    "DeltaKafkaComponent",
    "DeltaSource",
    "DeltaTarget",
    "EnumeratorState",
    "Format",
    "IngestResult",
    "IngestRunConfig",
    "JsonFormat",
    "JsonSchemaSerializer",
    "JsonSerializer",
    "KafkaClusterConfig",
    "KafkaColumns",
    "KafkaConnection",
    "KafkaDeltaComponent",
    "KafkaDeltaTable",
    "KafkaFlipError",
    "KafkaPartitionSplit",
    "KafkaResource",
    "KafkaResourcesComponent",
    "KafkaSink",
    "KafkaSource",
    "KafkaTableOptions",
    "KnownPosition",
    "Limits",
    "LocalBroker",
    "MaxwellFormat",
    "OffsetResetStrategy",
    "OffsetsInitializer",
    "OggFormat",
    "ProtobufFormat",
    "ProtobufSerializer",
    "PublishResult",
    "PublishRunConfig",
    "RawFormat",
    "RawSerializer",
    "ReadPlan",
    "Scd2",
    "SchemaRegistry",
    "SchemaRegistryResource",
    "SparkResource",
    "Spread",
    "StringFormat",
    "StringSerializer",
    "TopicPartition",
    "Upsert",
    "Window",
    "Windows",
    "WindowsResult",
    "WindowsRunConfig",
    "build_delta_kafka_asset",
    "build_kafka_delta_asset",
    "build_kafka_delta_assets",
    "build_kafka_delta_multi_asset",
    "build_session",
    "decode_dead_letters",
    "delta_kafka_asset",
    "delta_kafka_checks",
    "ingest",
    "kafka_delta_asset",
    "kafka_delta_checks",
    "kafka_delta_maintenance",
    "kafka_topic_asset",
    "matching_topics",
    "publish",
    "rewrite_windows",
    "spark_packages",
    "topic_asset_key",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
