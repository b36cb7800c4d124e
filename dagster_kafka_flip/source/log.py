"""The logs as one plan sees them: what it asks of a cluster, and the ends and beginnings that it read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.source.isolation import READ_COMMITTED, READ_UNCOMMITTED
from dagster_kafka_flip.source.sample import ANY_TIME, LOOKED_THROUGH, RecordSearch
from dagster_kafka_flip.source.subscription import TopicDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.read_settings import ReadSettings
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

    def search_records(
        self, searches: Collection[RecordSearch], isolation_level: str
    ) -> Mapping[RecordSearch, TimestampedOffset | None]:
        """For each search the first record of its range, at or after its time, that a consumer gets to see."""
        ...

    def record_times(
        self, ranges: Sequence[KafkaPartitionSplit], isolation_level: str
    ) -> Iterator[tuple[TopicPartition, TimestampedOffset]]:
        """The offset and the time of each record in some ranges."""
        ...

    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> Mapping[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        ...

    def commit_offsets(self, position: Position, group_id: str) -> None:
        """Commits a consumer group's offsets."""
        ...

    def broker_addresses(self) -> tuple[str, ...]:
        """The addresses that the brokers advertise to this client."""
        ...

    def close(self) -> None:
        """Lets go of the client."""
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

    def entries_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first entry of each log at or after its timestamp, be it a record, a marker, or of an aborted record."""
        return self._cluster.offsets_for_times(timestamps_ms, self._isolation_level)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        """The highest timestamp of each, and where it is."""
        return self._cluster.max_timestamps(partitions)

    def with_record(self, position: Position) -> Collection[TopicPartition]:
        """The topic partitions that have a record at their offset that a consumer gets to see."""
        searches = {tp: RecordSearch(tp, offset, offset + 1, ANY_TIME) for tp, offset in position.items()}
        found = self._cluster.search_records(searches.values(), self._isolation_level)
        return {tp for tp, search in searches.items() if found[search] is not None}


class Log(Times):
    """The topic partitions' ends and beginnings, each read once for the whole plan; ends first.

    High watermarks come before the last stable offsets. In the other order, whatever arrives between the two requests
    would seem to be held back by an open transaction. In this one, a last stable offset below the high watermark is one
    that an open transaction held back at the time of the second request.
    """

    def __init__(self, source: ReadSettings, cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
        super().__init__(cluster, source.isolation_level)
        self._source = source
        highest = (
            cluster.end_offsets(partitions, READ_UNCOMMITTED) if source.isolation_level == READ_COMMITTED else None
        )
        self._end = cluster.end_offsets(partitions, source.isolation_level)
        self._beginning = cluster.beginning_offsets(partitions)
        ends = self.end_offsets(partitions)
        self.high_watermarks = ends if highest is None else {tp: max(highest[tp], end) for tp, end in ends.items()}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each."""
        return {tp: self._beginning[tp] for tp in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each under the isolation level."""
        # The log's beginning is read after its end, and retention may have moved it past that end in between.
        return {tp: max(self._end[tp], self._beginning[tp]) for tp in partitions}

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first record of each at or after its timestamp; partitions without an entry from then on are left out.

        Where that record stands too far behind what a look-up by time finds, the offset up to which it was looked for:
        all records before it are older.
        """
        entries = self.entries_for_times(timestamps_ms)
        searches = {
            tp: RecordSearch(tp, offset, max(offset, min(offset + LOOKED_THROUGH, self._end[tp])), timestamps_ms[tp])
            for tp, offset in entries.items()
        }
        found = self._cluster.search_records(searches.values(), self._isolation_level)
        records = {tp: found[search] for tp, search in searches.items()}
        return {tp: searches[tp].stop if record is None else record.offset for tp, record in records.items()}

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """What the consumer group has committed; partitions without an offset are left out."""
        if self._source.group_id is None:
            return {}
        return self._cluster.committed_offsets(partitions, self._source.group_id)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._end
