"""RunSource: what a run reads, with the start and the stop that its config sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer

if TYPE_CHECKING:
    from dagster_kafka_flip.source.api import Source
    from dagster_kafka_flip.source.split import Position


@dataclass
class RunSource:
    """What a run reads.

    Attributes:
        source: The source; several tables get a common stop.
        overriding: The source with the start that the run's config sets; None to continue from the position.
    """

    source: Source
    overriding: KafkaSource | None = None

    @classmethod
    def of(cls, source: Source, starting_offsets: OffsetsInitializer | None) -> RunSource:
        """What a run reads.

        Args:
            source: The source.
            starting_offsets: Start that overrides the position; None to continue.
        """
        if starting_offsets is None or not isinstance(source, KafkaSource):
            return cls(source)
        return cls(source, source.with_overrides(starting_offsets=starting_offsets))

    @property
    def first(self) -> Source:
        """The source of the first plan."""
        return self.overriding or self.source

    def continue_from_position(self) -> None:
        """Continues from the position: an earlier try of this run has committed from the start that overrides it."""
        self.overriding = None

    def stop_at(self, stop: Position) -> None:
        """Sets the stop offsets of later plans; topic partitions without one are not read."""
        # Not validated: the start that a user wrote may be after the end of a topic that was made again.
        change = {"stopping_offsets": OffsetsInitializer.specific_offsets(stop)}
        if isinstance(self.source, KafkaSource):
            self.source = self.source.model_copy(update=change)
        if self.overriding is not None:
            self.overriding = self.overriding.model_copy(update=change)
