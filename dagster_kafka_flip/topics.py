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
from dagster_kafka_flip.source.subscription import TopicPatternSubscription

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.source.subscription import TopicMetadata


def topic_asset_key(topic: str) -> AssetKey:
    """The asset key of a topic: `kafka/<topic>`."""
    return AssetKey(["kafka", topic])


def upstream_asset_keys(source: KafkaSource) -> tuple[AssetKey, ...]:
    """The asset keys of what a source reads: one for each topic, or one for a pattern, whose topics come and go."""
    subscription = source.subscription
    if isinstance(subscription, TopicPatternSubscription):
        return (topic_asset_key(re.sub(r"[^A-Za-z0-9._-]+", "_", subscription.pattern)),)
    return tuple(topic_asset_key(topic) for topic in subscription.topics)


def kafka_topic_asset(source: KafkaSource, *, group_name: str | None = None, kafka: str = "kafka") -> AssetsDefinition:
    """An observable asset for each topic of a source; for a pattern, one for all the topics that match it.

    Observing it asks the cluster for the end offsets, which are its data version, so that automation conditions
    downstream can tell whether there is something new.

    Args:
        source: Whose topics.
        group_name: Asset group. Default: Dagster's default group.
        kafka: Key of the KafkaResource.
    """
    keys = upstream_asset_keys(source)
    is_pattern = source.topic_pattern is not None
    name = "observe_" + re.sub(r"[^A-Za-z0-9_]", "_", "_".join(key.path[-1] for key in keys))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)

        @multi_observable_source_asset(
            name=name,
            specs=[
                AssetSpec(
                    key=key,
                    description=f"The Kafka {source}." if is_pattern else f"The Kafka topic {key.path[-1]}.",
                    kinds={"kafka"},
                    group_name=group_name,
                )
                for key in keys
            ],
            required_resource_keys={kafka},
        )
        # Without types: Dagster looks at the annotations themselves, which are only text in this module.
        def observe(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
            connection = getattr(context.resources, kafka).connection()
            cluster = KafkaCluster(connection, source.librdkafka_config())
            described = source.subscription.describe(cluster)
            partitions = [tp for topic in described.values() for tp in topic.partitions]
            end = cluster.end_offsets(partitions, source.isolation_level)
            beginning = cluster.beginning_offsets(partitions)
            observed = (
                [(keys[0], tuple(described.values()))]
                if is_pattern
                else [(topic_asset_key(topic.name), (topic,)) for topic in described.values()]
            )
            for key, topics in observed:
                yield _observation(key, topics, beginning, end)

    return observe


def _observation(key: AssetKey, topics: Sequence[TopicMetadata], beginning: Position, end: Position) -> ObserveResult:
    partitions = [tp for topic in topics for tp in topic.partitions]
    beginning_offsets = {tp: beginning[tp] for tp in partitions}
    end_offsets = {tp: end[tp] for tp in partitions}
    topic_ids = {topic.name: topic.topic_id for topic in topics}
    metadata: dict[str, Any] = {
        "kafka/topics": len(topics),
        "kafka/partitions": len(partitions),
        "kafka/topic_id": ", ".join(topic_id or "unknown" for topic_id in topic_ids.values()),
        "kafka/beginning_offsets": position_to_json(beginning_offsets),
        "kafka/end_offsets": position_to_json(end_offsets),
        "kafka/offset_span": sum(end_offsets.values()) - sum(beginning_offsets.values()),
    }
    return ObserveResult(
        asset_key=key, data_version=_data_version(topic_ids, position_to_json(end_offsets)), metadata=metadata
    )


def _data_version(topic_ids: Any, end_offsets: Any) -> DataVersion:
    return DataVersion(hashlib.sha256(json.dumps([topic_ids, end_offsets]).encode()).hexdigest()[:32])
