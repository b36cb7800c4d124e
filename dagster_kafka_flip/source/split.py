"""Topic partitions, the splits of them that a batch reads, and what Kafka tells of topics, logs and single records."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias


class TopicPartition(NamedTuple):
    """One partition of one Kafka topic. Sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Parses the form of `str()`, such as `flights-0`.

        Raises:
            ConfigurationError: There is no partition number after the last hyphen.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - no type checker has looked at it
            msg = f"expected a string such as 'flights-0' for a topic partition, got {type(text).__name__}"
            raise ConfigurationError(msg)
        topic, hyphen, number = text.rpartition("-")
        if not hyphen or not topic or not number.isdecimal():
            raise ConfigurationError(f"invalid topic partition {text!r}; write topic-number, such as flights-0")
        return cls(topic, int(number))


Position: TypeAlias = "Mapping[TopicPartition, int]"
"""The next offset to read of each topic partition of a stream."""


def splits_between(starts: Position, stops: Position) -> tuple[KafkaPartitionSplit, ...]:
    return tuple(KafkaPartitionSplit(tp, starts[tp], stop) for tp, stop in sorted(stops.items()) if starts[tp] < stop)


@dataclass(frozen=True, order=True)
class KafkaPartitionSplit:
    """A range of one topic partition that one batch reads, fixed before reading.

    FLIP-27's split for bounded reads. A half-open range of *offsets*: compaction, aborted transactions and control
    records leave gaps, so it may have fewer records than `offset_span`.

    Attributes:
        topic_partition: The topic partition.
        starting_offset: First offset to read.
        stopping_offset: First offset after the range.
    """

    topic_partition: TopicPartition
    starting_offset: int
    stopping_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.starting_offset <= self.stopping_offset:
            raise ConfigurationError(
                f"{self.topic_partition}: invalid split from {self.starting_offset} to {self.stopping_offset}; "
                "expected 0 <= start <= stop"
            )

    @property
    def offset_span(self) -> int:
        """Number of offsets in the split, and so the maximum number of records."""
        return self.stopping_offset - self.starting_offset

    @property
    def is_empty(self) -> bool:
        return self.offset_span == 0

    def within(self, offset: int | None) -> int:
        """The offset of the range that is nearest to an offset; None for none before its stop."""
        stop = self.stopping_offset
        return stop if offset is None else max(self.starting_offset, min(stop, offset))

    def divide(self, parts: int) -> tuple[KafkaPartitionSplit, ...]:
        """Divides the range into parts of equal span; if uneven, the last parts have one more offset."""
        if type(parts) is not int or parts < 1:
            raise ConfigurationError(f"{self} can't be divided into {parts!r} parts; give a whole number >= 1")
        bounds = [self.starting_offset + self.offset_span * part // parts for part in range(parts + 1)]
        return tuple(
            KafkaPartitionSplit(self.topic_partition, start, stop) for start, stop in itertools.pairwise(bounds)
        )

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.starting_offset}, {self.stopping_offset})"


@dataclass(frozen=True)
class TopicMetadata:
    """Metadata of one topic."""

    name: str
    # KIP-516; None if unknown.
    topic_id: str | None
    # Sorted.
    partitions: tuple[TopicPartition, ...]
    is_internal: bool = False
    # How many each topic partition has at least; 0 if unknown.
    replicas: int = 0


@dataclass(frozen=True)
class TopicSettings:
    """A topic's settings for record timestamps and retention."""

    # `CreateTime` or `LogAppendTime` (KIP-32), for newly written records.
    timestamp_type: str
    # None if unlimited.
    retention_ms: int | None
    # Whether records may be deleted earlier because of a size limit.
    is_limited_by_size: bool
    is_compacted: bool = False
    # Of a batch of records; None if unknown, as below.
    max_bytes: int | None = None
    # How far a record's timestamp may be from the brokers' clock.
    max_behind_ms: int | None = None
    max_ahead_ms: int | None = None

    @property
    def is_set_by_broker(self) -> bool:
        return self.timestamp_type == "LogAppendTime"

    @property
    def is_unlimited(self) -> bool:
        """Whether no setting lets brokers delete records."""
        return self.retention_ms is None and not self.is_limited_by_size

    def keeps(self, ms: int, now_ms: int) -> bool:
        return not self.is_limited_by_size and (self.retention_ms is None or ms > now_ms - self.retention_ms)


READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"

LOOKED_THROUGH = 100_000
"""Maximum number of offsets to search for a record; more would cost more than it is worth."""

ANY_TIME = -(2**63)
"""Earlier than any timestamp, including -1 (no timestamp)."""


class TimestampedOffset(NamedTuple):
    """An offset with a timestamp, in milliseconds since the epoch."""

    offset: int
    timestamp_ms: int


class LogEnd(NamedTuple):
    """Where a log ended."""

    offset: int
    leader_epoch: int | None = None


class RecordSearch(NamedTuple):
    """A search for the first record in a range with a timestamp at or after a given one."""

    topic_partition: TopicPartition
    start: int
    stop: int
    timestamp_ms: int
