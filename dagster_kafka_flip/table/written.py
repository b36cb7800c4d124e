"""What is known of a write once history was asked, and of the commit that it made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.history import Commit


@dataclass(frozen=True)
class Committed:
    """A commit that is known to be in the table.

    Attributes:
        version: The version it made.
        rows: Rows it added; None where history does not tell.
        bytes: Bytes of the files it added; None where history does not tell.
        table_rows: Rows of the table at that version; None where history does not tell.
        confirm_seconds: Time for asking history whether it is there.
    """

    version: int
    rows: int | None
    bytes: int | None
    table_rows: int | None
    confirm_seconds: float


@dataclass(frozen=True)
class Written:
    """How a write ended.

    Attributes:
        since: The commits since the version that it rests on, newest first.
        failure: What it ended with; None if it came back.
        confirm_seconds: Time for asking history.
    """

    since: list[Commit]
    failure: Exception | None
    confirm_seconds: float


def committed(commit: Commit, written: Written, table_rows: int | None) -> Committed:
    """A commit that history shows.

    Args:
        commit: The commit.
        written: The write that made it.
        table_rows: Rows of the table then, if that is known.
    """
    rows = commit.metric("numOutputRows")
    # A rewrite counts as well what it only moved from one file to another; an append moves nothing.
    copied = 0 if commit.parameters.get("mode") == "Append" else commit.metric("numCopiedRows")
    return Committed(
        version=commit.version,
        rows=None if rows is None or copied is None else rows - copied,
        bytes=commit.metric("numOutputBytes"),
        table_rows=table_rows,
        confirm_seconds=written.confirm_seconds,
    )


def rows_after(since: Sequence[Commit], commit: Commit, document: CommitDocument) -> int | None:
    """Rows of the table after a commit that appended some; None if that can't be told without counting.

    Args:
        since: The commits since the version that it rests on.
        commit: The commit.
        document: Its document.
    """
    between = [other for other in since if other.version < commit.version]
    rows = commit.metric("numOutputRows")
    if document.rows_before is None or rows is None or between:
        return None
    return document.rows_before + rows
