"""What has changed among the topic partitions since the last plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from dagster_kafka_flip.source.split import TopicPartition


@dataclass(frozen=True)
class PartitionChange:
    """Topic partitions by what is known of them. Flink's class of the same name, with the known ones added.

    Attributes:
        initial: Found by the stream's first look; they start where the source's initializer says.
        new: Found by a later look; they start at their beginning, so that nothing is missed.
        removed: No longer there, or no longer asked for; their position is kept.
        known: There now as before; they go on from their position.
    """

    initial: tuple[TopicPartition, ...]
    new: tuple[TopicPartition, ...]
    removed: tuple[TopicPartition, ...]
    known: tuple[TopicPartition, ...]


def get_partition_change(
    fetched: Collection[TopicPartition], known: Collection[TopicPartition], *, initial_discovery: bool
) -> PartitionChange:
    """Compares what the cluster has with what the stream knows.

    Args:
        fetched: Topic partitions that are there and asked for.
        known: Topic partitions of the position.
        initial_discovery: Whether the stream never looked before.
    """
    there, before = set(fetched), set(known)
    found = tuple(sorted(there - before))
    return PartitionChange(
        initial=found if initial_discovery else (),
        new=() if initial_discovery else found,
        removed=tuple(sorted(before - there)),
        known=tuple(sorted(before & there)),
    )
