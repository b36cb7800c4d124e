"""WindowPlan: the offsets that contain the records of consecutive windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import splits_between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window


@dataclass(frozen=True)
class PlannedWindow:
    """A window and the offsets of its records.

    Attributes:
        window: The window.
        starts: First offset of each topic partition that may have a record of the window.
        stops: First offset after the window's range.
        ends: First offset with a timestamp at or after the window's end: later records of the window are late.
        is_complete: Whether all records of the window have arrived, as far as known.
    """

    window: Window
    starts: Position
    stops: Position
    ends: Position
    is_complete: bool = True

    @property
    def splits(self) -> tuple[KafkaPartitionSplit, ...]:
        """The ranges of the window, sorted and non-empty."""
        return splits_between(self.starts, self.stops)


@dataclass(frozen=True)
class WindowPlan:
    """The windows of one commit and the ranges to read for them.

    Attributes:
        windows: Consecutive windows in time order, at least one.
        state: Cluster and topics of the offsets; the position is where reading stops.
        end_offsets: End offset of each topic partition for the source's isolation level.
        high_watermarks: High watermark of each.
        stragglers_from: A record with a timestamp before the first window at or after this offset is later than the
            maximum lateness, and in no window.
        set_by_broker: Topics that are read as LogAppendTime, so none of their records can be late.
        incidents: Tolerated errors.
        compacted: Compacted topics.
        maybe_compacted: Topics whose cleanup policy this client may not see.
        made_again: Topics that were recreated since the table's rows were written; this is tolerated.
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
        """The start offset of each topic partition."""
        return self.windows[0].starts

    @property
    def stops(self) -> Position:
        """The stop offset of each topic partition."""
        return self.windows[-1].stops

    @property
    def splits(self) -> tuple[KafkaPartitionSplit, ...]:
        """One range per topic partition with any offset to read, sorted."""
        return splits_between(self.starts, self.stops)

    @property
    def offset_span(self) -> int:
        """Number of offsets to read, and so the maximum number of records."""
        return sum(split.offset_span for split in self.splits)

    def batches(self, max_offsets: int | None) -> list[WindowPlan]:
        """Splits the plan between windows into parts that are committed one after the other.

        Args:
            max_offsets: Maximum number of offsets in a part; a larger window is a part of its own. None for no limit.
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
        # Records that are too late for a window of an earlier part are counted there.
        before = self.stragglers_from if is_first else dict(windows[-1].stops)
        return replace(
            self,
            windows=tuple(windows),
            state=replace(self.state, position=windows[-1].stops),
            stragglers_from=before,
            incidents=self.incidents if is_first else (),
        )

    def read_plan(self) -> ReadPlan:
        """The plan as a batch to read."""
        return ReadPlan(
            splits=self.splits,
            state=self.state,
            end_offsets=self.end_offsets,
            high_watermarks=self.high_watermarks,
            starting_position=self.starts,
        )
