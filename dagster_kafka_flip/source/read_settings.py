"""ReadSettings: what a plan needs to know of a source, without how to make or configure one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import timedelta

    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.subscription import Subscription


class ReadSettings(Protocol):
    """What enumerators and logs take; `KafkaSource` has it."""

    @property
    def subscription(self) -> Subscription:
        """Which topic partitions are read."""
        ...

    @property
    def starting_offsets(self) -> OffsetsInitializer:
        """Where a topic partition starts that has no position."""
        ...

    @property
    def stopping_offsets(self) -> OffsetsInitializer:
        """Where a run stops."""
        ...

    @property
    def overrides_position(self) -> bool:
        """Whether this run starts at the starting offsets, whatever the position is."""
        ...

    @property
    def isolation_level(self) -> str:
        """`read_committed` or `read_uncommitted`."""
        ...

    @property
    def group_id(self) -> str | None:
        """The consumer group whose committed offsets count."""
        ...

    @property
    def commit_offsets(self) -> bool:
        """Whether the position is committed to that group, too."""
        ...

    @property
    def max_drift(self) -> timedelta | None:
        """How far one topic partition may be read ahead of the slowest, in event time."""
        ...
