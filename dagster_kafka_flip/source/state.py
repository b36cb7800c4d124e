"""What an enumerator knows between runs, and the serialized forms of it and of splits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.source.split import Position


@dataclass(frozen=True)
class EnumeratorState:
    """Where a stream stands: FLIP-27's enumerator checkpoint.

    Attributes:
        position: The next offset to read of every topic partition the stream has ever seen.
        cluster_id: Id of the cluster whose offsets these are; None where the cluster does not tell.
        topic_ids: Id of each topic (KIP-516); topics whose id is not told are left out.
        watermark: The event time that every busy topic partition has reached, in milliseconds since the epoch, under a
            source with a maximum drift; it never goes back. None where it isn't known.
    """

    position: Position
    cluster_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    watermark: int | None = None


class EnumeratorStateSerializer:
    """A state as JSON, about 11 bytes for a topic partition whose offset has ten digits."""

    version = 1
    what = "the position"

    def serialize(self, value: EnumeratorState) -> dict[str, Any]:
        """Offsets are lists by topic, indexed by partition number, null where there is none."""
        document: dict[str, Any] = {
            "cluster": value.cluster_id,
            "topics": dict(value.topic_ids),
            "position": position_to_json(value.position),
        }
        return document if value.watermark is None else {**document, "watermark": value.watermark}

    def deserialize(self, version: int, document: Mapping[str, Any]) -> EnumeratorState:
        """Reads what `serialize` wrote."""
        del version  # there has been one only
        return EnumeratorState(
            position=position_from_json(document["position"]),
            cluster_id=document["cluster"],
            topic_ids=dict(document["topics"]),
            watermark=document.get("watermark"),
        )


class KafkaPartitionSplitSerializer:
    """A batch's splits as JSON, about 19 bytes for a split whose offset has ten digits.

    Topic to runs of neighbouring topic partitions, each `[first partition, [starting offsets], [offset spans]]`.
    """

    version = 1
    what = "a batch's splits"

    def serialize(self, value: Iterable[KafkaPartitionSplit]) -> dict[str, Any]:
        """One run for each stretch of partition numbers without a gap."""
        ranges: dict[str, list[tuple[int, list[int], list[int]]]] = {}
        for split in sorted(value):
            topic, partition = split.topic_partition
            runs = ranges.setdefault(topic, [])
            if not runs or partition != runs[-1][0] + len(runs[-1][1]):
                runs.append((partition, [], []))
            runs[-1][1].append(split.starting_offset)
            runs[-1][2].append(split.offset_span)
        return {"ranges": {topic: [list(run) for run in runs] for topic, runs in ranges.items()}}

    def deserialize(self, version: int, document: Mapping[str, Any]) -> tuple[KafkaPartitionSplit, ...]:
        """Reads what `serialize` wrote."""
        del version  # there has been one only
        return tuple(
            KafkaPartitionSplit(TopicPartition(topic, first + index), start, start + span)
            for topic, runs in document["ranges"].items()
            for first, starts, spans in runs
            for index, (start, span) in enumerate(zip(starts, spans, strict=True))
        )


STATE_SERIALIZER = EnumeratorStateSerializer()
SPLIT_SERIALIZER = KafkaPartitionSplitSerializer()


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
