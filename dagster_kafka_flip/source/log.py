"""A plan's view of the logs: start and end offsets that are read once, look-ups by timestamp, and alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import EventTimeUnknownError
from dagster_kafka_flip.source.split import (
    ANY_TIME,
    LOOKED_THROUGH,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    LogEnd,
    RecordSearch,
    TimestampedOffset,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition


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


# Watermark alignment (FLIP-182, FLIP-217) for batch reads: limits how far a topic partition is read ahead.
#
# The timestamp of a split's last record is unknown without reading it. Instead, alignment uses the highest timestamp
# before an offset: the latest time whose lookup still returns an earlier offset. A binary search finds it, with one
# request per step for all topic partitions. Unlike the last record's timestamp, it never decreases with the offset, as
# a watermark requires.
#
# Lookups by timestamp also return transaction markers, which carry the broker's clock, and records of aborted
# transactions. Alignment therefore verifies that the result is a readable record, and raises an error if not, instead
# of returning a watermark that no record has reached.

# Precision of the slowest watermark, as a fraction of the drift; a smaller one costs more requests without benefit.
_PRECISION = 64


def align(splits: Sequence[KafkaPartitionSplit], max_drift_ms: int, log: Log) -> tuple[Position, int | None]:
    """Where to stop, and the event time that each busy topic partition reaches then; idle ones hold back no other."""
    stops = {split.topic_partition: split.stopping_offset for split in splits}
    reached = times_reached(stops, log, precision_ms=max(1, max_drift_ms // _PRECISION))
    if not reached:
        return stops, None
    _check_are_records({tp: found.offset for tp, found in reached.items()}, log)
    slowest = min(found.timestamp_ms for found in reached.values())
    # The first offset that is too late: all earlier ones are within the drift.
    found = log.entries_for_times(dict.fromkeys(stops, slowest + max_drift_ms + 1))
    too_late = {tp: offset for tp, offset in found.items() if offset < stops[tp]}
    _check_are_records(too_late, log)
    return {each.topic_partition: each.within(too_late.get(each.topic_partition)) for each in splits}, slowest


def _check_are_records(offsets: Position, log: Log) -> None:
    records = log.with_record(offsets)
    for tp, offset in sorted(offsets.items()):
        if tp not in records:
            raise EventTimeUnknownError(
                f"{tp}: the lookup by timestamp returned offset {offset}, which holds a transaction marker (dated by "
                "the broker's clock) or a record of an aborted transaction. The topic's event time is "
                "unknown",
                "Remove its max_drift to read it",
            )


def times_reached(offsets: Position, log: Log, *, precision_ms: int = 1) -> dict[TopicPartition, TimestampedOffset]:
    """The highest timestamp before each offset, if any record is; may be too low by the precision, never too high."""
    highest = log.max_timestamps(offsets)
    first = log.entries_for_times(dict.fromkeys(highest, 0))
    there = [tp for tp in highest if tp in first and first[tp] < offsets[tp]]
    # The log's highest timestamp is the result if its offset is before the given one, as usual with "latest" as the
    # stop.
    reached = {tp: highest[tp] for tp in there if first[tp] <= highest[tp].offset < offsets[tp]}
    # Invariant: a record at or after `low` has a smaller offset, and no record at or after `high` does.
    low = {tp: TimestampedOffset(first[tp], 0) for tp in there if tp not in reached}
    high = {tp: highest[tp].timestamp_ms + 1 for tp in low}
    while open_ones := [tp for tp in low if high[tp] - low[tp].timestamp_ms > precision_ms]:
        middle = {tp: (low[tp].timestamp_ms + high[tp]) // 2 for tp in open_ones}
        found = log.entries_for_times(middle)
        for tp in open_ones:
            if tp in found and found[tp] < offsets[tp]:
                low[tp] = TimestampedOffset(found[tp], middle[tp])
            else:
                high[tp] = middle[tp]
    return reached | low
