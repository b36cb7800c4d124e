"""A plan's view of the logs: start and end offsets that are read once, and look-ups by timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.source.split import (
    ANY_TIME,
    LOOKED_THROUGH,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    LogEnd,
    RecordSearch,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.split import Position, TimestampedOffset, TopicPartition


class Log:
    """Start and end offsets of the topic partitions, each read once per plan; ends first.

    Reads high watermarks before last stable offsets. In the reverse order, records that arrive between the two requests
    would look as if an open transaction held them back. In this order, a last stable offset below the high watermark
    means that a transaction was open at the second request.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        partitions: Collection[TopicPartition],
        isolation_level: str,
        group_id: str | None = None,
    ) -> None:
        self._cluster = cluster
        self.isolation_level = isolation_level
        self._group_id = group_id
        highest = cluster.end_offsets(partitions, READ_UNCOMMITTED) if isolation_level == READ_COMMITTED else None
        ends_now = cluster.log_ends(partitions, isolation_level)
        self._end = {tp: end.offset for tp, end in ends_now.items()}
        self.leader_epochs = {tp: end.leader_epoch for tp, end in ends_now.items() if end.leader_epoch is not None}
        self._beginning = cluster.beginning_offsets(partitions)
        ends = self.end_offsets(partitions)
        self.high_watermarks = ends if highest is None else {tp: max(highest[tp], end) for tp, end in ends.items()}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._beginning[tp] for tp in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        # The start offset is read after the end offset; retention may have moved it beyond in between.
        return {tp: max(self._end[tp], self._beginning[tp]) for tp in partitions}

    def cut_offsets(
        self, position: Position, leader_epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Where logs that have another leader since were cut off before a position, if so; None if unknown."""
        ends = {
            tp: LogEnd(offset, leader_epochs[tp])
            for tp, offset in position.items()
            if tp in leader_epochs
            and self.leader_epochs.get(tp, leader_epochs[tp]) != leader_epochs[tp]
            and self._beginning[tp] <= offset
            and offset
        }
        return self._cluster.cut_offsets(ends) if ends else {}

    def entries_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first entry of each log at or after its timestamp: a record, a marker or an aborted record."""
        return self._cluster.offsets_for_times(timestamps_ms, self.isolation_level)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        return self._cluster.max_timestamps(partitions)

    def with_record(self, position: Position) -> Collection[TopicPartition]:
        """The topic partitions that have a consumer-visible record at their offset."""
        searches = {tp: RecordSearch(tp, offset, offset + 1, ANY_TIME) for tp, offset in position.items()}
        found = self._cluster.search_records(searches.values(), self.isolation_level)
        return {tp for tp, search in searches.items() if found[search] is not None}

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first record at or after each time, or how far it was searched for; omits logs without a later entry."""
        entries = self.entries_for_times(timestamps_ms)
        searches = {
            tp: RecordSearch(tp, offset, max(offset, min(offset + LOOKED_THROUGH, self._end[tp])), timestamps_ms[tp])
            for tp, offset in entries.items()
        }
        found = self._cluster.search_records(searches.values(), self.isolation_level)
        records = {tp: found[search] for tp, search in searches.items()}
        return {tp: searches[tp].stop if record is None else record.offset for tp, record in records.items()}

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The consumer group's committed offsets; omits partitions without one."""
        return {} if self._group_id is None else self._cluster.committed_offsets(partitions, self._group_id)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._end
