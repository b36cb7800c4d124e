"""Derives a stream's source from its position, for commands without a source."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.cluster import KafkaCluster

if TYPE_CHECKING:
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


def partitions_still_there(connection: KafkaConnection, state: EnumeratorState) -> tuple[TopicPartition, ...]:
    """The topic partitions of a position that exist in a cluster."""
    names = sorted({tp.topic for tp in state.position})
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topics = cluster.describe_topics(names, skip_missing=True)
    return tuple(tp for topic in topics.values() for tp in topic.partitions if tp in state.position)
