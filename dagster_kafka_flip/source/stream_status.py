"""Compares a stream's position with the current logs: lag, and whether the logs are the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterChangedError, KafkaFlipError, TopicNotFoundError
from dagster_kafka_flip.source.identity import check_cluster, recreated_topics
from dagster_kafka_flip.source.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.log import Cluster
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


@dataclass(frozen=True)
class LogStatus:
    """Result of the comparison.

    Attributes:
        cluster_id: Id of the current cluster; None if unknown.
        topics: Number of the source's existing topics.
        lag: Offsets between the position and the end offset, for each topic partition with an unchanged log.
        lost: Of these, offsets between the position and the log start: deleted before they were read.
        beyond: Of these, offsets between the log end and the position after it: the log was truncated.
        changed: Errors for logs that changed or do not exist.
        held_back: Offsets between the end offset and the high watermark that an open transaction holds back.
        gone: Topic partitions of the position that no longer exist; they are not in the lag.
    """

    cluster_id: str | None
    topics: int
    lag: Mapping[TopicPartition, int]
    lost: Mapping[TopicPartition, int]
    beyond: Mapping[TopicPartition, int]
    changed: tuple[KafkaFlipError, ...]
    held_back: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    gone: tuple[TopicPartition, ...] = ()

    @property
    def total_lag(self) -> int:
        """Total lag in offsets."""
        return sum(self.lag.values())


def log_status(source: KafkaSource, cluster: Cluster, state: EnumeratorState) -> LogStatus:
    """Requests the cluster's id, the topic ids, and the start and end offsets of the logs."""
    cluster_id = cluster.cluster_id()
    changed: list[KafkaFlipError] = []
    try:
        topics = source.subscription.describe(cluster, skip_missing=True)
    except TopicNotFoundError as error:
        topics = {}
        changed.append(error)
    missing = source.subscription.missing(topics)
    if missing:
        msg = f"{', '.join(missing)}: topic does not exist, or this client may not describe it"
        changed.append(TopicNotFoundError(msg))
    try:
        check_cluster(state, cluster_id)
    except ClusterChangedError as error:
        return LogStatus(cluster_id, len(topics), {}, {}, {}, (*changed, error))
    others = recreated_topics(state, topics, source.subscription)
    partitions = [tp for topic in topics.values() if topic.name not in others for tp in topic.partitions]
    lag: dict[TopicPartition, int] = {}
    lost: dict[TopicPartition, int] = {}
    beyond: dict[TopicPartition, int] = {}
    held_back: dict[TopicPartition, int] = {}
    if partitions:
        log = Log(source, cluster, partitions)
        beginning, end = log.beginning_offsets(partitions), log.end_offsets(partitions)
        for tp in sorted(partitions):
            # Topic partitions discovered later are read from the beginning.
            position = state.position.get(tp, beginning[tp])
            lag[tp] = max(0, end[tp] - max(position, beginning[tp]))
            if position < beginning[tp]:
                lost[tp] = beginning[tp] - position
            if position > log.high_watermarks[tp]:
                beyond[tp] = position - log.high_watermarks[tp]
            # Only for unread offsets; the position may be after the start of a later transaction.
            if (held := log.high_watermarks[tp] - max(end[tp], position)) > 0:
                held_back[tp] = held
    there = {tp for topic in topics.values() for tp in topic.partitions}
    gone = tuple(
        tp
        for tp in sorted(state.position)
        if tp not in there and tp.topic not in others and source.subscription.may_read(tp)
    )
    return LogStatus(cluster_id, len(topics), lag, lost, beyond, (*changed, *others.values()), held_back, gone)
