"""Where the streams of a table stand, and how they got there. Pure, as the walk through history that it rests on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.table.history import Effect, check_doubt, effect_of, find_anchor, other_streams, with_undone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.history import Anchor, Commit, RestoredVersions

AnchorKind = Literal["commit", "restore", "creation", "replacement"]


@dataclass(frozen=True)
class StreamCommit:
    """A commit of a stream.

    Attributes:
        commit: As history tells it.
        document: What the stream left in it.
        is_undone: Whether a later RESTORE took it back.
    """

    commit: Commit
    document: CommitDocument
    is_undone: bool


@dataclass(frozen=True)
class PositionReport:
    """Where one stream stands.

    Attributes:
        stream: Id of the stream.
        anchor: Its position; None if history does not tell it.
        anchor_commit: The commit that defines it.
        error: Why history does not tell it; or why no run goes on from there.
        commits: The stream's last commits, newest first.
    """

    stream: str
    anchor: Anchor | None
    anchor_commit: Commit | None
    error: KafkaFlipError | None
    commits: tuple[StreamCommit, ...]

    @property
    def anchor_kind(self) -> AnchorKind | None:
        """What defines the position: the stream's own commit, a RESTORE, or the table's beginning."""
        commit = self.anchor_commit
        if commit is None:
            return None
        effect = effect_of(commit)
        if effect is Effect.RESTORES:
            return "restore"
        if commit.document() is not None:
            return "commit"
        return "replacement" if effect is Effect.REPLACES else "creation"


def streams_of(history: Sequence[Commit]) -> tuple[str, ...]:
    """Ids of all streams that history knows, sorted."""
    # No stream has an empty id, so that none is left out.
    return tuple(sorted(other_streams(history, "")))


def report_position(
    history: Sequence[Commit], stream: str, table: str, last: int, restored: RestoredVersions | None = None
) -> PositionReport:
    """Where a stream stands.

    Args:
        history: The table's commits, newest first, as far back as history goes.
        stream: Id of the stream.
        table: The table's name, for messages.
        last: How many of the stream's commits to tell.
        restored: Which versions a RESTORE to a timestamp may have brought back; see `find_anchor`.
    """
    anchor, error = None, None
    try:
        anchor = find_anchor(history, stream, table, restored=restored)
        check_doubt(anchor)
    except KafkaFlipError as why:
        error = why
    return PositionReport(
        stream=stream,
        anchor=anchor,
        anchor_commit=next((commit for commit in history if anchor and commit.version == anchor.version), None),
        error=error,
        commits=tuple(itertools.islice(_commits_of(history, stream, restored), last)),
    )


def _commits_of(history: Sequence[Commit], stream: str, restored: RestoredVersions | None) -> Iterator[StreamCommit]:
    for commit, is_undone in with_undone(history, restored):
        document = commit.document()
        if document is not None and document.stream == stream:
            yield StreamCommit(commit, document, is_undone)
