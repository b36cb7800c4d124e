"""Changes among the topic partitions since the last plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from dagster_kafka_flip.source.split import TopicPartition


@dataclass(frozen=True)
class PartitionChange:
    """Topic partitions by discovery state. Flink's class of the same name, plus the known ones.

    Attributes:
        initial: Found by the stream's first discovery; they start at the source's starting offsets.
        new: Found by a later discovery; they start at their beginning, so that no record is missed.
        removed: No longer existing or no longer in the source; their position is kept.
        known: Existing before and now; they continue from their position.
    """

    initial: tuple[TopicPartition, ...]
    new: tuple[TopicPartition, ...]
    removed: tuple[TopicPartition, ...]
    known: tuple[TopicPartition, ...]


def get_partition_change(
    fetched: Collection[TopicPartition], known: Collection[TopicPartition], *, initial_discovery: bool
) -> PartitionChange:
    """Compares the discovered topic partitions with the known ones.

    Args:
        fetched: Topic partitions that exist and are in the source.
        known: Topic partitions of the position.
        initial_discovery: Whether this is the stream's first discovery.
    """
    there, before = set(fetched), set(known)
    found = tuple(sorted(there - before))
    return PartitionChange(
        initial=found if initial_discovery else (),
        new=() if initial_discovery else found,
        removed=tuple(sorted(before - there)),
        known=tuple(sorted(before & there)),
    )
