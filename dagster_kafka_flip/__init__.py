"""Lands Kafka topics in Delta Lake tables, exactly once, in bounded batches, as Dagster assets.

The public names are all here. They are imported when they are first used, so that the command line answers at once and
a code location loads no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_kafka_flip.assets import build_kafka_delta_asset, kafka_delta_asset
    from dagster_kafka_flip.broker import LocalBroker
    from dagster_kafka_flip.component import KafkaDeltaComponent
    from dagster_kafka_flip.dead_letters import DeadLetters, decode_dead_letters
    from dagster_kafka_flip.delta_checks import kafka_delta_checks
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.json import JsonFormat
    from dagster_kafka_flip.formats.raw import RawFormat
    from dagster_kafka_flip.formats.string import StringFormat
    from dagster_kafka_flip.ingestion import ingest
    from dagster_kafka_flip.kafka_cluster_config import KafkaClusterConfig
    from dagster_kafka_flip.kafka_delta_table import KafkaDeltaTable
    from dagster_kafka_flip.multi_assets import build_kafka_delta_multi_asset
    from dagster_kafka_flip.reader.columns import KafkaColumns
    from dagster_kafka_flip.resources import KafkaResource, SparkResource
    from dagster_kafka_flip.resources_component import KafkaResourcesComponent
    from dagster_kafka_flip.result import BatchResult, IngestResult, KnownPosition
    from dagster_kafka_flip.rewriting import rewrite_windows
    from dagster_kafka_flip.run_config import IngestRunConfig, WindowsRunConfig
    from dagster_kafka_flip.session import build_session, spark_packages
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.limits import Limits, Spread
    from dagster_kafka_flip.source.offsets import OffsetResetStrategy, OffsetsInitializer
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window, Windows
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.topic_assets import build_kafka_delta_assets, matching_topics
    from dagster_kafka_flip.topics import kafka_topic_asset, topic_asset_key
    from dagster_kafka_flip.window_result import WindowsResult

_HOMES = {
    "BatchResult": "result",
    "DeadLetters": "dead_letters",
    "DeltaTarget": "table.target",
    "EnumeratorState": "source.state",
    "Format": "formats.format",
    "IngestResult": "result",
    "IngestRunConfig": "run_config",
    "JsonFormat": "formats.json",
    "KafkaClusterConfig": "kafka_cluster_config",
    "KafkaColumns": "reader.columns",
    "KafkaConnection": "source.connection",
    "KafkaDeltaComponent": "component",
    "KafkaFlipError": "errors",
    "KafkaDeltaTable": "kafka_delta_table",
    "KafkaPartitionSplit": "source.split",
    "KafkaResource": "resources",
    "KafkaResourcesComponent": "resources_component",
    "KafkaSource": "source.kafka_source",
    "KnownPosition": "result",
    "Limits": "source.limits",
    "LocalBroker": "broker",
    "OffsetResetStrategy": "source.offsets",
    "OffsetsInitializer": "source.offsets",
    "RawFormat": "formats.raw",
    "ReadPlan": "source.plan",
    "SparkResource": "resources",
    "Spread": "source.limits",
    "StringFormat": "formats.string",
    "TopicPartition": "source.split",
    "Window": "source.window",
    "Windows": "source.window",
    "WindowsResult": "window_result",
    "WindowsRunConfig": "run_config",
    "build_kafka_delta_asset": "assets",
    "build_kafka_delta_assets": "topic_assets",
    "build_kafka_delta_multi_asset": "multi_assets",
    "build_session": "session",
    "decode_dead_letters": "dead_letters",
    "ingest": "ingestion",
    "kafka_delta_asset": "assets",
    "kafka_delta_checks": "delta_checks",
    "kafka_topic_asset": "topics",
    "matching_topics": "topic_assets",
    "rewrite_windows": "rewriting",
    "spark_packages": "session",
    "topic_asset_key": "topics",
}

__all__ = [
    "BatchResult",
    "DeadLetters",
    "DeltaTarget",
    "EnumeratorState",
    "Format",
    "IngestResult",
    "IngestRunConfig",
    "JsonFormat",
    "KafkaClusterConfig",
    "KafkaColumns",
    "KafkaConnection",
    "KafkaDeltaComponent",
    "KafkaDeltaTable",
    "KafkaFlipError",
    "KafkaPartitionSplit",
    "KafkaResource",
    "KafkaResourcesComponent",
    "KafkaSource",
    "KnownPosition",
    "Limits",
    "LocalBroker",
    "OffsetResetStrategy",
    "OffsetsInitializer",
    "RawFormat",
    "ReadPlan",
    "SparkResource",
    "Spread",
    "StringFormat",
    "TopicPartition",
    "Window",
    "Windows",
    "WindowsResult",
    "WindowsRunConfig",
    "build_kafka_delta_asset",
    "build_kafka_delta_assets",
    "build_kafka_delta_multi_asset",
    "build_session",
    "decode_dead_letters",
    "ingest",
    "kafka_delta_asset",
    "kafka_delta_checks",
    "kafka_topic_asset",
    "matching_topics",
    "rewrite_windows",
    "spark_packages",
    "topic_asset_key",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
