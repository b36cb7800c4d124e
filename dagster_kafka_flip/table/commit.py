"""Commit: one commit of a table, as Delta's history tells it."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.settings.names import listed
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.table.document import CommitDocument, WindowsDocument

if TYPE_CHECKING:
    from collections.abc import Mapping

MERGE = "MERGE"

WRITES = frozenset({"WRITE", MERGE})
"""The operations of a stream's own commits."""


@dataclass(frozen=True)
class Commit:
    """One row of `DESCRIBE HISTORY`: parameters and metrics as Delta prints them, the operation None if unknown.

    The engine is the writer, such as `Apache-Spark/4.2.0 Delta-Lake/4.4.0` or `delta-rs:py-1.6.6`.
    """

    version: int
    operation: str | None
    parameters: Mapping[str, str | None]
    metrics: Mapping[str, str]
    user_metadata: str | None = None
    timestamp_ms: int | None = None
    engine: str | None = None

    def document(self) -> CommitDocument | None:
        """The stream's document; not that of an OPTIMIZE, which can repeat the one of the write before it."""
        return CommitDocument.from_text(self.user_metadata) if self.operation in WRITES else None

    def windows(self) -> WindowsDocument | None:
        return WindowsDocument.from_text(self.user_metadata) if self.operation == "WRITE" else None

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE restored; None if it has a timestamp, or is not a RESTORE."""
        version = self.parameters.get("version") or ""
        return int(version) if self.operation == "RESTORE" and version.isdigit() else None

    @property
    def rows_written(self) -> int | None:
        """Rows that the commit added or, by a MERGE, also updated; None if the writer did not record it."""
        if self.operation != MERGE:
            return self.metric("numOutputRows")
        return total((self.metric("numTargetRowsInserted"), self.metric("numTargetRowsUpdated")))

    @property
    def rows_gained(self) -> int | None:
        """By how many rows a stream's own commit made the table grow; None if the writer did not record it."""
        if self.operation != MERGE:
            return self.metric("numOutputRows")
        deleted = self.metric("numTargetRowsDeleted")
        return None if deleted is None else total((self.metric("numTargetRowsInserted"), -deleted))

    @property
    def shown_parameters(self) -> str:
        """The parameters that say which rows the operation concerned, with a space before them; empty without any."""
        shown = {
            name: value for name, value in self.parameters.items() if name in {"mode", "predicate", "version"} and value
        }
        return f" {json.dumps(shown)}" if shown else ""

    @property
    def properties_set(self) -> dict[str, str]:
        """The table properties that an ALTER TABLE set; empty for other commits."""
        return json.loads((self.operation == "SET TBLPROPERTIES" and self.parameters.get("properties")) or "{}")

    @property
    def named(self) -> str:
        return f"version {self.version} ({self.operation or 'an operation without a name'}{self.shown_parameters})"

    def metric(self, name: str) -> int | None:
        """A metric; None if there is none: other writers use other names, and a setting disables Spark's."""
        text = self.metrics.get(name)
        return int(text) if text and text.isdigit() else None


# What each of Delta's operations does to the rows of a table. Their names are those of Delta's DeltaOperations.
class Effect(enum.Enum):
    """Effect of another writer's operation on the stream's rows."""

    CREATES = "creates"
    APPENDS = "appends"
    KEEPS_ROWS = "keeps rows"
    CHANGES_ROWS = "changes rows"
    REPLACES = "replaces"
    RESTORES = "restores"
    UNKNOWN = "unknown"


# The last four are names of delta-rs.
_KEEPS_ROWS = listed(
    """
    OPTIMIZE, OPTIMIZE CHECKPOINT, VACUUM START, VACUUM END, REORG, REORG TABLE UPGRADE UNIFORM, SET TBLPROPERTIES,
    UNSET TBLPROPERTIES, ADD COLUMNS, CHANGE COLUMN, CHANGE COLUMNS, RENAME COLUMN, DROP COLUMNS, REPLACE COLUMNS,
    UPDATE SCHEMA, UPDATE COLUMN METADATA, REMOVE COLUMN MAPPING, SET COLUMN, ADD CONSTRAINT, DROP CONSTRAINT,
    UPGRADE PROTOCOL, DROP FEATURE, COMPUTE STATS, CLUSTER BY, DOMAIN METADATA CLEANUP, ROW TRACKING BACKFILL,
    ROW TRACKING UNBACKFILL, Deletion Vector Tombstones, Empty Commit, UPDATE, ADD COLUMN, ADD FEATURE,
    UPDATE FIELD METADATA, UPDATE TABLE METADATA
    """
)
_CREATES = frozenset({"CREATE TABLE", "CREATE TABLE AS SELECT"})
_REPLACES = listed(
    """
    REPLACE TABLE, REPLACE TABLE AS SELECT, CREATE OR REPLACE TABLE, CREATE OR REPLACE TABLE AS SELECT, TRUNCATE,
    CLONE, CONVERT
    """
)
_NO_PREDICATE = frozenset({None, "", "[]", '["true"]'})


