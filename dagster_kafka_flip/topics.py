"""Kafka topics as Dagster assets: where the lineage of a table begins."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    BetaWarning,
    DataVersion,
    ObserveResult,
    multi_observable_source_asset,
)

from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.state import position_to_json

if TYPE_CHECKING:
    from dagster_kafka_flip.source.kafka_source import KafkaSource


def topic_asset_key(topic: str) -> AssetKey:
    """The asset key of a topic: `kafka/<topic>`."""
    return AssetKey(["kafka", topic])


def kafka_topic_asset(source: KafkaSource, *, group_name: str | None = None, kafka: str = "kafka") -> AssetsDefinition:
    """An observable asset for each topic of a source.

    Observing it asks the cluster for the end offsets, which are its data version, so that automation conditions
    downstream can tell whether there is something new.

    Args:
        source: Whose topics.
        group_name: Asset group. Default: Dagster's default group.
        kafka: Key of the KafkaResource.
    """
    topics = source.subscription.topics
    name = "observe_" + re.sub(r"[^A-Za-z0-9_]", "_", "_".join(topics))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)

        @multi_observable_source_asset(
            name=name,
            specs=[
                AssetSpec(
                    key=topic_asset_key(topic),
                    description=f"The Kafka topic {topic}.",
                    kinds={"kafka"},
                    group_name=group_name,
                )
                for topic in topics
            ],
            required_resource_keys={kafka},
        )
        # Without types: Dagster looks at the annotations themselves, which are only text in this module.
        def observe(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
            cluster = KafkaCluster(getattr(context.resources, kafka).connection())
            described = cluster.describe_topics(topics)
            partitions = [tp for topic in described.values() for tp in topic.partitions]
            end = cluster.end_offsets(partitions, source.isolation_level)
            beginning = cluster.beginning_offsets(partitions)
            for topic in described.values():
                end_offsets = {tp: end[tp] for tp in topic.partitions}
                beginning_offsets = {tp: beginning[tp] for tp in topic.partitions}
                metadata: dict[str, Any] = {
                    "kafka/partitions": len(topic.partitions),
                    "kafka/topic_id": topic.topic_id or "unknown",
                    "kafka/beginning_offsets": position_to_json(beginning_offsets),
                    "kafka/end_offsets": position_to_json(end_offsets),
                    "kafka/offset_span": sum(end_offsets.values()) - sum(beginning_offsets.values()),
                }
                yield ObserveResult(
                    asset_key=topic_asset_key(topic.name),
                    data_version=_data_version(topic.topic_id, position_to_json(end_offsets)),
                    metadata=metadata,
                )

    return observe


def _data_version(topic_id: str | None, end_offsets: Any) -> DataVersion:
    return DataVersion(hashlib.sha256(json.dumps([topic_id, end_offsets]).encode()).hexdigest()[:32])
