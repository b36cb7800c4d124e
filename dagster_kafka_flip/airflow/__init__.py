"""Airflow's side: operators, a sensor and its trigger, and the assets of topics and tables. Without Dagster.

Importing this package imports neither Airflow nor pyspark: its names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_kafka_flip.airflow.asset_uris import table_asset, topic_asset
    from dagster_kafka_flip.airflow.delta_to_kafka import DeltaToKafkaOperator
    from dagster_kafka_flip.airflow.kafka_flip_hook import KafkaFlipHook
    from dagster_kafka_flip.airflow.kafka_lag import KafkaLagSensor
    from dagster_kafka_flip.airflow.kafka_to_delta import KafkaToDeltaOperator
    from dagster_kafka_flip.airflow.new_offsets import NewOffsetsTrigger
    from dagster_kafka_flip.airflow.spark_settings import SparkSettings

_HOMES = {
    "DeltaToKafkaOperator": "delta_to_kafka",
    "KafkaFlipHook": "kafka_flip_hook",
    "KafkaLagSensor": "kafka_lag",
    "KafkaToDeltaOperator": "kafka_to_delta",
    "NewOffsetsTrigger": "new_offsets",
    "SparkSettings": "spark_settings",
    "table_asset": "asset_uris",
    "topic_asset": "asset_uris",
}

__all__ = [
    "DeltaToKafkaOperator",
    "KafkaFlipHook",
    "KafkaLagSensor",
    "KafkaToDeltaOperator",
    "NewOffsetsTrigger",
    "SparkSettings",
    "table_asset",
    "topic_asset",
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
