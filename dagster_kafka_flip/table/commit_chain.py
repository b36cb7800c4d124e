"""Checks a stream's commits for gaps: each must begin where the previous one ended.

Pure functions on commits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.commit import Effect, effect_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument

# Tolerated errors after which a run begins elsewhere than at the position, or after deleted rows.
_MOVING = frozenset(
    {
        "RetentionOvertookPositionError",
        "EndBeforePositionError",
        "TopicRecreatedError",
        "ClusterChangedError",
        "TableReplacedError",
    }
)


@dataclass(frozen=True)
class Break:
    """A gap or overlap between two commits of a stream."""

    # Of the later commit.
    version: int
    what: str
    # Offsets that no commit has read, and that were read again.
    skipped: int = 0
    repeated: int = 0
    # The reason that the commit records.
    reason: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}: {self.what}" + ("" if self.reason is None else f" ({self.reason})")


@dataclass(frozen=True)
class Continuity:
    """Result of the comparison."""

    # The oldest and the newest version; None if there is no commit.
    from_version: int | None
    to_version: int | None
    # The stream's commits, and those that were compared with the previous one.
    commits: int
    compared: int
    # Oldest first; without those that a RESTORE has undone.
    breaks: tuple[Break, ...]
    restores: int
    # Other commits that changed or removed rows, including repairs: positions do not show which rows.
    changes: int

    @property
    def unexplained(self) -> tuple[Break, ...]:
        """Gaps without a recorded reason."""
        return tuple(found for found in self.breaks if found.reason is None)

    @property
    def explained(self) -> tuple[Break, ...]:
        """Gaps with a recorded reason: a manual move or a tolerated error."""
        return tuple(found for found in self.breaks if found.reason is not None)


@dataclass(frozen=True)
class _State:
    """State of the comparison at a version of the table."""

    # Of the stream's last commit.
    version: int = -1
    document: CommitDocument | None = None
    # A later commit of another writer that may have removed its rows.
    doubt: Commit | None = None
    # Those that no RESTORE has undone.
    breaks: tuple[Break, ...] = ()


def continuity(commits: Sequence[Commit], stream: str) -> Continuity:
    """Compares the start of each commit of a stream with the end of the previous one."""
    current = _State()
    at: dict[int, _State] = {}
    own = compared = restores = changes = 0
    for commit in reversed(commits):
        document = commit.document()
        effect = effect_of(commit)
        if document is not None and document.stream == stream:
            own += 1
            compared += current.document is not None
            breaks = (*current.breaks, *_compared(current, commit, document))
            current = _State(commit.version, document, breaks=breaks)
        elif document is not None:
            pass
        elif effect is Effect.RESTORES:
            restores += 1
            version = commit.restored_version
            current = _State(breaks=current.breaks) if version is None else at.get(version, _State())
        elif effect is Effect.CHANGES_ROWS:
            changes += 1
        elif effect in {Effect.REPLACES, Effect.UNKNOWN} and current.document is not None:
            current = replace(current, doubt=current.doubt or commit)
        at[commit.version] = current
    doubted = () if current.doubt is None else (_doubted(current, current.doubt, None),)
    return Continuity(
        from_version=commits[-1].version if commits else None,
        to_version=commits[0].version if commits else None,
        commits=own,
        compared=compared,
        breaks=(*current.breaks, *doubted),
        restores=restores,
        changes=changes,
    )


def _compared(before: _State, commit: Commit, document: CommitDocument) -> Iterator[Break]:
    if before.document is None:
        return
    reason = why_elsewhere(document)
    if before.doubt is not None:
        yield _doubted(before, before.doubt, reason)
    known, state = before.document.state, document.state
    starts = {split.topic_partition: split.starting_offset for split in document.splits}
    stops = {split.topic_partition: split.stopping_offset for split in document.splits}
    lost = sorted(tp for tp in known.position if tp not in state.position)
    if lost:
        yield Break(commit.version, f"no longer has a position of {_some(lost)}", reason=reason)
    moved: dict[TopicPartition, tuple[int, int]] = {}
    others: list[TopicPartition] = []
    for tp, position in sorted(state.position.items()):
        expected = known.position.get(tp)
        if expected is None:
            continue
        if not is_same_log(tp, known, state):
            others.append(tp)
            continue
        start, stop = starts.get(tp, position), stops.get(tp, position)
        skipped, repeated = max(0, start - expected) + max(0, position - stop), max(0, expected - start)
        if skipped or repeated:
            moved[tp] = skipped, repeated
    if others:
        yield Break(commit.version, f"belongs to another topic or cluster for {_some(others)}", reason=reason)
    if moved:
        skipped = sum(offsets for offsets, _ in moved.values())
        repeated = sum(offsets for _, offsets in moved.values())
        counted = [
            f"{number} offsets {how}" for number, how in ((skipped, "skipped"), (repeated, "repeated")) if number
        ]
        what = f"{' and '.join(counted)} since version {before.version}, on {_some(list(moved))}"
        yield Break(commit.version, what, skipped, repeated, reason)


def _doubted(current: _State, doubt: Commit, reason: str | None) -> Break:
    what = f"a {doubt.operation}; rows that the stream wrote up to version {current.version} may be gone"
    return Break(doubt.version, what, reason=reason)


def why_elsewhere(document: CommitDocument) -> str | None:
    """Why a commit may begin elsewhere than the one before it ended; None if it does not."""
    if document.reason is not None:
        return f"position moved manually: {document.reason}"
    if document.overrides_start:
        return "start was overridden"
    tolerated = sorted({incident.error for incident in document.incidents} & _MOVING)
    return f"tolerated: {', '.join(tolerated)}" if tolerated else None


def moves(commit: Commit, stream: str) -> bool:
    """Whether a commit may have taken a stream's position back, or to another log."""
    document = commit.document()
    return document is not None and document.stream == stream and why_elsewhere(document) is not None


def _some(partitions: Sequence[TopicPartition]) -> str:
    more = f" and {counted(len(partitions) - 1, 'more topic partition')}" if len(partitions) > 1 else ""
    return f"{partitions[0]}{more}"
