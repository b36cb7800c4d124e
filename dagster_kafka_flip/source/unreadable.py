"""Records that Spark can't read, and the offset ranges that the Kafka client reads instead.

A Spark TIMESTAMP has 64-bit microseconds. Kafka's timestamps have 64-bit milliseconds, and producers can write any
value. Spark's Kafka reader fails on values that are out of range, regardless of the selected columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dagster_kafka_flip.source.log import Cluster
    from dagster_kafka_flip.source.split import TimestampedOffset

LATEST_MS = (2**63 - 1) // 1000
"""The latest timestamp that Spark can hold, in milliseconds since the epoch."""

# Spark reads the ranges one after the other, so the client also reads the few records in between.
_JOINED = 5_000

_NAMED = 5


@dataclass(frozen=True)
class UnreadableRecords:
    """Records that Spark can't read.

    Attributes:
        records: Number of records.
        named: The first few.
        ranges: Sorted, disjoint ranges of offsets that contain all of them.
    """

    records: int
    named: tuple[tuple[TopicPartition, TimestampedOffset], ...]
    ranges: tuple[KafkaPartitionSplit, ...]


def is_readable(timestamp_ms: int) -> bool:
    """Whether a timestamp is in range for a Spark TIMESTAMP."""
    return -LATEST_MS <= timestamp_ms <= LATEST_MS


def unreadable_records(
    cluster: Cluster, splits: Sequence[KafkaPartitionSplit], isolation_level: str
) -> UnreadableRecords | None:
    """Searches for records whose timestamps are out of range for Spark; None if there are none.

    A lookup by timestamp returns the first such offset. Only if it finds nothing are all records read, because Kafka
    can't look up timestamps before 1970.
    """
    if not splits:
        return None
    first = cluster.offsets_for_times({split.topic_partition: LATEST_MS + 1 for split in splits}, isolation_level)
    later = [
        replace(split, starting_offset=max(split.starting_offset, first[split.topic_partition]))
        for split in splits
        if first.get(split.topic_partition, split.stopping_offset) < split.stopping_offset
    ]
    return _looked_through(cluster, later, isolation_level) or _looked_through(cluster, splits, isolation_level)


def _looked_through(
    cluster: Cluster, ranges: Sequence[KafkaPartitionSplit], isolation_level: str
) -> UnreadableRecords | None:
    if not ranges:
        return None
    records = 0
    named: list[tuple[TopicPartition, TimestampedOffset]] = []
    found: dict[TopicPartition, list[KafkaPartitionSplit]] = {}
    for tp, record in cluster.record_times(ranges, isolation_level):
        if is_readable(record.timestamp_ms):
            continue
        records += 1
        if len(named) < _NAMED:
            named.append((tp, record))
        of_log = found.setdefault(tp, [])
        if of_log and record.offset - of_log[-1].stopping_offset <= _JOINED:
            of_log[-1] = replace(of_log[-1], stopping_offset=record.offset + 1)
        else:
            of_log.append(KafkaPartitionSplit(tp, record.offset, record.offset + 1))
    if not records:
        return None
    return UnreadableRecords(records, tuple(sorted(named)), tuple(each for tp in sorted(found) for each in found[tp]))


def joined(ranges: Iterable[KafkaPartitionSplit]) -> tuple[KafkaPartitionSplit, ...]:
    """Merges ranges that overlap or touch."""
    result: list[KafkaPartitionSplit] = []
    for each in sorted(ranges):
        last = result[-1] if result else None
        if (
            last is not None
            and last.topic_partition == each.topic_partition
            and each.starting_offset <= last.stopping_offset
        ):
            result[-1] = replace(last, stopping_offset=max(last.stopping_offset, each.stopping_offset))
        else:
            result.append(each)
    return tuple(result)


def within(
    ranges: Iterable[KafkaPartitionSplit], splits: Iterable[KafkaPartitionSplit]
) -> tuple[KafkaPartitionSplit, ...]:
    """The intersection of ranges and splits.

    Args:
        ranges: Ranges that don't overlap.
        splits: At most one split per topic partition.
    """
    by_log = {split.topic_partition: split for split in splits}
    cut = (
        KafkaPartitionSplit(each.topic_partition, start, stop)
        for each in ranges
        if (split := by_log.get(each.topic_partition)) is not None
        and (start := max(each.starting_offset, split.starting_offset))
        < (stop := min(each.stopping_offset, split.stopping_offset))
    )
    return tuple(sorted(cut))


def around(
    splits: Iterable[KafkaPartitionSplit], ranges: Sequence[KafkaPartitionSplit]
) -> tuple[KafkaPartitionSplit, ...]:
    """The splits without given ranges.

    Args:
        splits: At most one split per topic partition.
        ranges: Ranges that don't overlap.
    """
    pieces: list[KafkaPartitionSplit] = []
    for split in splits:
        start = split.starting_offset
        for each in within(ranges, [split]):
            pieces.append(replace(split, starting_offset=start, stopping_offset=each.starting_offset))
            start = each.stopping_offset
        pieces.append(replace(split, starting_offset=start))
    return tuple(piece for piece in pieces if not piece.is_empty)


def rounds(ranges: Sequence[KafkaPartitionSplit]) -> list[list[KafkaPartitionSplit]]:
    """Distributes the ranges over rounds with at most one range per topic partition."""
    dealt: list[list[KafkaPartitionSplit]] = []
    seen: dict[TopicPartition, int] = {}
    for each in sorted(ranges):
        number = seen[each.topic_partition] = seen.get(each.topic_partition, -1) + 1
        if number == len(dealt):
            dealt.append([])
        dealt[number].append(each)
    return dealt
