"""Compares a stream's position with the current logs: lag, and whether the logs are the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterChangedError, KafkaFlipError, TopicNotFoundError
from dagster_kafka_flip.source.identity import check_cluster, recreated_topics
from dagster_kafka_flip.source.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


@dataclass(frozen=True)
class LogStatus:
    """Result of the comparison."""

    # None if unknown.
    cluster_id: str | None
    # Number of the source's existing topics.
    topics: int
    # Offsets between the position and the end offset, for each topic partition with an unchanged log.
    lag: Mapping[TopicPartition, int]
    # Of these, offsets between the position and the log start: deleted before they were read.
    lost: Mapping[TopicPartition, int]
    # Of these, offsets between the log end and the position after it: the log was truncated.
    beyond: Mapping[TopicPartition, int]
    # Errors for logs that changed or do not exist.
    changed: tuple[KafkaFlipError, ...]
    # Offsets between the end offset and the high watermark that an open transaction holds back.
    held_back: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    # Topic partitions of the position that no longer exist; they are not in the lag.
    gone: tuple[TopicPartition, ...] = ()

    # The end offset of each of these topic partitions, and the ids of the topics.
    end: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())


def log_status(source: KafkaSource, cluster: KafkaCluster, state: EnumeratorState) -> LogStatus:
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
    there = {tp for topic in topics.values() for tp in topic.partitions}
    changed += others.values()
    gone = tuple(
        tp
        for tp in sorted(state.position)
        if tp not in there and tp.topic not in others and source.subscription.may_read(tp)
    )
    if not partitions:
        return LogStatus(cluster_id, len(topics), {}, {}, {}, tuple(changed), {}, gone)
    log = Log(cluster, partitions, source.isolation_level)
    begin, end, highest = log.beginning_offsets(partitions), log.end_offsets(partitions), log.high_watermarks
    # Topic partitions discovered later are read from the beginning.
    at = {tp: state.position.get(tp, begin[tp]) for tp in sorted(partitions)}
    return LogStatus(
        cluster_id,
        len(topics),
        lag={tp: max(0, end[tp] - max(position, begin[tp])) for tp, position in at.items()},
        lost={tp: begin[tp] - position for tp, position in at.items() if position < begin[tp]},
        beyond={tp: position - highest[tp] for tp, position in at.items() if position > highest[tp]},
        changed=tuple(changed),
        # Only unread offsets; the position may be after the start of a later transaction.
        held_back={tp: held for tp, position in at.items() if (held := highest[tp] - max(end[tp], position)) > 0},
        gone=gone,
        end=end,
        topic_ids={each.name: each.topic_id for each in topics.values() if each.topic_id},
    )
