"""Watermark alignment (FLIP-182, FLIP-217) in batch: no topic partition is read far ahead of the slowest.

What a split's last record is dated can't be had without reading it, but the highest timestamp before an offset can: it
is the latest time whose look-up still finds an offset before it. It is found by halving an interval, for all topic
partitions in one request each time. Unlike the last record's, this time never goes back as the offset goes on, which is
just what a watermark needs.

Look-ups by time also find a transaction's markers, which the broker dates by its own clock, and records of aborted
transactions. So it is made sure that what was found is a record that is read; where it is not, alignment stops with an
error rather than with a watermark that nothing has reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.errors import EventTimeUnknownError
from dagster_kafka_flip.source.plan import proportional_shares
from dagster_kafka_flip.source.sample import TimestampedOffset

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition

# The slowest is found to this share of the drift; a smaller one costs more requests and aligns no better.
_PRECISION = 64


class EventTimes(Protocol):
    """What alignment may ask about the times of a log's records."""

    def entries_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first entry of each at or after a timestamp, of any kind; partitions without one are left out."""
        ...

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        """The highest timestamp in each log, and where it is; partitions without a record are left out."""
        ...

    def with_record(self, position: Position) -> Collection[TopicPartition]:
        """The topic partitions that have a record at their offset that a consumer gets to see."""
        ...


@dataclass(frozen=True)
class Alignment:
    """What alignment came to.

    Attributes:
        stopping_offsets: Of each split's topic partition, at most the split's own.
        watermark: The event time that every busy topic partition reaches with these stops, in milliseconds since the
            epoch; None if none is busy.
    """

    stopping_offsets: Position
    watermark: int | None


def align(splits: Sequence[KafkaPartitionSplit], max_drift_ms: int, times: EventTimes) -> Alignment:
    """Cuts splits off where they would get further ahead than the maximum drift.

    Topic partitions with nothing to read are idle and hold nobody back.

    Args:
        splits: One for each busy topic partition, up to wherever the stop initializer says.
        max_drift_ms: How far ahead of the slowest one may get, in milliseconds.
        times: Where to ask.
    """
    stops = {split.topic_partition: split.stopping_offset for split in splits}
    reached = times_reached(stops, times, precision_ms=max(1, max_drift_ms // _PRECISION))
    if not reached:
        return Alignment(stops, None)
    _check_are_records({tp: found.offset for tp, found in reached.items()}, times)
    slowest = min(found.timestamp_ms for found in reached.values())
    # The first offset that is too late: all before it are within the drift.
    found = times.entries_for_times(dict.fromkeys(stops, slowest + max_drift_ms + 1))
    too_late = {tp: offset for tp, offset in found.items() if offset < stops[tp]}
    _check_are_records(too_late, times)
    starts = {split.topic_partition: split.starting_offset for split in splits}
    return Alignment({tp: max(starts[tp], min(stop, too_late.get(tp, stop))) for tp, stop in stops.items()}, slowest)


def _check_are_records(offsets: Position, times: EventTimes) -> None:
    records = times.with_record(offsets)
    for tp, offset in sorted(offsets.items()):
        if tp not in records:
            msg = (
                f"{tp}: what a look-up by time finds at offset {offset} is no record that is read, but a marker of a "
                "transaction, which the broker dates by its own clock, or a record of an aborted one. How far the "
                "topic is in event time can't be told, so nothing was read; read it without set_watermark_alignment"
            )
            raise EventTimeUnknownError(msg)


def times_reached(
    offsets: Position, times: EventTimes, *, precision_ms: int = 1
) -> dict[TopicPartition, TimestampedOffset]:
    """The highest timestamp before an offset, for each topic partition; those without a record before it are left out.

    Args:
        offsets: An offset of each.
        times: Where to ask.
        precision_ms: By how much, at most, an answer may lie below the truth.

    Returns:
        The timestamp, and the first offset whose timestamp is as high.
    """
    highest = times.max_timestamps(offsets)
    first = times.entries_for_times(dict.fromkeys(highest, 0))
    there = [tp for tp in highest if tp in first and first[tp] < offsets[tp]]
    # The log's highest is the answer itself where it lies before the offset, as it mostly does with "latest" as a stop.
    reached = {tp: highest[tp] for tp in there if first[tp] <= highest[tp].offset < offsets[tp]}
    # Found: some record at or after `low` lies before the offset, and none at or after `high` does.
    low = {tp: TimestampedOffset(first[tp], 0) for tp in there if tp not in reached}
    high = {tp: highest[tp].timestamp_ms + 1 for tp in low}
    while open_ones := [tp for tp in low if high[tp] - low[tp].timestamp_ms > precision_ms]:
        middle = {tp: (low[tp].timestamp_ms + high[tp]) // 2 for tp in open_ones}
        found = times.entries_for_times(middle)
        for tp in open_ones:
            if tp in found and found[tp] < offsets[tp]:
                low[tp] = TimestampedOffset(found[tp], middle[tp])
            else:
                high[tp] = middle[tp]
    return reached | low


def cuts_by_time(
    splits: Sequence[KafkaPartitionSplit], max_offsets: int, times: EventTimes
) -> dict[TopicPartition, int]:
    """An offset within each split, such that all records before them are as far in event time, and few enough.

    Args:
        splits: What there is to read.
        max_offsets: Largest number of offsets before the cuts.
        times: Where to ask.
    """
    partitions = [split.topic_partition for split in splits]

    def cuts(timestamp_ms: int) -> dict[TopicPartition, int]:
        found = times.entries_for_times(dict.fromkeys(partitions, timestamp_ms))
        return {
            split.topic_partition: max(
                split.starting_offset,
                min(split.stopping_offset, found.get(split.topic_partition, split.stopping_offset)),
            )
            for split in splits
        }

    def taken(at: Position) -> int:
        return sum(at[split.topic_partition] - split.starting_offset for split in splits)

    low, high = 0, max((found.timestamp_ms for found in times.max_timestamps(partitions).values()), default=0) + 1
    best, too_many = cuts(low), cuts(high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = cuts(middle)
        if taken(tried) <= max_offsets:
            low, best = middle, tried
        else:
            high, too_many = middle, tried
    # What lies between the two has one and the same time, and fills the batch up.
    spans = [too_many[tp] - best[tp] for tp in partitions]
    room = min(max_offsets - taken(best), sum(spans))
    shares = proportional_shares(spans, room) if room else [0] * len(spans)
    return {tp: best[tp] + share for tp, share in zip(partitions, shares, strict=True)}
