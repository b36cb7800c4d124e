"""What an enumerator knows between runs, and its serialized form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.source.split import Position

STATE_VERSION = 1


@dataclass(frozen=True)
class EnumeratorState:
    """Where a stream stands: FLIP-27's enumerator checkpoint.

    Attributes:
        position: The next offset to read of every topic partition the stream has ever seen.
        cluster_id: Id of the cluster whose offsets these are; None where the cluster does not tell.
        topic_ids: Id of each topic (KIP-516); topics whose id is not told are left out.
    """

    position: Position
    cluster_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """A compact document: offsets are lists by topic, indexed by partition number, null where there is none."""
        return {
            "version": STATE_VERSION,
            "cluster": self.cluster_id,
            "topics": dict(self.topic_ids),
            "position": position_to_json(self.position),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EnumeratorState:
        """Reads what `to_json` wrote.

        Raises:
            DocumentVersionError: A newer version of this package wrote it.
        """
        if document["version"] > STATE_VERSION:
            msg = (
                f"the position was written in version {document['version']} of its format, and this installation of "
                f"dagster-kafka-flip reads versions up to {STATE_VERSION}: upgrade it to at least the one that wrote it"
            )
            raise DocumentVersionError(msg)
        return cls(
            position=position_from_json(document["position"]),
            cluster_id=document["cluster"],
            topic_ids=dict(document["topics"]),
        )


def position_to_json(position: Position) -> dict[str, list[int | None]]:
    """Topic to a list of offsets, indexed by partition number; null where the position has none."""
    document: dict[str, list[int | None]] = {}
    for (topic, partition), offset in sorted(position.items()):
        offsets = document.setdefault(topic, [])
        offsets.extend([None] * (partition - len(offsets)))
        offsets.append(offset)
    return document


def position_from_json(document: Mapping[str, Iterable[int | None]]) -> dict[TopicPartition, int]:
    """Reads what `position_to_json` wrote."""
    return {
        TopicPartition(topic, partition): offset
        for topic, offsets in document.items()
        for partition, offset in enumerate(offsets)
        if offset is not None
    }


def splits_to_json(splits: Iterable[KafkaPartitionSplit]) -> dict[str, list[list[int]]]:
    """Topic to a list of [partition, starting offset, stopping offset]."""
    document: dict[str, list[list[int]]] = {}
    for split in splits:
        topic, partition = split.topic_partition
        document.setdefault(topic, []).append([partition, split.starting_offset, split.stopping_offset])
    return document


def splits_from_json(document: Mapping[str, Iterable[Iterable[int]]]) -> tuple[KafkaPartitionSplit, ...]:
    """Reads what `splits_to_json` wrote."""
    return tuple(
        KafkaPartitionSplit(TopicPartition(topic, partition), starting_offset, stopping_offset)
        for topic, splits in document.items()
        for partition, starting_offset, stopping_offset in splits
    )
