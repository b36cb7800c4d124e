"""A plan's view of the logs: what it asks of source and cluster, and start and end offsets that are read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.source.split import ANY_TIME, LOOKED_THROUGH, LogEnd, RecordSearch
from dagster_kafka_flip.source.subscription import TopicDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.split import (
        KafkaPartitionSplit,
        Position,
        SplitSample,
        TimestampedOffset,
        TopicPartition,
    )
    from dagster_kafka_flip.source.subscription import Subscription

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


class ReadSettings(Protocol):
    """Interface for enumerators and logs; `KafkaSource` implements it."""

    @property
    def subscription(self) -> Subscription:
        """The topic partitions to read."""
        ...

    @property
    def starting_offsets(self) -> OffsetsInitializer:
        """The start of a topic partition without a position."""
        ...

    @property
    def stopping_offsets(self) -> OffsetsInitializer:
        """The stop of a run."""
        ...

    @property
    def overrides_position(self) -> bool:
        """Whether this run starts at the starting offsets, regardless of the position."""
        ...

    @property
    def isolation_level(self) -> str:
        """`read_committed` or `read_uncommitted`."""
        ...

    @property
    def group_id(self) -> str | None:
        """The consumer group whose committed offsets are used."""
        ...

    @property
    def commit_offsets(self) -> bool:
        """Whether the position is also committed to the group."""
        ...

    @property
    def max_drift(self) -> timedelta | None:
        """Maximum event time by which a topic partition may be read ahead of the slowest."""
        ...


@dataclass(frozen=True)
class TopicSettings:
    """A topic's settings for record timestamps and retention.

    Attributes:
        timestamp_type: `CreateTime` or `LogAppendTime` (KIP-32), for newly written records.
        retention_ms: Retention in milliseconds; None if unlimited.
        is_limited_by_size: Whether records may be deleted earlier because of a size limit.
        is_compacted: Whether the topic is compacted.
        max_bytes: The largest batch of records that it takes; None if unknown.
        max_behind_ms: How far a record's timestamp may be behind the brokers' clock; None if unknown.
        max_ahead_ms: How far it may be ahead; None if unknown.
    """

    timestamp_type: str
    retention_ms: int | None
    is_limited_by_size: bool
    is_compacted: bool = False
    max_bytes: int | None = None
    max_behind_ms: int | None = None
    max_ahead_ms: int | None = None

    @property
    def is_set_by_broker(self) -> bool:
        """Whether brokers set the timestamps on arrival (LogAppendTime)."""
        return self.timestamp_type == "LogAppendTime"

    @property
    def is_unlimited(self) -> bool:
        """Whether no setting lets brokers delete records."""
        return self.retention_ms is None and not self.is_limited_by_size

    def keeps(self, ms: int, now_ms: int) -> bool:
        """Whether retention still keeps a record with the given timestamp."""
        return not self.is_limited_by_size and (self.retention_ms is None or ms > now_ms - self.retention_ms)


class Cluster(TopicDirectory, Protocol):
    """The port to Kafka: all requests of planning and recovery; `KafkaCluster` implements them."""

    def cluster_id(self) -> str | None:
        """The cluster's id; None if unknown."""
        ...

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The log start offset of each topic partition."""
        ...

    def end_offsets(self, partitions: Collection[TopicPartition], isolation_level: str) -> Mapping[TopicPartition, int]:
        """The end offset of each for an isolation level."""
        ...

    def log_ends(self, partitions: Collection[TopicPartition], isolation_level: str) -> Mapping[TopicPartition, LogEnd]:
        """The same with the epoch of each log's leader."""
        ...

    def cut_offsets(self, ends: Mapping[TopicPartition, LogEnd]) -> Mapping[TopicPartition, int | None]:
        """Where logs were cut off before an earlier end; None if unknown. Omits those that were not."""
        ...

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], isolation_level: str
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each at or after its timestamp; omits partitions without one."""
        ...

    def records_at(
        self, times: Sequence[Mapping[TopicPartition, int]], isolation_level: str
    ) -> Sequence[Mapping[TopicPartition, TimestampedOffset]]:
        """For many concurrent lookups: the first record at or after a timestamp, with its own timestamp."""
        ...

    def topic_settings(self, topics: Collection[str]) -> Mapping[str, TopicSettings]:
        """Topic settings; omits topics whose settings this client may not see."""
        ...

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        """The highest record timestamp of each, and its offset; omits partitions without a record."""
        ...

    def search_records(
        self, searches: Collection[RecordSearch], isolation_level: str
    ) -> Mapping[RecordSearch, TimestampedOffset | None]:
        """For each search, the first consumer-visible record at or after the time in its range."""
        ...

    def record_times(
        self, ranges: Sequence[KafkaPartitionSplit], isolation_level: str
    ) -> Iterator[tuple[TopicPartition, TimestampedOffset]]:
        """The offset and the timestamp of each record in the ranges."""
        ...

    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> Mapping[TopicPartition, int]:
        """The group's committed offsets; omits partitions without one."""
        ...

    def commit_offsets(self, position: Position, group_id: str) -> None:
        """Commits a consumer group's offsets."""
        ...

    def broker_addresses(self) -> tuple[str, ...]:
        """The addresses that the brokers advertise."""
        ...

    def close(self) -> None:
        """Closes the client."""
        ...

    def sample(
        self, splits: Iterable[KafkaPartitionSplit], isolation_level: str
    ) -> Mapping[TopicPartition, SplitSample]:
        """A few records of each split; omits splits without records."""
        ...


