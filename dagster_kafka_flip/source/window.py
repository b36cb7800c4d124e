"""Window: a half-open span of time with a key, what an asset partition of time stands for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import Settings
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.offsets import epoch_milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


@dataclass(frozen=True)
class Window:
    """A half-open span of time, [start, stop).

    Attributes:
        key: Names it; the partition key under Dagster.
        start_ms: Its first millisecond since the epoch.
        stop_ms: The first millisecond that is no longer in it.
    """

    key: str
    start_ms: int
    stop_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.stop_ms:
            msg = f"the window {self.key} ends at {self.stop}, which is not after its start, {self.start}"
            raise ConfigurationError(msg)

    @classmethod
    def between(cls, start: datetime | int | str, stop: datetime | int | str, key: str | None = None) -> Window:
        """A window from two points in time.

        Args:
            start: Milliseconds since the epoch, an aware datetime, or an ISO 8601 text with an offset from UTC.
            stop: The same; the first moment that is no longer in the window.
            key: Its name. Default: both ends as text.

        Raises:
            ConfigurationError: A time can't be read or has no offset from UTC, or the end is not after the start.
        """
        start_ms, stop_ms = epoch_milliseconds(start), epoch_milliseconds(stop)
        return cls(key or f"{instant(start_ms)}/{instant(stop_ms)}", start_ms, stop_ms)

    @property
    def start(self) -> str:
        """Its start in UTC, as text."""
        return instant(self.start_ms)

    @property
    def stop(self) -> str:
        """Its end in UTC, as text."""
        return instant(self.stop_ms)

    def __str__(self) -> str:
        return f"{self.key} [{self.start}, {self.stop})"


def contiguous_groups(windows: Iterable[Window]) -> list[tuple[Window, ...]]:
    """Windows in order of time, in groups without gaps.

    Raises:
        ConfigurationError: Two windows overlap, or there is none.
    """
    groups: list[list[Window]] = []
    for window in sorted(windows, key=lambda window: window.start_ms):
        if groups and window.start_ms < groups[-1][-1].stop_ms:
            msg = (
                f"the windows {groups[-1][-1]} and {window} overlap: a record dated in both would be landed twice. "
                f"Nothing was read. Leave one of them out of the run, such as {groups[-1][-1].key}"
            )
            raise ConfigurationError(msg)
        if groups and window.start_ms == groups[-1][-1].stop_ms:
            groups[-1].append(window)
        else:
            groups.append([window])
    if not groups:
        msg = "there is no window to land; name at least one"
        raise ConfigurationError(msg)
    keys = [window.key for group in groups for window in group]
    for key, again in itertools.pairwise(sorted(keys)):
        if key == again:
            msg = f"two windows have the key {key}; each needs one of its own"
            raise ConfigurationError(msg)
    return [tuple(group) for group in groups]


class Windows(Settings):
    """How records are put into windows.

    Attributes:
        mode: `exact` (default): a window holds the records whose time lies in it. `offset`: a window begins where the
            one before it ended in the log, so that windows tile the log whatever the records' times are.
        max_lateness: How much later than a record of a later time a record may arrive and still be found: so much
            further is the log read for it. Default: an hour. None for no limit: the log is read to its end, and what
            retention has taken is judged as if no record were late. Counts for nothing on topics whose brokers set
            the time (LogAppendTime).
        event_time: A timestamp column of the decoded value that decides instead of the record's own time. Only exact.
        column: The column that holds each row's window, by its key, in a table of windows. Default `kafka_window`.
        repair: The table is fed by an incremental stream, and windows of it are read again: only rows that the stream
            has landed are replaced, and its position stays. Only exact.
        time_column: In a repair, the table's column with the time that decides. Default: the column of the record's
            own timestamp.
    """

    mode: Literal["exact", "offset"] = "exact"
    max_lateness: timedelta | None = timedelta(hours=1)
    event_time: str | None = Field(default=None, min_length=1)
    column: str = Field(default="kafka_window", min_length=1)
    repair: bool = False
    time_column: str | None = Field(default=None, min_length=1)

    @field_validator("max_lateness")
    @classmethod
    def _check_max_lateness(cls, max_lateness: timedelta | None) -> timedelta | None:
        if max_lateness is not None and max_lateness < timedelta(0):
            msg = f"the maximum lateness is {max_lateness}; it can't be negative"
            raise ValueError(msg)
        return max_lateness

    @field_validator("column")
    @classmethod
    def _check_column(cls, column: str) -> str:
        # Delta 4.0 looks for the files of a partition by the column's quoted name: it then finds no rows at all,
        # and a window that is landed again could be there twice.
        if "`" in column:
            msg = (
                f"Delta finds no rows by a column whose name holds a backtick, such as {column!r}; choose another name"
            )
            raise ValueError(msg)
        return column

    @model_validator(mode="after")
    def _check_together(self) -> Windows:
        checks: dict[str, Any] = {
            "event_time needs the mode exact": self.event_time is not None and self.mode == "offset",
            "repair needs the mode exact": self.repair and self.mode == "offset",
            "time_column is for a repair; event_time decides otherwise": self.time_column and not self.repair,
        }
        wrong = [text for text, is_wrong in checks.items() if is_wrong]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def lateness_ms(self) -> int | None:
        """The maximum lateness in milliseconds; None for no limit."""
        return None if self.max_lateness is None else self.max_lateness // timedelta(milliseconds=1)
