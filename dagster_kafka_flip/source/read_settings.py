"""ReadSettings: the source settings that a plan needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import timedelta

    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.subscription import Subscription


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
