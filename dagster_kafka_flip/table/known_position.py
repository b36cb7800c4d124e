"""KnownPosition: a copy of a stream's position, for runs without news."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.local_log import version_if_still_valid

if TYPE_CHECKING:
    from dagster_kafka_flip.table.target import DeltaTarget

LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_LOG_RETENTION = timedelta(days=30)

# Delta cleans up its log by whole days, so no useful setting deletes a younger commit.
TOO_YOUNG_TO_ASK = timedelta(hours=24)

_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s*(second|minute|hour|day|week)s?")


def log_retention(text: str | None) -> timedelta:
    """The shortest if it is not understood: the position is committed again too early, but never too late."""
    if text is None:
        return DEFAULT_LOG_RETENTION
    if (found := _INTERVAL.fullmatch(text.strip().lower())) is not None:
        try:
            return timedelta(**{f"{found[2]}s": int(found[1])})
        except OverflowError:
            return timedelta.max
    return 2 * TOO_YOUNG_TO_ASK


@dataclass(frozen=True)
class KnownPosition:
    """A copy of the position that is available without Spark, for example in Dagster's record of the last run.

    It is only trusted if it shows nothing new.

    Attributes:
        table: The table, as `DeltaTarget.identity` names it.
        verified_at: When the state was last read from the table.
        table_version: The table's version at that time.
        table_rows: The table's rows at that time, if known.
        record_bytes: Average record size of the previous run in bytes (key and value), if known.
        kept_until: Until when the table's history certainly has the position: half of the log retention after its
            commit. After that, a run reads the table and commits the position again.
        dead_letters_pending: Whether dead letters may be pending.
        anchor_version: Version of the commit that defined the position, if known.
        known_since: Dagster's last storage id when the run that read the table began: later entries may be newer than
            this record.
        log: The table's location, if the run's process can read its log without Spark; else None.
    """

    stream: str
    table: str
    state: EnumeratorState
    verified_at: datetime
    table_version: int
    table_rows: int | None = None
    record_bytes: float | None = None
    kept_until: datetime | None = None
    dead_letters_pending: bool = False
    anchor_version: int | None = None
    known_since: int | None = None
    log: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Fields for Dagster's metadata and Airflow's events."""
        kept = self.kept_until
        return vars(self) | {
            "state": self.state.to_json(),
            "verified_at": self.verified_at.isoformat(),
            "kept_until": None if kept is None else kept.isoformat(),
        }

    @classmethod
    def from_json(cls, value: Any) -> KnownPosition | None:
        """Reads the result of `to_json`; None if the value is something else."""
        try:
            found: dict[str, Any] = {each.name: value[each.name] for each in fields(cls)}
            kept = found["kept_until"]
            found["state"] = EnumeratorState.from_json(found["state"])
            found["verified_at"] = datetime.fromisoformat(found["verified_at"])
            found["kept_until"] = None if kept is None else datetime.fromisoformat(kept)
            return cls(**found)
        except (KeyError, TypeError, ValueError):
            # A foreign value with the same name. The table has the position.
            return None

    def is_of(self, target: DeltaTarget) -> bool:
        return (self.stream, self.table) == (target.stream, target.identity)

    def seen_in_log(self) -> tuple[int, int | None] | None:
        """The table's newest version and rows, from `version_if_still_valid`; None if unknown."""
        if self.log is None or self.anchor_version is None:
            return None
        return version_if_still_valid(
            self.log, self.stream, self.state, self.anchor_version, self.table_version, self.table_rows
        )
