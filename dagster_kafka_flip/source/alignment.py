"""Watermark alignment (FLIP-182, FLIP-217) for batch reads: limits how far a topic partition is read ahead.

The timestamp of a split's last record is unknown without reading it. Instead, alignment uses the highest timestamp
before an offset: the latest time whose lookup still returns an earlier offset. A binary search finds it, with one
request per step for all topic partitions. Unlike the last record's timestamp, it never decreases with the offset, as a
watermark requires.

Lookups by timestamp also return transaction markers, which carry the broker's clock, and records of aborted
transactions. Alignment therefore verifies that the result is a readable record, and raises an error if not, instead of
returning a watermark that no record has reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import EventTimeUnknownError
from dagster_kafka_flip.source.split import TimestampedOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.log import Log
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition

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
