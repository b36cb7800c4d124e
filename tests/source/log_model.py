"""A model of a cluster's logs: just enough of Kafka to plan against, with answers that are plainly right."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_kafka_flip.source.cluster import TopicMetadata
from dagster_kafka_flip.source.split import TopicPartition


@dataclass
class LogModel:
    """One topic partition's log.

    Attributes:
        timestamps: The timestamp of each offset ever written, from offset 0 on.
        beginning: The log start offset.
        open_from: The first offset of the oldest open transaction; None if there is none.
    """

    timestamps: list[int] = field(default_factory=list[int])
    beginning: int = 0
    open_from: int | None = None

    @property
    def high_watermark(self) -> int:
        return len(self.timestamps)

    def end(self, isolation_level: str) -> int:
        if isolation_level == "read_uncommitted" or self.open_from is None:
            return self.high_watermark
        return self.open_from

    def at_or_after(self, timestamp: int, isolation_level: str) -> int | None:
        for offset in range(self.beginning, self.end(isolation_level)):
            if self.timestamps[offset] >= timestamp:
                return offset
        return None


@dataclass
class ClusterModel:
    """Implements the enumerator's `Cluster`."""

    logs: dict[TopicPartition, LogModel]
    committed: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    id: str | None = "cluster"
    topic_id: str | None = "topic-id"

    def cluster_id(self):
        return self.id

    def describe_topics(self, topics):
        return {
            topic: TopicMetadata(topic, self.topic_id, tuple(sorted(tp for tp in self.logs if tp.topic == topic)))
            for topic in topics
        }

    def beginning_offsets(self, partitions):
        return {tp: self.logs[tp].beginning for tp in partitions}

    def end_offsets(self, partitions, isolation_level):
        return {tp: self.logs[tp].end(isolation_level) for tp in partitions}

    def offsets_for_time(self, partitions, timestamp_ms, isolation_level):
        found = {tp: self.logs[tp].at_or_after(timestamp_ms, isolation_level) for tp in partitions}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def committed_offsets(self, partitions, group_id):
        return {tp: self.committed[tp] for tp in partitions if tp in self.committed}
