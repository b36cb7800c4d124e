"""Window: a half-open time span with a key; WindowPlan: the offsets that contain consecutive windows' records."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError, WindowsChangedError
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.offsets import epoch_milliseconds
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import splits_between

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position
    from dagster_kafka_flip.source.state import EnumeratorState


@dataclass(frozen=True)
class Window:
    """A half-open time span, [start, stop).

    Attributes:
        key: The window's name; in Dagster, the partition key.
        start_ms: First millisecond of the window, since the epoch.
        stop_ms: First millisecond after the window, since the epoch.
    """

    key: str
    start_ms: int
    stop_ms: int

    def __post_init__(self) -> None:
        expect("key", self.key, str, '"2026-01-31"')
        if self.start_ms >= self.stop_ms:
            msg = f"the window {self.key} ends at {self.stop}, which is not after its start, {self.start}"
            raise ConfigurationError(msg)

    @classmethod
    def between(cls, start: datetime | int | str, stop: datetime | int | str, key: str | None = None) -> Window:
        """Creates a window from two timestamps.

        Args:
            start: Milliseconds since the epoch, an aware datetime, or an ISO 8601 string with a UTC offset.
            stop: The exclusive end, in the same forms.
            key: The window's key. Default: both timestamps as text.

        Raises:
            ConfigurationError: A timestamp is malformed or has no UTC offset, or the end is not after the start.
        """
        start_ms, stop_ms = epoch_milliseconds(start), epoch_milliseconds(stop)
        return cls(key or f"{instant(start_ms)}/{instant(stop_ms)}", start_ms, stop_ms)

    @property
    def start(self) -> str:
        """The start in UTC, as text."""
        return instant(self.start_ms)

    @property
    def stop(self) -> str:
        """The end in UTC, as text."""
        return instant(self.stop_ms)

    def __str__(self) -> str:
        return f"{self.key} [{self.start}, {self.stop})"


def contiguous_groups(windows: Iterable[Window]) -> list[tuple[Window, ...]]:
    """Sorts windows by time, in groups without gaps."""
    groups: list[list[Window]] = []
    for window in sorted(windows, key=lambda window: window.start_ms):
        if groups and window.start_ms < groups[-1][-1].stop_ms:
            raise ConfigurationError(
                f"the windows {groups[-1][-1]} and {window} overlap: a record with a timestamp in both would be "
                "written twice",
                f"Remove one of them from the run, such as {groups[-1][-1].key}",
            )
        if groups and window.start_ms == groups[-1][-1].stop_ms:
            groups[-1].append(window)
        else:
            groups.append([window])
    if not groups:
        raise ConfigurationError("no windows given; give at least one")
    keys = [window.key for group in groups for window in group]
    for key, again in itertools.pairwise(sorted(keys)):
        if key == again:
            raise ConfigurationError(f"two windows have the key {key}; keys must be unique")
    return [tuple(group) for group in groups]


def check_keys(windows: Iterable[Window], landed: Collection[Window], table: str) -> None:
    """Checks that each key means the same time as before, and each time has the same key: rows are replaced by key."""
    windows = list(windows)
    others = sorted(set(landed).difference(windows), key=lambda window: window.start_ms)
    by_key = {window.key: window for window in others}
    # Of the windows up to each, the one that ends last: it overlaps if any of them does.
    last = list(itertools.accumulate(others, lambda one, two: max(one, two, key=lambda window: window.stop_ms)))
    for window in windows:
        before = bisect.bisect_left(others, window.stop_ms, key=lambda other: other.start_ms)
        if (other := by_key.get(window.key)) is not None:
            problem = f"has the same key as the landed window {other}, whose rows it would replace"
        elif before and (other := last[before - 1]).stop_ms > window.start_ms:
            problem = f"overlaps the landed window {other}: records with a timestamp in both would be in it twice"
        else:
            continue
        raise WindowsChangedError(
            f"the window {window} of the table {table} {problem}",
            "Give each span of time one key, and land it as it was landed before; or use another table",
        )


class Windows(Settings):
    """Rules that assign records to windows.

    Attributes:
        max_lateness: How long after records with later timestamps a record may arrive. Default: one hour. None reads
            to the log's end, and treats records deleted by retention as not late.
        event_time: A timestamp column of the decoded value, instead of the record's timestamp.
        column: The column with each row's window key. Default: `kafka_window`.
        repair: Replaces windows of a stream's table: only the stream's rows, and its position does not change.
        time_column: In a repair, the table's timestamp column. Default: the column of the record's timestamp.
    """

    max_lateness: timedelta | None = Field(default=timedelta(hours=1), ge=timedelta(0))
    event_time: str | None = Field(default=None, min_length=1)
    column: str = Field(default="kafka_window", min_length=1)
    repair: bool = False
    time_column: str | None = Field(default=None, min_length=1)

    @field_validator("column")
    @classmethod
    def _check_column(cls, column: str) -> str:
        # Delta 4.0 looks for a partition's files by the quoted column name: it would find no rows, and rewritten
        # windows could be duplicated.
        if "`" in column:
            raise ValueError(
                f"Delta can't filter by a column whose name contains a backtick, such as {column!r}; choose another "
                "name"
            )
        return column

    @model_validator(mode="after")
    def _check_combination(self) -> Windows:
        if self.time_column and not self.repair:
            raise ValueError("time_column is only for repair; other windows use event_time")
        return self

    @property
    def lateness_ms(self) -> int | None:
        return None if self.max_lateness is None else self.max_lateness // timedelta(milliseconds=1)


@dataclass(frozen=True)
class PlannedWindow:
    """A window and the offsets of its records; complete if all have arrived, as far as known.

    It starts at the first offset that may have a record, and stops at the first after its range. It `ends` at the first
    offset with a timestamp at or after its end: later records of the window are late.
    """

    window: Window
    starts: Position
    stops: Position
    ends: Position
    is_complete: bool = True

    @property
    def splits(self) -> tuple[KafkaPartitionSplit, ...]:
        return splits_between(self.starts, self.stops)

    def before(self, position: Position) -> PlannedWindow:
        """The window without the records from a position on."""
        starts, stops, ends = (
            {tp: min(offset, position[tp]) for tp, offset in each.items()}
            for each in (self.starts, self.stops, self.ends)
        )
        return replace(self, starts=starts, stops=stops, ends=ends)


@dataclass(frozen=True, kw_only=True)
class WindowPlan(ReadPlan):
    """The windows of one commit, and a plan of one range per topic partition for all of them.

    Attributes:
        windows: Consecutive windows in time order, at least one.
        stragglers_from: A record with a timestamp before the first window at or after this offset is later than the
            maximum lateness, and in no window.
        stragglers_before: A record with a timestamp after the last window before this offset is as much too early, and
            in no window: its window begins behind it. Only of times in the value.
        compacted: Compacted topics.
        maybe_compacted: Topics whose cleanup policy this client may not see.
        made_again: Topics that were recreated since the table's rows were written; this is tolerated.
    """

    windows: tuple[PlannedWindow, ...]
    stragglers_from: Position
    stragglers_before: Position
    compacted: frozenset[str] = frozenset()
    maybe_compacted: frozenset[str] = frozenset()
    made_again: frozenset[str] = frozenset()

    @property
    def stops(self) -> Position:
        return self.windows[-1].stops

    def first_part(self, max_offsets: int | None) -> WindowPlan:
        """The windows of the first commit; the rest is planned again after it."""
        count = len(self.windows)
        if max_offsets is not None:
            ends = (
                sum(split.offset_span for split in splits_between(self.starting_position, each.stops))
                for each in self.windows
            )
            count = max(1, sum(1 for _ in itertools.takewhile(lambda span: span <= max_offsets, ends)))
        if count == len(self.windows):
            return self
        windows, later = self.windows[:count], self.windows[count]
        # Records of a later window from its start on are not stragglers: the next part has them.
        return replace(
            self, windows=windows, state=replace(self.state, position=windows[-1].stops), stragglers_before=later.starts
        )


def carried(known: EnumeratorState | None, plan: WindowPlan) -> EnumeratorState:
    """Merges the plan's state of the logs into the known one; ids that are missing now are kept."""
    state = plan.state
    if known is None:
        return state
    before = {tp: offset for tp, offset in known.position.items() if tp.topic not in plan.made_again}
    position = {**before, **state.position}
    for tp, offset in before.items():
        # A log that ends before the known position is another log, which was tolerated.
        if tp in state.position and is_same_log(tp, known, state) and offset <= plan.high_watermarks[tp]:
            position[tp] = max(offset, state.position[tp])
    return replace(state, position=position).over(known)
