"""Result of a write, as confirmed by the table's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.history import Commit


@dataclass(frozen=True)
class Committed:
    """A commit that is confirmed in the table.

    Attributes:
        version: The commit's version.
        rows: Number of added rows; None if unknown.
        bytes: Bytes of the added files; None if unknown.
        table_rows: Rows of the table at that version; None if unknown.
        confirm_seconds: Seconds spent on the confirmation.
    """

    version: int
    rows: int | None
    bytes: int | None
    table_rows: int | None
    confirm_seconds: float


@dataclass(frozen=True)
class Written:
    """Outcome of a write.

    Attributes:
        since: The commits since its base version, newest first.
        failure: The error; None if it returned.
        confirm_seconds: Seconds spent on reading the history.
    """

    since: list[Commit]
    failure: Exception | None
    confirm_seconds: float


def committed(commit: Commit, written: Written, table_rows: int | None) -> Committed:
    """Creates the result from a commit in the history.

    Args:
        commit: The commit.
        written: The write that made it.
        table_rows: Rows of the table at that version, if known.
    """
    rows = commit.metric("numOutputRows")
    # A rewrite also counts rows that it only moved between files; an append moves none.
    copied = 0 if commit.parameters.get("mode") == "Append" else commit.metric("numCopiedRows")
    return Committed(
        version=commit.version,
        rows=None if rows is None or copied is None else rows - copied,
        bytes=commit.metric("numOutputBytes"),
        table_rows=table_rows,
        confirm_seconds=written.confirm_seconds,
    )


def rows_after(since: Sequence[Commit], commit: Commit, document: CommitDocument) -> int | None:
    """Rows of the table after an append; None if unknown without counting.

    Args:
        since: The commits since the base version.
        commit: The commit.
        document: Its document.
    """
    between = [other for other in since if other.version < commit.version]
    rows = commit.metric("numOutputRows")
    if document.rows_before is None or rows is None or between:
        return None
    return document.rows_before + rows
