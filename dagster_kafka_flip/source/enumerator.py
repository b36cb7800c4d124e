"""KafkaSourceEnumerator: finds the topic partitions and fixes where each of them starts and stops.

FLIP-27's split enumerator for a bounded read. It looks at Kafka's metadata alone, with a fixed number of round trips
whatever the number of topic partitions, and nothing is read before all numbers are fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    EndBeforePositionError,
    OffsetOutOfRangeError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.source.kafka_source import READ_COMMITTED, READ_UNCOMMITTED
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import KafkaPartitionSplit
from dagster_kafka_flip.source.state import EnumeratorState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.source.cluster import TopicMetadata
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import Position, TopicPartition


class Cluster(Protocol):
    """What the enumerator needs of a cluster; `KafkaCluster` is the one there is."""

    def cluster_id(self) -> str | None:
        """The cluster's id, or None where it does not tell."""
        ...

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicMetadata]:
        """Ids and partitions of topics."""
        ...

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The log start offset of each topic partition."""
        ...

    def end_offsets(self, partitions: Collection[TopicPartition], isolation_level: str) -> Mapping[TopicPartition, int]:
        """The end offset of each under an isolation level."""
        ...

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation_level: str
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each at or after a timestamp; partitions without one are left out."""
        ...

    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> Mapping[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        ...


class KafkaSourceEnumerator:
    """Turns a source and a position into a ReadPlan.

    Args:
        source: What to read.
        cluster: Where from.
    """

    def __init__(self, source: KafkaSource, cluster: Cluster) -> None:
        self._source = source
        self._cluster = cluster

    def plan(self, state: EnumeratorState | None, *, starting_offsets: OffsetsInitializer | None = None) -> ReadPlan:
        """Fixes the splits of a run.

        Args:
            state: Where the stream stands; None if it never ran. State wins over the source's starting offsets.
            starting_offsets: For this run alone, start here instead of at the position. Records between the two are
                read again or skipped; whoever asks for it answers for that. Specific offsets move the topic partitions
                that they name; the others go on from their position.

        Raises:
            TopicNotFoundError: A topic is missing.
            ClusterChangedError: The state is of another cluster.
            TopicRecreatedError: The state is of an earlier topic with the same name.
            RetentionOvertookPositionError: The log begins after the position.
            EndBeforePositionError: The log ends before the position.
            OffsetOutOfRangeError: A specific offset lies outside of the log.
            OffsetNotFoundError: The consumer group has no committed offset.
            ClusterUnreachableError: No broker answered.
        """
        cluster_id = self._cluster.cluster_id()
        topics = self._cluster.describe_topics(self._source.subscription.topics)
        partitions = [tp for topic in topics.values() for tp in topic.partitions]
        topic_ids = {topic.name: topic.topic_id for topic in topics.values() if topic.topic_id is not None}
        if state is not None:
            _check_identity(state, cluster_id, topic_ids)

        log = _Log(self._source, self._cluster, partitions)
        position = {} if state is None else state.position
        moved = _moved_by(starting_offsets, partitions, position)
        known = [tp for tp in partitions if tp in position and tp not in moved]
        _check_position({tp: position[tp] for tp in known}, log)
        starts = {tp: position[tp] for tp in known}
        if starting_offsets is not None:
            starts |= self._initial_starts(starting_offsets, moved, log)
        new = [tp for tp in partitions if tp not in starts]
        if state is None:
            starts |= self._initial_starts(self._source.starting_offsets, new, log)
        else:
            # Flink's rule: what appears later is read from its beginning, whatever the initializer says.
            starts |= log.beginning_offsets(new)
        stops = self._stops(partitions, starts, log)

        existing = set(partitions)
        after = dict(position) | stops
        return ReadPlan(
            splits=tuple(
                sorted(KafkaPartitionSplit(tp, starts[tp], stops[tp]) for tp in partitions if starts[tp] < stops[tp])
            ),
            state=EnumeratorState(
                position=after,
                # What the cluster does not tell this time is still known from the last.
                cluster_id=state.cluster_id if cluster_id is None and state is not None else cluster_id,
                topic_ids=({} if state is None else dict(state.topic_ids)) | topic_ids,
            ),
            beginning_offsets=log.beginning_offsets(partitions),
            end_offsets=log.end_offsets(partitions),
            high_watermarks=log.high_watermarks,
            starting_position=dict(position) | starts,
            discovered=() if state is None else tuple(sorted(tp for tp in partitions if tp not in position)),
            removed=tuple(sorted(tp for tp in position if tp not in existing)),
        )

    def _initial_starts(
        self, initializer: OffsetsInitializer, partitions: Collection[TopicPartition], log: _Log
    ) -> dict[TopicPartition, int]:
        _check_named_partitions(initializer, log)
        starts = initializer.starting_offsets(partitions, log)
        beginning, end = log.beginning_offsets(partitions), log.end_offsets(partitions)
        for tp, start in starts.items():
            # A time look-up may find a record that arrived after the end was read: it starts there in the next run.
            if start < beginning[tp] or (start > end[tp] and initializer.kind is not OffsetsKind.TIMESTAMP):
                msg = (
                    f"{tp}: reading can't start at offset {start} ({initializer}): the log holds offsets "
                    f"{beginning[tp]} to {end[tp]}; choose an offset in that range, or earliest or latest"
                )
                raise OffsetOutOfRangeError(msg)
        return starts

    def _stops(
        self, partitions: Collection[TopicPartition], starts: Mapping[TopicPartition, int], log: _Log
    ) -> dict[TopicPartition, int]:
        initializer = self._source.stopping_offsets
        _check_named_partitions(initializer, log)
        wanted = initializer.stopping_offsets(partitions, log)
        end = log.end_offsets(partitions)
        # Never beyond the end (Spark would wait for records that an open transaction holds back), never backwards.
        return {tp: max(starts[tp], min(wanted.get(tp, starts[tp]), end[tp])) for tp in partitions}


def _moved_by(
    starting_offsets: OffsetsInitializer | None, partitions: Collection[TopicPartition], position: Position
) -> frozenset[TopicPartition]:
    """The topic partitions whose start an override for one run decides."""
    if starting_offsets is None:
        return frozenset()
    if starting_offsets.kind is OffsetsKind.SPECIFIC and position:
        return frozenset(starting_offsets.offsets or {})
    return frozenset(partitions)


class _Log:
    """The topic partitions' ends and beginnings, each read once for the whole plan; ends first."""

    def __init__(self, source: KafkaSource, cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
        self._source = source
        self._cluster = cluster
        self._end = cluster.end_offsets(partitions, source.isolation_level)
        self._beginning = cluster.beginning_offsets(partitions)
        self.high_watermarks = (
            cluster.end_offsets(partitions, READ_UNCOMMITTED)
            if source.isolation_level == READ_COMMITTED
            else dict(self._end)
        )

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._beginning[tp] for tp in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        # The log's beginning is read after its end, and retention may have moved it past that end in between.
        return {tp: max(self._end[tp], self._beginning[tp]) for tp in partitions}

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        return self._cluster.offsets_for_time(partitions, timestamp_ms, self._source.isolation_level)

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self._source.group_id is None:
            return {}
        return self._cluster.committed_offsets(partitions, self._source.group_id)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._end


def _check_identity(state: EnumeratorState, cluster_id: str | None, topic_ids: Mapping[str, str]) -> None:
    if state.cluster_id is not None and cluster_id is not None and state.cluster_id != cluster_id:
        msg = (
            f"the position is of the Kafka cluster {state.cluster_id}, but {cluster_id} answers now; its offsets mean "
            "something else, so nothing was read. Correct the address, or give the asset a new stream id to read the "
            "new cluster from its start"
        )
        raise ClusterChangedError(msg)
    for topic, topic_id in topic_ids.items():
        known = state.topic_ids.get(topic)
        if known is not None and known != topic_id:
            msg = (
                f"the topic {topic} was deleted and made again: the position is of topic id {known}, and now it is "
                f"{topic_id}. Offsets of the old topic mean nothing in the new one, so nothing was read. Give the "
                "asset a new stream id to read the new topic from its start"
            )
            raise TopicRecreatedError(msg)


def _check_position(position: Position, log: _Log) -> None:
    beginning = log.beginning_offsets(position)
    # The high watermark, not the end offset: an open transaction moves nothing backwards.
    overtaken = {tp: beginning[tp] for tp, offset in sorted(position.items()) if offset < beginning[tp]}
    beyond = {tp: beginning[tp] for tp, offset in sorted(position.items()) if offset > log.high_watermarks[tp]}
    if overtaken:
        tp = next(iter(overtaken))
        gone = sum(offset - position[tp] for tp, offset in overtaken.items())
        msg = (
            f"{tp}: retention has overtaken the position. The next offset to read is {position[tp]}, and the log "
            f"begins at {overtaken[tp]}: up to {overtaken[tp] - position[tp]} records are gone that were never read"
            f"{_others(overtaken, gone)}. Nothing was written. To go on without them, run once with start set to "
            f"{OffsetsInitializer.specific_offsets(overtaken)}"
        )
        raise RetentionOvertookPositionError(msg)
    if beyond:
        tp = next(iter(beyond))
        msg = (
            f"{tp}: the log ends at offset {log.high_watermarks[tp]}, before the position {position[tp]}"
            f"{_others(beyond)}: it was truncated, or it is another topic. Nothing was written. Find out which; to "
            f"read what the log holds now, run once with start set to {OffsetsInitializer.specific_offsets(beyond)}"
        )
        raise EndBeforePositionError(msg)


def _others(affected: Mapping[TopicPartition, int], records: int | None = None) -> str:
    if len(affected) == 1:
        return ""
    total = "" if records is None else f", up to {records} records in all"
    return f" (and the like on {len(affected) - 1} more topic partitions{total})"


def _check_named_partitions(initializer: OffsetsInitializer, log: _Log) -> None:
    for tp in sorted(initializer.offsets or {}):
        if tp not in log:
            msg = f"an offset is given for {tp}, which does not exist; correct the topic or the partition number"
            raise TopicNotFoundError(msg)
