"""The logs as one plan sees them: what it asks of a cluster, and the ends and beginnings that it read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.source.isolation import READ_COMMITTED, READ_UNCOMMITTED
from dagster_kafka_flip.source.subscription import TopicDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.sample import SplitSample, TimestampedOffset
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition


@dataclass(frozen=True)
class TopicSettings:
    """What a topic's settings say about the times of its records, and how long they are kept.

    Attributes:
        timestamp_type: `CreateTime` or `LogAppendTime` (KIP-32); of records that are written now.
        retention_ms: How long a record is kept, in milliseconds; None for ever.
        is_limited_by_size: Whether records may go before that, because they are too many.
        is_compacted: Whether a record may go once a later one has the same key.
    """

    timestamp_type: str
    retention_ms: int | None
    is_limited_by_size: bool
    is_compacted: bool = False

    @property
    def is_set_by_broker(self) -> bool:
        """Whether the broker gives a record its time when it comes."""
        return self.timestamp_type == "LogAppendTime"

    def keeps(self, ms: int, now_ms: int) -> bool:
        """Whether a record of some time is kept until now, as far as retention is concerned."""
        return not self.is_limited_by_size and (self.retention_ms is None or ms > now_ms - self.retention_ms)


class Cluster(TopicDirectory, Protocol):
    """What the enumerator needs of a cluster; `KafkaCluster` is the one there is."""

    def cluster_id(self) -> str | None:
        """The cluster's id, or None where it does not tell."""
        ...

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The log start offset of each topic partition."""
        ...

    def end_offsets(self, partitions: Collection[TopicPartition], isolation_level: str) -> Mapping[TopicPartition, int]:
        """The end offset of each under an isolation level."""
        ...

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], isolation_level: str
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each at or after its timestamp; partitions without one are left out."""
        ...

    def records_at(
        self, times: Sequence[Mapping[TopicPartition, int]], isolation_level: str
    ) -> Sequence[Mapping[TopicPartition, TimestampedOffset]]:
        """For each of many look-ups, all under way at once: the first record at or after a time, and its own time."""
        ...

    def topic_settings(self, topics: Collection[str]) -> Mapping[str, TopicSettings]:
        """Settings of topics; those that this client may not see are left out."""
        ...

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        """The highest record timestamp of each, and where it is; partitions without a record are left out."""
        ...

    def first_records(self, position: Position, isolation_level: str) -> Mapping[TopicPartition, int]:
        """The offset of the first record that is read, from an offset on; partitions without one are left out."""
        ...

    def records_standing_at(
        self, offsets: Mapping[TopicPartition, Collection[int]], isolation_level: str
    ) -> Mapping[TopicPartition, Collection[int]]:
        """Of some offsets of each, those at which a record stands that is read; others are markers, or aborted."""
        ...

    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> Mapping[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        ...

    def commit_offsets(self, position: Position, group_id: str) -> None:
        """Commits a consumer group's offsets."""
        ...

    def sample(
        self, splits: Iterable[KafkaPartitionSplit], isolation_level: str
    ) -> Mapping[TopicPartition, SplitSample]:
        """A few records of each split; splits without a record are left out."""
        ...


class Times:
    """Look-ups by time under one isolation level."""

    def __init__(self, cluster: Cluster, isolation_level: str) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first offset of each at or after its timestamp; partitions without one are left out."""
        return self._cluster.offsets_for_times(timestamps_ms, self._isolation_level)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        """The highest timestamp of each, and where it is."""
        return self._cluster.max_timestamps(partitions)

    def first_records(self, position: Position) -> Mapping[TopicPartition, int]:
        """The offset of the first record that is read, from an offset on."""
        return self._cluster.first_records(position, self._isolation_level) if position else {}


class Log(Times):
    """The topic partitions' ends and beginnings, each read once for the whole plan; ends first."""

    def __init__(self, source: KafkaSource, cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
        super().__init__(cluster, source.isolation_level)
        self._source = source
        self._end = cluster.end_offsets(partitions, source.isolation_level)
        self._beginning = cluster.beginning_offsets(partitions)
        self.high_watermarks = (
            cluster.end_offsets(partitions, READ_UNCOMMITTED)
            if source.isolation_level == READ_COMMITTED
            else dict(self._end)
        )

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each."""
        return {tp: self._beginning[tp] for tp in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each under the isolation level."""
        # The log's beginning is read after its end, and retention may have moved it past that end in between.
        return {tp: max(self._end[tp], self._beginning[tp]) for tp in partitions}

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """What the consumer group has committed; partitions without an offset are left out."""
        if self._source.group_id is None:
            return {}
        return self._cluster.committed_offsets(partitions, self._source.group_id)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._end
