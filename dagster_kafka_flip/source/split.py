"""Topic partitions, the splits of them that a batch reads, and single records and samples that a plan reads."""

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
    """The ranges from starts to stops, sorted and non-empty."""
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
        """Whether the split has no offset."""
        return self.offset_span == 0

    def divide(self, parts: int) -> tuple[KafkaPartitionSplit, ...]:
        """Divides the range into parts of equal span; if uneven, the last parts have one more offset.

        Args:
            parts: Number of parts, at most `offset_span`.

        Raises:
            ConfigurationError: Too many parts, or fewer than one.
        """
        if type(parts) is not int or parts < 1:
            raise ConfigurationError(f"{self} can't be divided into {parts!r} parts; give a whole number >= 1")
        bounds = [self.starting_offset + self.offset_span * part // parts for part in range(parts + 1)]
        return tuple(
            KafkaPartitionSplit(self.topic_partition, start, stop) for start, stop in itertools.pairwise(bounds)
        )

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.starting_offset}, {self.stopping_offset})"


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
    """A search for the first record in a range with a timestamp at or after a given one."""

    topic_partition: TopicPartition
    start: int
    stop: int
    timestamp_ms: int


@dataclass(frozen=True)
class SplitSample:
    """A bounded sample of one split: some records from its start and its end."""

    records: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
