"""DeltaSource: describes what to publish of a Delta table."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.table.target import DeltaTarget

Content = Literal["changes", "all_images", "appended_rows"]

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
"""What Delta's change data feed says of each change."""


class DeltaSource(Settings):
    """What a sink publishes of a Delta table, from which version to which.

    Attributes:
        table: A path or a catalog name, as of a DeltaTarget.
        start: Where a sink without progress starts: `"snapshot"` (default), all rows of the newest version (or of
            `stop`), then changes; `"latest"`, later changes only; a number, that version's changes; a time with a UTC
            offset, those of the first version committed at or after it.
        content: `"changes"`, the result of each insert, update and delete (default); `"all_images"`, also previous
            values; `"appended_rows"`, only appended rows: any other change is an error.
        stop: The last version to publish. Default: the newest version when the run plans.
        skip_change_commits: Whether `"appended_rows"` leaves out commits that update or delete rows.
    """

    table: str
    start: Literal["snapshot", "latest"] | int | datetime = "snapshot"
    content: Content = "changes"
    stop: int | None = Field(default=None, ge=0)
    skip_change_commits: bool = False

    @field_validator("table", mode="before")
    @classmethod
    def _check_table(cls, table: Any) -> str:
        return DeltaTarget.of(table).table

    @field_validator("start", mode="before")
    @classmethod
    def _check_start(cls, start: Any) -> Any:
        if start in ("snapshot", "latest"):
            return start
        if isinstance(start, datetime):
            if start.tzinfo is None:
                msg = "start: the time has no UTC offset; add one, such as datetime(2026, 1, 1, tzinfo=timezone.utc)"
                raise ValueError(msg)
            return start
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return start
        raise ValueError('start: expected "snapshot", "latest", a version (0 or more) or a datetime')

    @property
    def target(self) -> DeltaTarget:
        return DeltaTarget(table=self.table)

    def __str__(self) -> str:
        return str(self.target)
