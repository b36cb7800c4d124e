"""Measures a stream's lag by planning a run without reading."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError, TopicNotFoundError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.kafka_source import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


def partitions_still_there(connection: KafkaConnection, state: EnumeratorState) -> tuple[TopicPartition, ...]:
    """The topic partitions of a position that exist in a cluster."""
    names = sorted({tp.topic for tp in state.position})
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topics = cluster.describe_topics(names, skip_missing=True)
    return tuple(tp for topic in topics.values() for tp in topic.partitions if tp in state.position)


class LagMeter:
    """Measures the lag of streams in one cluster.

    Args:
        connection: The Kafka connection.
        sources: Known sources of streams. For others, the topic partitions of their position are used.
    """

    def __init__(self, connection: KafkaConnection, sources: Mapping[str, KafkaSource]) -> None:
        self._connection = connection
        self._sources = sources
        self._unreachable: ClusterUnreachableError | None = None

    def measure(self, stream: str, state: EnumeratorState) -> dict[TopicPartition, int]:
        """Lag in offsets, by topic partition.

        Raises:
            KafkaFlipError: The position does not match the log, or the cluster does not answer.
        """
        # Waits for an unreachable cluster only once.
        if self._unreachable is not None:
            raise self._unreachable
        try:
            source = self._sources.get(stream) or self._source_of(state)
            source = source.connected(self._connection)
            with contextlib.closing(source.restore_enumerator(SplitEnumeratorContext(), state)) as enumerator:
                return enumerator.plan(state).lag_before
        except ClusterUnreachableError as error:
            self._unreachable = error
            raise

    def _source_of(self, state: EnumeratorState) -> KafkaSource:
        there = partitions_still_there(self._connection, state)
        if not there:
            msg = (
                f"none of the stream's topics is on {self._connection.bootstrap_servers}, or this client may not "
                "describe them; check the address and the credentials"
            )
            raise TopicNotFoundError(msg)
        return KafkaSource(partitions=there)


def lag_or_error(
    meter: LagMeter | None, stream: str, state: EnumeratorState | None
) -> dict[TopicPartition, int] | KafkaFlipError | None:
    """The lag of a stream, the error if unknown, or None if not requested or without a position."""
    if meter is None or state is None:
        return None
    try:
        return meter.measure(stream, state)
    except KafkaFlipError as error:
        return error
