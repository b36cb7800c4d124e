"""WindowPlan: which offsets hold the records of windows that follow each other without a gap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import KafkaPartitionSplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window


@dataclass(frozen=True)
class PlannedWindow:
    """A window and where its records are.

    Attributes:
        window: The window.
        starts: First offset of each topic partition that may hold a record of it.
        stops: First offset that is no longer read for it.
        ends: First offset at or after the window's end: a record of the window from there on came late.
        is_complete: Whether all its records are there as far as can be told.
    """

    window: Window
    starts: Position
    stops: Position
    ends: Position
    is_complete: bool = True

    @property
    def splits(self) -> tuple[KafkaPartitionSplit, ...]:
        """What is read for it, sorted, without empty ranges."""
        return _busy(self.starts, self.stops)


@dataclass(frozen=True)
class WindowPlan:
    """What one commit of windows reads.

    Attributes:
        windows: In order of time, without gaps between them; at least one.
        state: Cluster and topics that the offsets are of; the position is where reading stops.
        end_offsets: End offset of each under the source's isolation level.
        high_watermarks: High watermark of each.
        stragglers_from: A record from before the first window that stands at or behind this offset came later than the
            maximum lateness allows, and is in no window.
        set_by_broker: Topics that are read as ones whose brokers set the time (LogAppendTime), so that no record of
            them can be late.
        incidents: What would have ended the run here, and is tolerated.
        compacted: Topics that keep only the last record of each key, and all that aren't compacted yet.
        maybe_compacted: Topics of which Kafka does not tell this client whether they are compacted.
        made_again: Topics that are others than those which the table has rows of; that is tolerated.
    """

    windows: tuple[PlannedWindow, ...]
    state: EnumeratorState
    end_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    stragglers_from: Position
    set_by_broker: frozenset[str] = frozenset()
    incidents: tuple[Incident, ...] = ()
    compacted: frozenset[str] = frozenset()
    maybe_compacted: frozenset[str] = frozenset()
    made_again: frozenset[str] = frozenset()

    @property
    def starts(self) -> Position:
        """Where reading starts."""
        return self.windows[0].starts

    @property
    def stops(self) -> Position:
        """Where reading stops."""
        return self.windows[-1].stops

    @property
    def splits(self) -> tuple[KafkaPartitionSplit, ...]:
        """One range for each topic partition that has any offset to read, sorted."""
        return _busy(self.starts, self.stops)

    @property
    def offset_span(self) -> int:
        """Number of offsets to read, and so the largest number of records."""
        return sum(split.offset_span for split in self.splits)

    def batches(self, max_offsets: int | None) -> list[WindowPlan]:
        """The plan in parts that are committed one after the other, cut between windows.

        Args:
            max_offsets: Largest number of offsets in a part; a window that has more is a part by itself. None for no
                limit.
        """
        if max_offsets is None:
            return [self]
        parts: list[list[PlannedWindow]] = []
        for window in self.windows:
            if parts and self._part([*parts[-1], window]).offset_span <= max_offsets:
                parts[-1].append(window)
            else:
                parts.append([window])
        return [self._part(part) for part in parts]

    def _part(self, windows: list[PlannedWindow]) -> WindowPlan:
        is_first = windows[0] is self.windows[0]
        # What came too late for a window of an earlier part is counted there.
        before = self.stragglers_from if is_first else dict(windows[-1].stops)
        return replace(
            self,
            windows=tuple(windows),
            state=replace(self.state, position=windows[-1].stops),
            stragglers_from=before,
            incidents=self.incidents if is_first else (),
        )

    def read_plan(self) -> ReadPlan:
        """The same as a batch to read."""
        return ReadPlan(
            splits=self.splits,
            state=self.state,
            end_offsets=self.end_offsets,
            high_watermarks=self.high_watermarks,
            starting_position=self.starts,
        )


def _busy(starts: Position, stops: Position) -> tuple[KafkaPartitionSplit, ...]:
    return tuple(KafkaPartitionSplit(tp, starts[tp], stop) for tp, stop in sorted(stops.items()) if starts[tp] < stop)