def effect_of(commit: Commit) -> Effect:  # noqa: PLR0911 - one line for each kind of operation
    operation, parameters = commit.operation, commit.parameters
    if operation == "RESTORE":
        return Effect.RESTORES
    if commit.version == 0 or operation in _CREATES:
        return Effect.CREATES
    if operation == "WRITE":
        return _effect_of_write(parameters)
    if operation == "STREAMING UPDATE":
        return Effect.APPENDS if parameters.get("outputMode") == "Append" else Effect.REPLACES
    if operation == "DELETE":
        return Effect.REPLACES if parameters.get("predicate") in _NO_PREDICATE else Effect.CHANGES_ROWS
    if operation == MERGE:
        return Effect.CHANGES_ROWS
    if operation in _KEEPS_ROWS:
        return Effect.KEEPS_ROWS
    return Effect.REPLACES if operation in _REPLACES else Effect.UNKNOWN


def _effect_of_write(parameters: Mapping[str, str | None]) -> Effect:
    if parameters.get("mode") != "Overwrite":
        return Effect.APPENDS
    # Not isDynamicPartitionOverwrite: Delta notes what the session or the writer asked for, also where it replaced an
    # unpartitioned table as a whole.
    by_condition = parameters.get("predicate") not in _NO_PREDICATE or any(
        parameters.get(name) for name in ("replaceOnCond", "replaceUsingCols")
    )
    return Effect.CHANGES_ROWS if by_condition else Effect.REPLACES


# Metrics with what an operation added, where it isn't numOutputRows; without the metric, the number is unknown. The
# output rows of a MERGE include rows that it only moved between files, and the others only count files.
_BROUGHT = {MERGE: "numTargetRowsInserted", "CLONE": "sourceNumOfFiles", "CONVERT": "numConvertedFiles"}
# With Delta's Spark writer these never add rows. Other engines may use the names differently.
_BRINGS_NONE = frozenset({"CREATE TABLE", "REPLACE TABLE", "CREATE OR REPLACE TABLE", "TRUNCATE", "DELETE"})
_OF_SPARK = "Apache-Spark/"


def brings_rows(commit: Commit) -> bool | None:
    operation = commit.operation
    if operation in _KEEPS_ROWS and commit.version > 0:
        return False
    if operation in _BRINGS_NONE and (commit.engine is None or commit.engine.startswith(_OF_SPARK)):
        return False
    brought = commit.metric(_BROUGHT.get(operation or "", "numOutputRows"))
    return None if brought is None else brought > 0


@dataclass(frozen=True)
class MergedRows:
    """What became of the last change of each key of a batch.

    `unchanged` changes are not newer than the row, or delete keys that the table doesn't have; None for a history, of
    which only the MERGE itself could tell.
    """

    inserted: int
    updated: int
    deleted: int
    unchanged: int | None


@dataclass(frozen=True)
class Committed:
    """A commit that is confirmed in the table; None for what is unknown."""

    version: int
    rows: int | None
    bytes: int | None
    table_rows: int | None
    confirm_seconds: float
    merged: MergedRows | None = None
    attempt: str | None = None


@dataclass(frozen=True)
class Written:
    """A write's error, if any, and the commits since its base version and from the anchor to it, newest first."""

    since: list[Commit]
    before: list[Commit]
    failure: Exception | None
    confirm_seconds: float


def committed(
    commit: Commit, written: Written, table_rows: int | None, keys: int | None = None, attempt: str | None = None
) -> Committed:
    rows = commit.rows_written
    # A rewrite also counts rows that it only moved between files; an append moves none, and a merge counts them
    # separately.
    is_replacing = commit.operation == "WRITE" and commit.parameters.get("mode") != "Append"
    copied = commit.metric("numCopiedRows") if is_replacing else 0
    return Committed(
        version=commit.version,
        rows=None if rows is None or copied is None else rows - copied,
        bytes=commit.metric("numTargetBytesAdded" if commit.operation == "MERGE" else "numOutputBytes"),
        table_rows=table_rows,
        confirm_seconds=written.confirm_seconds,
        merged=None if keys is None else _merged(commit, keys),
        attempt=attempt,
    )


def _merged(commit: Commit, keys: int) -> MergedRows | None:
    if not keys:
        return MergedRows(0, 0, 0, 0)
    inserted, updated, deleted = (commit.metric(f"numTargetRows{what}") for what in ("Inserted", "Updated", "Deleted"))
    if inserted is None or updated is None or deleted is None:
        return None
    # A key with several rows, of which others wrote all but one, has more rows that change than it has changes.
    return MergedRows(inserted, updated, deleted, max(0, keys - inserted - updated - deleted))
