"""Topic partitions and the splits of them that a batch reads."""

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
        """Reads the form that `str()` gives, such as `flights-0`.

        Raises:
            ConfigurationError: There is no partition number behind the last hyphen.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - no type checker has looked at it
            msg = f"expected a text such as 'flights-0' for a topic partition, got {type(text).__name__}"
            raise ConfigurationError(msg)
        topic, hyphen, number = text.rpartition("-")
        if not hyphen or not topic or not number.isdecimal():
            msg = f"{text!r} is not a topic partition; write topic-number, such as flights-0"
            raise ConfigurationError(msg)
        return cls(topic, int(number))


Position: TypeAlias = "Mapping[TopicPartition, int]"
"""The next offset to read of every topic partition of a stream."""


@dataclass(frozen=True, order=True)
class KafkaPartitionSplit:
    """A range of one topic partition that one batch reads, fixed before anything is read.

    FLIP-27's split in its bounded form. The range is half-open, and it is a range of *offsets*: compaction, aborted
    transactions and control records leave gaps in it, so it may hold fewer records than `offset_span`.

    Attributes:
        topic_partition: The topic partition.
        starting_offset: First offset to read.
        stopping_offset: First offset that is no longer read.
    """

    topic_partition: TopicPartition
    starting_offset: int
    stopping_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.starting_offset <= self.stopping_offset:
            msg = (
                f"{self.topic_partition}: a split from {self.starting_offset} to {self.stopping_offset} can't be; "
                "0 <= start <= stop"
            )
            raise ConfigurationError(msg)

    @property
    def offset_span(self) -> int:
        """Number of offsets in the split, and so the largest number of records it can hold."""
        return self.stopping_offset - self.starting_offset

    @property
    def is_empty(self) -> bool:
        """Whether there is no offset in the split."""
        return self.offset_span == 0

    def divide(self, parts: int) -> tuple[KafkaPartitionSplit, ...]:
        """The same range in parts of equal span, the last ones longer by one offset where it does not divide evenly.

        Args:
            parts: How many; at most `offset_span`.

        Raises:
            ConfigurationError: There can't be that many.
        """
        if type(parts) is not int or parts < 1:
            msg = f"{self} can't be divided into {parts!r} parts; give a whole number from 1"
            raise ConfigurationError(msg)
        bounds = [self.starting_offset + self.offset_span * part // parts for part in range(parts + 1)]
        return tuple(
            KafkaPartitionSplit(self.topic_partition, start, stop) for start, stop in itertools.pairwise(bounds)
        )

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.starting_offset}, {self.stopping_offset})"
