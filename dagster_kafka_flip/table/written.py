"""Result of a write, as confirmed by the table's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_kafka_flip.table.commit import Commit


@dataclass(frozen=True)
class MergedRows:
    """What became of the last change of each key of a batch.

    Attributes:
        inserted: Rows of new keys.
        updated: Rows that were replaced.
        deleted: Rows that were deleted.
        unchanged: Changes that are not newer than the row, and deletes of keys that the table doesn't have; None for a
            history, of which only the MERGE itself could tell.
    """

    inserted: int
    updated: int
    deleted: int
    unchanged: int | None


@dataclass(frozen=True)
class Committed:
    """A commit that is confirmed in the table.

    Attributes:
        version: The commit's version.
        rows: Number of added or updated rows; None if unknown.
        bytes: Bytes of the added files; None if unknown.
        table_rows: Rows of the table at that version; None if unknown.
        confirm_seconds: Seconds spent on the confirmation.
        merged: What became of the changes; None if rows are appended, or if it is unknown.
        attempt: Id of the attempt, if it is a stream's commit.
    """

    version: int
    rows: int | None
    bytes: int | None
    table_rows: int | None
    confirm_seconds: float
    merged: MergedRows | None = None
    attempt: str | None = None


@dataclass(frozen=True)
class Written:
    """Outcome of a write.

    Attributes:
        since: The commits since its base version, newest first.
        before: The commits from the anchor to the base version, newest first.
        failure: The error; None if it returned.
        confirm_seconds: Seconds spent on reading the history.
    """

    since: list[Commit]
    before: list[Commit]
    failure: Exception | None
    confirm_seconds: float


def committed(
    commit: Commit, written: Written, table_rows: int | None, keys: int | None = None, attempt: str | None = None
) -> Committed:
    """Creates the result from a commit in the history.

    Args:
        commit: The commit.
        written: The write that made it.
        table_rows: Rows of the table at that version, if known.
        keys: Number of keys of a batch of changes; None if rows are appended.
        attempt: Id of the attempt, if it is a stream's commit.
    """
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
