"""Single records and small samples that are read during planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dagster_kafka_flip.source.split import TopicPartition

LOOKED_THROUGH = 100_000
"""Maximum number of offsets to search for a record; more would cost more than it is worth."""

ANY_TIME = -(2**63)
"""Earlier than any timestamp, including -1 (no timestamp)."""


class TimestampedOffset(NamedTuple):
    """An offset with a timestamp, in milliseconds since the epoch."""

    offset: int
    timestamp_ms: int


class LogEnd(NamedTuple):
    """Where a log ended.

    Attributes:
        offset: The offset of the next record.
        leader_epoch: The number of its leader then; None if unknown.
    """

    offset: int
    leader_epoch: int | None = None


class LoggedRecord(NamedTuple):
    """A record of the log.

    Attributes:
        topic_partition: The record's topic partition.
        offset: Its offset.
        timestamp_ms: Timestamp that the producer or the broker set: any 64-bit number.
        timestamp_type: Kafka's timestamp type: 0 (producer), 1 (broker), -1 (none).
        key: Its key.
        value: Its value.
        headers: Its headers.
    """

    topic_partition: TopicPartition
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class RecordSearch(NamedTuple):
    """A search for the first record in a range with a timestamp at or after a given one.

    Attributes:
        topic_partition: The topic partition.
        start: First offset of the range.
        stop: First offset after the range.
        timestamp_ms: The timestamp, in milliseconds since the epoch.
    """

    topic_partition: TopicPartition
    start: int
    stop: int
    timestamp_ms: int


@dataclass(frozen=True)
class SplitSample:
    """A bounded sample of one split: some records from its start and its end.

    Attributes:
        records: Number of sampled records.
        bytes: Bytes of their keys and values.
        first_timestamp: Of the first record, in milliseconds since the epoch.
        last_timestamp: Of the last record, in milliseconds since the epoch.
    """

    records: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