class Times:
    """Lookups by timestamp for one isolation level."""

    def __init__(self, cluster: Cluster, isolation_level: str) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level

    def entries_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first entry of each log at or after its timestamp: a record, a marker or an aborted record."""
        return self._cluster.offsets_for_times(timestamps_ms, self._isolation_level)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, TimestampedOffset]:
        """The highest timestamp of each, and its offset."""
        return self._cluster.max_timestamps(partitions)

    def with_record(self, position: Position) -> Collection[TopicPartition]:
        """The topic partitions that have a consumer-visible record at their offset."""
        searches = {tp: RecordSearch(tp, offset, offset + 1, ANY_TIME) for tp, offset in position.items()}
        found = self._cluster.search_records(searches.values(), self._isolation_level)
        return {tp for tp, search in searches.items() if found[search] is not None}


class Log(Times):
    """Start and end offsets of the topic partitions, each read once per plan; ends first.

    Reads high watermarks before last stable offsets. In the reverse order, records that arrive between the two requests
    would look as if an open transaction held them back. In this order, a last stable offset below the high watermark
    means that a transaction was open at the second request.
    """

    def __init__(self, source: ReadSettings, cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
        super().__init__(cluster, source.isolation_level)
        self._source = source
        highest = (
            cluster.end_offsets(partitions, READ_UNCOMMITTED) if source.isolation_level == READ_COMMITTED else None
        )
        ends_now = cluster.log_ends(partitions, source.isolation_level)
        self._end = {tp: end.offset for tp, end in ends_now.items()}
        self.leader_epochs = {tp: end.leader_epoch for tp, end in ends_now.items() if end.leader_epoch is not None}
        self._beginning = cluster.beginning_offsets(partitions)
        ends = self.end_offsets(partitions)
        self.high_watermarks = ends if highest is None else {tp: max(highest[tp], end) for tp, end in ends.items()}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each."""
        return {tp: self._beginning[tp] for tp in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each for the isolation level."""
        # The start offset is read after the end offset; retention may have moved it beyond in between.
        return {tp: max(self._end[tp], self._beginning[tp]) for tp in partitions}

    def cut_offsets(
        self, position: Position, leader_epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Where logs were cut off before a position; None if unknown. Omits those that were not.

        Only asks for logs that have another leader since.
        """
        ends = {
            tp: LogEnd(offset, leader_epochs[tp])
            for tp, offset in position.items()
            if tp in leader_epochs
            and self.leader_epochs.get(tp, leader_epochs[tp]) != leader_epochs[tp]
            and self._beginning[tp] <= offset
            and offset
        }
        return self._cluster.cut_offsets(ends) if ends else {}

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The first record of each at or after its timestamp; omits partitions without any later entry.

        If the record is too far behind the result of the lookup, returns the offset up to which it was searched: all
        earlier records are older.
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
        """The consumer group's committed offsets; omits partitions without one."""
        if self._source.group_id is None:
            return {}
        return self._cluster.committed_offsets(partitions, self._source.group_id)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._end
