"""Reports the positions of a table's streams and their latest commits. Pure functions on commits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.table.anchor import check_doubt, find_anchor
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.history import commits_that_count, documented, other_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument

AnchorKind = Literal["commit", "restore", "creation", "replacement"]


@dataclass(frozen=True)
class StreamCommit:
    """A commit of a stream."""

    commit: Commit
    document: CommitDocument
    is_undone: bool


@dataclass(frozen=True)
class PositionReport:
    """The position of one stream, and its last commits, newest first.

    The anchor is None if it is unknown from history, and `error` says why, or why runs can't continue from it.
    """

    stream: str
    anchor: Anchor | None
    anchor_commit: Commit | None
    error: KafkaFlipError | None
    commits: tuple[StreamCommit, ...]

    @property
    def anchor_kind(self) -> AnchorKind | None:
        """What defines the position: the stream's own commit, a RESTORE, or the table's creation."""
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
    """The streams that have commits in a history."""
    # No stream has an empty id, so none is excluded.
    return tuple(sorted(other_streams(history, "")))


def report_position(history: Sequence[Commit], stream: str, table: str, last: int) -> PositionReport:
    """The report of one stream, with its last commits."""
    anchor, error = None, None
    counting = {commit.version for commit in commits_that_count(history)}
    own = (
        StreamCommit(commit, document, commit.version not in counting)
        for commit, document in documented(history, stream)
    )
    try:
        anchor = find_anchor(history, stream, table)
        check_doubt(anchor)
    except KafkaFlipError as why:
        error = why
    return PositionReport(
        stream=stream,
        anchor=anchor,
        anchor_commit=next((commit for commit in history if anchor and commit.version == anchor.version), None),
        error=error,
        commits=tuple(itertools.islice(own, min(last, len(history)))),
    )
