"""EnumeratorState, and the versioned JSON of states and splits: every later version reads what an earlier one wrote."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.source.split import Position

_VERSION = 1


def _checked(document: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    version: int = document["version"]
    if version > _VERSION:
        raise DocumentVersionError(
            f"{what} has format version {version}, but this version of dagster-kafka-flip reads versions up to "
            f"{_VERSION}: upgrade dagster-kafka-flip to at least the version that wrote it"
        )
    return document


@dataclass(frozen=True)
class EnumeratorState:
    """A stream's position and its cluster: FLIP-27's enumerator checkpoint.

    Attributes:
        position: The next offset to read of every topic partition that the stream ever had.
        cluster_id: Id of the cluster that the offsets belong to; None if unknown.
        topic_ids: Id of each topic (KIP-516); omits unknown ids.
        watermark: Event time that every busy topic partition has reached, in milliseconds since the epoch, for a source
            with a maximum drift; it never decreases. None if unknown.
        leader_epochs: The epoch of each log's leader when the position was planned (KIP-320); omits unknown ones.
        reached: The furthest position that the stream ever had, if its table has a key, of those that went back.
    """

    position: Position
    cluster_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    watermark: int | None = None
    # They go with a position, and don't make it another one.
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int], compare=False)
    reached: Position = field(default_factory=dict[TopicPartition, int], compare=False)

    @property
    def furthest(self) -> Position:
        """Up to where the log must be as it was: to the position, or where it was before it went back."""
        return {tp: max(at, self.reached.get(tp, at)) for tp, at in self.position.items()}

    def over(self, before: EnumeratorState) -> EnumeratorState:
        """The state with what the cluster did not return this time, and an earlier state has."""
        return replace(
            self,
            cluster_id=self.cluster_id or before.cluster_id,
            topic_ids={**before.topic_ids, **self.topic_ids},
            leader_epochs={**before.leader_epochs, **self.leader_epochs},
            reached=before.reached,
        )

    def to_json(self) -> dict[str, Any]:
        """About 13 bytes per topic partition with a ten-digit offset."""
        reached = {tp: at for tp, at in self.furthest.items() if at > self.position[tp]}
        return {
            "version": _VERSION,
            "cluster": self.cluster_id,
            "topics": dict(self.topic_ids),
            "position": position_to_json(self.position),
            **({} if self.watermark is None else {"watermark": self.watermark}),
            **({"epochs": position_to_json(self.leader_epochs)} if self.leader_epochs else {}),
            **({"reached": position_to_json(reached)} if reached else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EnumeratorState:
        _checked(document, "the position")
        return cls(
            position=position_from_json(document["position"]),
            cluster_id=document["cluster"],
            topic_ids=dict(document["topics"]),
            watermark=document.get("watermark"),
            leader_epochs=position_from_json(document.get("epochs", {})),
            reached=position_from_json(document.get("reached", {})),
        )


def splits_to_json(splits: Iterable[KafkaPartitionSplit]) -> dict[str, Any]:
    """By topic: runs of partitions as `[first, [starting offsets], [offset spans]]`; about 19 bytes per split."""
    ranges: dict[str, list[tuple[int, list[int], list[int]]]] = {}
    for split in sorted(splits):
        topic, partition = split.topic_partition
        runs = ranges.setdefault(topic, [])
        if not runs or partition != runs[-1][0] + len(runs[-1][1]):
            runs.append((partition, [], []))
        runs[-1][1].append(split.starting_offset)
        runs[-1][2].append(split.offset_span)
    return {"version": _VERSION, "ranges": {topic: [list(run) for run in runs] for topic, runs in ranges.items()}}


def splits_from_json(document: Mapping[str, Any]) -> tuple[KafkaPartitionSplit, ...]:
    return tuple(
        KafkaPartitionSplit(TopicPartition(topic, first + index), start, start + span)
        for topic, runs in _checked(document, "a batch's splits")["ranges"].items()
        for first, starts, spans in runs
        for index, (start, span) in enumerate(zip(starts, spans, strict=True))
    )


def position_to_json(position: Position) -> dict[str, list[int | None]]:
    """Writes offsets by topic as lists, indexed by partition number, with null for gaps."""
    document: dict[str, list[int | None]] = {}
    for (topic, partition), offset in sorted(position.items()):
        offsets = document.setdefault(topic, [])
        offsets.extend([None] * (partition - len(offsets)))
        offsets.append(offset)
    return document


def position_from_json(document: Mapping[str, Iterable[int | None]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, partition): offset
        for topic, offsets in document.items()
        for partition, offset in enumerate(offsets)
        if offset is not None
    }
