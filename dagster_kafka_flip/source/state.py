"""EnumeratorState, and the versioned JSON of states and splits: every later version reads what an earlier one wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.source.split import Position

T = TypeVar("T")


class SimpleVersionedSerializer(Protocol[T]):
    """Flink's interface of the same name, with JSON instead of bytes, so that documents are human-readable."""

    @property
    def version(self) -> int:
        """The version that `serialize` writes."""
        ...

    @property
    def what(self) -> str:
        """Name of the serialized object, for messages."""
        ...

    def serialize(self, value: T) -> dict[str, Any]:
        """The value as a JSON object, without its version."""
        ...

    def deserialize(self, version: int, document: Mapping[str, Any]) -> T:
        """Reads a document of the given version, which is not newer than this one."""
        ...


def to_document(serializer: SimpleVersionedSerializer[T], value: T) -> dict[str, Any]:
    """Serializes the value to a JSON object with its version."""
    return {"version": serializer.version, **serializer.serialize(value)}


def from_document(serializer: SimpleVersionedSerializer[T], document: Mapping[str, Any]) -> T:
    """Deserializes the result of `to_document`."""
    version: int = document["version"]
    if version > serializer.version:
        raise DocumentVersionError(
            f"{serializer.what} has format version {version}, but this version of dagster-kafka-flip reads versions "
            f"up to {serializer.version}: upgrade dagster-kafka-flip to at least the version that wrote it"
        )
    return serializer.deserialize(version, document)


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
    """

    position: Position
    cluster_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    watermark: int | None = None
    # They go with a position, and don't make it another one.
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int], compare=False)


class EnumeratorStateSerializer:
    """Serializes a state to JSON, about 13 bytes per topic partition with a ten-digit offset."""

    version = 1
    what = "the position"

    def serialize(self, value: EnumeratorState) -> dict[str, Any]:
        """Writes offsets as lists by topic, indexed by partition number, with null for gaps."""
        document: dict[str, Any] = {
            "cluster": value.cluster_id,
            "topics": dict(value.topic_ids),
            "position": position_to_json(value.position),
        }
        if value.watermark is not None:
            document["watermark"] = value.watermark
        if value.leader_epochs:
            document["epochs"] = position_to_json(value.leader_epochs)
        return document

    def deserialize(self, version: int, document: Mapping[str, Any]) -> EnumeratorState:
        """Reads the result of `serialize`."""
        del version  # there has been only one version
        return EnumeratorState(
            position=position_from_json(document["position"]),
            cluster_id=document["cluster"],
            topic_ids=dict(document["topics"]),
            watermark=document.get("watermark"),
            leader_epochs=position_from_json(document.get("epochs", {})),
        )


class KafkaPartitionSplitSerializer:
    """Serializes a batch's splits to JSON, about 19 bytes per split with ten-digit offsets.

    By topic: runs of consecutive partitions, each `[first partition, [starting offsets], [offset spans]]`.
    """

    version = 1
    what = "a batch's splits"

    def serialize(self, value: Iterable[KafkaPartitionSplit]) -> dict[str, Any]:
        """Writes one run for each sequence of consecutive partition numbers."""
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
        """Reads the result of `serialize`."""
        del version  # there has been only one version
        return tuple(
            KafkaPartitionSplit(TopicPartition(topic, first + index), start, start + span)
            for topic, runs in document["ranges"].items()
            for first, starts, spans in runs
            for index, (start, span) in enumerate(zip(starts, spans, strict=True))
        )


STATE_SERIALIZER = EnumeratorStateSerializer()
SPLIT_SERIALIZER = KafkaPartitionSplitSerializer()


def position_to_json(position: Position) -> dict[str, list[int | None]]:
    """Writes offsets by topic as lists, indexed by partition number, with null for gaps."""
    document: dict[str, list[int | None]] = {}
    for (topic, partition), offset in sorted(position.items()):
        offsets = document.setdefault(topic, [])
        offsets.extend([None] * (partition - len(offsets)))
        offsets.append(offset)
    return document


def position_from_json(document: Mapping[str, Iterable[int | None]]) -> dict[TopicPartition, int]:
    """Reads the result of `position_to_json`."""
    return {
        TopicPartition(topic, partition): offset
        for topic, offsets in document.items()
        for partition, offset in enumerate(offsets)
        if offset is not None
    }
