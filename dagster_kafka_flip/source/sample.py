"""What is read of a log while a plan is made: single records, and small samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dagster_kafka_flip.source.split import TopicPartition

LOOKED_THROUGH = 100_000
"""Offsets that are looked through for a record at most, where more would cost more than it is worth."""

ANY_TIME = -(2**63)
"""Earlier than any record's time, and than that of one without."""


class TimestampedOffset(NamedTuple):
    """An offset and a time that goes with it, in milliseconds since the epoch."""

    offset: int
    timestamp_ms: int


class LoggedRecord(NamedTuple):
    """A record as the log has it.

    Attributes:
        topic_partition: Where.
        offset: Its offset.
        timestamp_ms: What its producer wrote, or its broker: any number of 64 bits.
        timestamp_type: Kafka's number: 0 if the producer set it, 1 if the broker did, -1 if there is none.
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
    """A search for the first record of a range that is dated at or after a time.

    Attributes:
        topic_partition: Where.
        start: First offset of the range.
        stop: First offset behind it.
        timestamp_ms: The time, in milliseconds since the epoch.
    """

    topic_partition: TopicPartition
    start: int
    stop: int
    timestamp_ms: int


@dataclass(frozen=True)
class SplitSample:
    """A bounded sample of one split: some records from its start, and some from its end.

    Attributes:
        records: Records looked at.
        bytes: Bytes of their keys and values.
        first_timestamp: Of the first record, in milliseconds since the epoch.
        last_timestamp: Of the last record, in milliseconds since the epoch.
    """

    records: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
