"""A model of a cluster's logs: just enough of Kafka to plan against, with answers that are plainly right."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_kafka_flip.errors import TopicNotFoundError
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.split import (
    LogEnd,
    RecordSearch,
    TimestampedOffset,
    TopicMetadata,
    TopicPartition,
    TopicSettings,
)


@dataclass
class LogModel:
    """One topic partition's log.

    Attributes:
        timestamps: The timestamp of each offset ever written, from offset 0 on.
        beginning: The log start offset.
        open_from: The first offset of the oldest open transaction; None if there is none.
        markers: Offsets of transactions' markers: they have a time, and no consumer gets to see them.
        aborted: Offsets of aborted records: only a `read_uncommitted` consumer gets to see them.
        epochs: The offset at which each leader took over, by its epoch; empty if the brokers don't tell.
    """

    timestamps: list[int] = field(default_factory=list[int])
    beginning: int = 0
    open_from: int | None = None
    markers: set[int] = field(default_factory=set[int])
    aborted: set[int] = field(default_factory=set[int])
    epochs: dict[int, int] = field(default_factory=dict[int, int])

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

    def is_record(self, offset: int, isolation_level: str) -> bool:
        """Whether a consumer gets to see what stands at an offset."""
        hidden = self.markers if isolation_level == "read_uncommitted" else self.markers | self.aborted
        return self.beginning <= offset < self.end(isolation_level) and offset not in hidden

    def end_of_epoch(self, epoch: int) -> int:
        """The offset up to which the records are from leaders of no later epoch."""
        return min((start for later, start in self.epochs.items() if later > epoch), default=self.high_watermark)

    def search(self, search: RecordSearch, isolation_level: str) -> TimestampedOffset | None:
        for offset in range(search.start, search.stop):
            if self.is_record(offset, isolation_level) and self.timestamps[offset] >= search.timestamp_ms:
                return TimestampedOffset(offset, self.timestamps[offset])
        return None


@dataclass
class ClusterModel(KafkaCluster):
    """Takes the place of all requests."""

    logs: dict[TopicPartition, LogModel]
    committed: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    id: str | None = "cluster"
    topic_id: str | None = "topic-id"
    requests: int = 0
    settings: dict[str, TopicSettings] = field(default_factory=dict[str, TopicSettings])

    def cluster_id(self):
        self.requests += 1
        return self.id

    def broker_addresses(self):
        return ("kafka:9092",)

    def list_topics(self):
        self.requests += 1
        return tuple({tp.topic for tp in self.logs})

    def describe_topics(self, topics, *, skip_missing=False):
        self.requests += 1
        partitions = {topic: [] for topic in topics}
        for tp in sorted(self.logs):
            if tp.topic in partitions:
                partitions[tp.topic].append(tp)
        for topic, found in partitions.items():
            if not found and not skip_missing:
                raise TopicNotFoundError(f"the topic {topic} does not exist")
        return {
            topic: TopicMetadata(topic, self.topic_id, tuple(found), is_internal=topic.startswith("__"))
            for topic, found in partitions.items()
            if found
        }

    def beginning_offsets(self, partitions):
        self.requests += 1
        return {tp: self.logs[tp].beginning for tp in partitions}

    def end_offsets(self, partitions, isolation_level):
        self.requests += 1
        return {tp: self.logs[tp].end(isolation_level) for tp in partitions}

    def log_ends(self, partitions, isolation_level):
        ends = self.end_offsets(partitions, isolation_level)
        return {tp: LogEnd(end, max(self.logs[tp].epochs, default=None)) for tp, end in ends.items()}

    def cut_offsets(self, ends):
        self.requests += 1
        found = {tp: self.logs[tp].end_of_epoch(end.leader_epoch or 0) for tp, end in ends.items()}
        cut: dict[TopicPartition, int | None] = {tp: end for tp, end in found.items() if end < ends[tp].offset}
        return cut

    def offsets_for_times(self, timestamps_ms, isolation_level):
        self.requests += 1
        found = {tp: self.logs[tp].at_or_after(timestamp, isolation_level) for tp, timestamp in timestamps_ms.items()}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def records_at(self, times, isolation_level):
        return [
            {
                tp: TimestampedOffset(offset, self.logs[tp].timestamps[offset])
                for tp, offset in self.offsets_for_times(each, isolation_level).items()
            }
            for each in times
        ]

    def topic_settings(self, topics):
        self.requests += 1
        return {topic: self.settings[topic] for topic in topics if topic in self.settings}

    def max_timestamps(self, partitions):
        self.requests += 1
        found: dict[TopicPartition, TimestampedOffset] = {}
        for tp in partitions:
            log = self.logs[tp]
            if timestamps := log.timestamps[log.beginning :]:
                highest = max(timestamps)
                found[tp] = TimestampedOffset(log.beginning + timestamps.index(highest), highest)
        return found

    def search_records(self, searches, isolation_level):
        self.requests += bool(searches)
        return {search: self.logs[search.topic_partition].search(search, isolation_level) for search in searches}

    def close(self):
        pass

    def commit_offsets(self, position, group_id):
        self.committed.update(position)

    def committed_offsets(self, partitions, group_id):
        self.requests += 1
        return {tp: self.committed[tp] for tp in partitions if tp in self.committed}
