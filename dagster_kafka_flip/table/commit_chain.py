"""Whether the commits of a stream join: each begins where the one before it ended.

Pure, as the walk that finds the position: it is handed commits and answers. The walk asks where to go on, and stops at
the newest commit that tells; this looks back over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.history import Effect, effect_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.history import Commit, RestoredVersions

# What a run may go on in spite of that leads it to begin elsewhere than at the position, or after rows that are gone.
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
    """A place where the commits of a stream don't join.

    Attributes:
        version: The table's version that it is at.
        what: What was found there, as a sentence without its end.
        skipped: Offsets that no commit has read.
        repeated: Offsets that were read once more.
        reason: Why, as the commit itself says; None if nobody said so.
    """

    version: int
    what: str
    skipped: int = 0
    repeated: int = 0
    reason: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}: {self.what}" + ("" if self.reason is None else f" ({self.reason})")


@dataclass(frozen=True)
class Continuity:
    """What was found.

    Attributes:
        from_version: The oldest version that was looked at; None if there is no commit.
        to_version: The newest one.
        commits: Number of the stream's commits among them.
        compared: How many of these were compared with the one before.
        breaks: Where they don't join, oldest first; without those that a RESTORE has taken back.
        restores: RESTOREs among them.
        changes: Commits of others that changed or removed rows, repairs included: no position tells which rows.
    """

    from_version: int | None
    to_version: int | None
    commits: int
    compared: int
    breaks: tuple[Break, ...]
    restores: int
    changes: int

    @property
    def unexplained(self) -> tuple[Break, ...]:
        """The breaks that nobody gave a reason for."""
        return tuple(found for found in self.breaks if found.reason is None)

    @property
    def explained(self) -> tuple[Break, ...]:
        """The breaks that an operator asked for, or that a run was told to go on in spite of."""
        return tuple(found for found in self.breaks if found.reason is not None)


@dataclass(frozen=True)
class _Standing:
    """What stands at a version of the table.

    Attributes:
        version: The version of the stream's last commit before it.
        document: What that commit says; None if none is known.
        doubt: The commit of somebody else since, after which its rows may be gone.
        breaks: What was found up to there, and has not been taken back by a RESTORE.
    """

    version: int = -1
    document: CommitDocument | None = None
    doubt: Commit | None = None
    breaks: tuple[Break, ...] = ()


def continuity(commits: Sequence[Commit], stream: str, restored: RestoredVersions | None = None) -> Continuity:
    """Compares where each commit of a stream begins with where the one before it ended.

    Where a RESTORE goes back beyond the oldest of the commits, comparing begins anew.

    Args:
        commits: Some of the table's newest commits, newest first and without a gap.
        stream: Id of the stream.
        restored: Tells of a RESTORE to a timestamp the versions that it may have brought back; see `find_anchor`.
    """
    standing = _Standing()
    at: dict[int, _Standing] = {}
    own = compared = restores = changes = 0
    for index, commit in reversed(list(enumerate(commits))):
        document = commit.document()
        effect = effect_of(commit)
        if document is not None and document.stream == stream:
            own += 1
            compared += standing.document is not None
            breaks = (*standing.breaks, *_compared(standing, commit, document))
            standing = _Standing(commit.version, document, breaks=breaks)
        elif document is not None:
            pass
        elif effect is Effect.RESTORES:
            restores += 1
            standing = _restored(commit, commits[index + 1 :], at, restored) or _Standing(breaks=standing.breaks)
        elif effect is Effect.CHANGES_ROWS:
            changes += 1
        elif effect in {Effect.REPLACES, Effect.UNKNOWN} and standing.document is not None:
            standing = replace(standing, doubt=standing.doubt or commit)
        at[commit.version] = standing
    doubted = () if standing.doubt is None else (_doubted(standing, standing.doubt, None),)
    return Continuity(
        from_version=commits[-1].version if commits else None,
        to_version=commits[0].version if commits else None,
        commits=own,
        compared=compared,
        breaks=(*standing.breaks, *doubted),
        restores=restores,
        changes=changes,
    )


def _restored(
    restore: Commit, older: Sequence[Commit], at: dict[int, _Standing], restored: RestoredVersions | None
) -> _Standing | None:
    """What a RESTORE brought back; None where nobody can tell."""
    version = restore.restored_version
    versions: Collection[int] = () if version is None else (version,)
    if version is None and restored is not None:
        versions = restored(restore, older)
    found = [at.get(each, _Standing()) for each in versions]
    # Which one it was need not be known if all of them agree.
    return found[0] if found and all(each == found[0] for each in found) else None


def _compared(before: _Standing, commit: Commit, document: CommitDocument) -> Iterator[Break]:
    if before.document is None:
        return
    reason = _reason(document)
    if before.doubt is not None:
        yield _doubted(before, before.doubt, reason)
    known, state = before.document.state, document.state
    starts = {split.topic_partition: split.starting_offset for split in document.splits}
    stops = {split.topic_partition: split.stopping_offset for split in document.splits}
    lost = sorted(tp for tp in known.position if tp not in state.position)
    if lost:
        yield Break(commit.version, f"no longer tells a position of {_some(lost)}", reason=reason)
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
        yield Break(commit.version, f"is of another topic or cluster at {_some(others)}", reason=reason)
    if moved:
        skipped = sum(offsets for offsets, _ in moved.values())
        repeated = sum(offsets for _, offsets in moved.values())
        counted = [
            f"{number} offsets {how}" for number, how in ((skipped, "skipped"), (repeated, "repeated")) if number
        ]
        what = f"{' and '.join(counted)} since version {before.version}, on {_some(list(moved))}"
        yield Break(commit.version, what, skipped, repeated, reason)


def _doubted(standing: _Standing, doubt: Commit, reason: str | None) -> Break:
    what = f"a {doubt.operation}, after which rows that the stream landed up to version {standing.version} may be gone"
    return Break(doubt.version, what, reason=reason)


def _reason(document: CommitDocument) -> str | None:
    if document.reason is not None:
        return f"moved by hand: {document.reason}"
    if document.overrides_start:
        return "the run was told to start elsewhere"
    tolerated = sorted({incident.error for incident in document.incidents} & _MOVING)
    return f"tolerated: {', '.join(tolerated)}" if tolerated else None


def _some(partitions: Sequence[TopicPartition]) -> str:
    more = f" and {len(partitions) - 1} more topic partitions" if len(partitions) > 1 else ""
    return f"{partitions[0]}{more}"
