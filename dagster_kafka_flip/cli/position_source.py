"""What a stream reads, as far as its position tells: for commands that are told no source."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.cluster import KafkaCluster

if TYPE_CHECKING:
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


def partitions_still_there(connection: KafkaConnection, state: EnumeratorState) -> tuple[TopicPartition, ...]:
    """The topic partitions of a position that a cluster has.

    Args:
        connection: Where the cluster is.
        state: Where the stream stands.
    """
    names = sorted({tp.topic for tp in state.position})
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topics = cluster.describe_topics(names, skip_missing=True)
    return tuple(tp for topic in topics.values() for tp in topic.partitions if tp in state.position)
