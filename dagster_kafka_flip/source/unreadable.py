"""Finds a record that Spark can't read.

A Spark TIMESTAMP has 64-bit microseconds. Kafka's timestamps have 64-bit milliseconds, and producers can write any
value. Spark's Kafka reader fails on values that are out of range, regardless of the selected columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.log import Cluster
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TimestampedOffset, TopicPartition

LATEST_MS = (2**63 - 1) // 1000
"""The latest timestamp that Spark can hold, in milliseconds since the epoch."""


def unreadable_record(
    cluster: Cluster, splits: Sequence[KafkaPartitionSplit], isolation_level: str
) -> tuple[TopicPartition, TimestampedOffset] | None:
    """Returns the first record with such a timestamp of a topic partition that has one; None if none has.

    A look-up by timestamp finds the first late one. Only if it finds nothing are all records read, because Kafka can't
    look up timestamps before 1970.
    """
    first = cluster.offsets_for_times({split.topic_partition: LATEST_MS + 1 for split in splits}, isolation_level)
    late = [
        replace(split, starting_offset=max(split.starting_offset, first[split.topic_partition]))
        for split in splits
        if first.get(split.topic_partition, split.stopping_offset) < split.stopping_offset
    ]
    for ranges in (late, splits):
        for tp, record in cluster.record_times(ranges, isolation_level) if ranges else ():
            if not -LATEST_MS <= record.timestamp_ms <= LATEST_MS:
                return tp, record
    return None
