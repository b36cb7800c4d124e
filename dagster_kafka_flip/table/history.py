"""Tells from a table's commits which still count, which are a stream's, and what other writers did between them.

Pure functions on commits, newest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError, StreamOverlapError, TableChangedError, TableModeError
from dagster_kafka_flip.settings.names import counted, first_of
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.next_step import AS_PRINTED, TOPIC, set_position
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.document import WINDOWS_PROPERTY
from dagster_kafka_flip.table.mode import written
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget

FIRST_PAGE = 10
"""Number of commits that the first look at a history reads."""


def commits_that_count(commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yields a table's commits, newest first, without those that a later RESTORE to a version has undone."""
    visible: int | None = None
    for commit in commits:
        if visible is not None and commit.version > visible:
            continue
        yield commit
        if commit.restored_version is not None:
            visible = commit.restored_version


def check_restore(commit: Commit, table: str) -> None:
    """Refuses a RESTORE to a timestamp: its time zone is unknown, and the commits of a copied log have other times."""
    if effect_of(commit) is Effect.RESTORES and commit.restored_version is None:
        raise PositionLostError(
            f"version {commit.version} of the table {table} is a RESTORE to a timestamp "
            f"({commit.parameters.get('timestamp')}), and history does not record to which version",
            "Restore the table once more, TO VERSION AS OF the version you want",
        )


def documented(commits: Iterable[Commit], stream: str | None = None) -> Iterator[tuple[Commit, CommitDocument]]:
    for commit in commits:
        document = commit.document()
        if document is not None and stream in {None, document.stream}:
            yield commit, document


def other_streams(commits: Iterable[Commit], stream: str) -> dict[str, CommitDocument]:
    """The newest documents of the other streams of a table, from all commits in the history."""
    found: dict[str, CommitDocument] = {}
    for _, document in documented(commits):
        if document.stream != stream:
            found.setdefault(document.stream, document)
    return found


def page_with(number: int) -> int:
    """Size of the first page of history that has more than so many commits: each is ten times larger than the last."""
    size = FIRST_PAGE
    while size <= number:
        size *= 10
    return size


def back_to(version: int, commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yields commits down to the first one that is not newer than a version, and reads no more."""
    for commit in commits:
        yield commit
        if commit.version <= version:
            return


def takes_back(commit: Commit) -> bool:
    """Whether a commit may have brought a table back to before what a plan rests on."""
    return commit.document() is None and effect_of(commit) in {Effect.RESTORES, Effect.REPLACES, Effect.UNKNOWN}


def restorable(between: Commit, version: int) -> int:
    """The version to restore to, if a commit came between a plan and what was written by it."""
    is_removal = effect_of(between) in {Effect.REPLACES, Effect.UNKNOWN}
    return (between.version if is_removal else version) - 1


def is_anchor(commit: Commit, document: CommitDocument) -> bool:
    """Whether a commit of the anchor's version is the anchor, and not one of a later table of this name."""
    if document.after is None or effect_of(commit) is Effect.RESTORES:
        return True
    own = commit.document()
    return own is not None and own.attempt == document.after


def check_between(commits: Iterable[Commit], document: CommitDocument, last: Commit, table: str) -> None:
    """Checks that nobody deleted rows or wrote the same ones between the reading of the position and the commit."""
    version, replaces = last.version, effect_of(last) is Effect.REPLACES
    if version <= document.base_version:
        raise TableChangedError(
            f"version {version} of the table {table} is a batch of the stream {document.stream!r} that was planned at "
            f"version {document.base_version}: the table was dropped and created again in between, so it lacks what "
            "the stream wrote before this batch",
            "Drop it, and the next run creates it and begins at starting_offsets; or use another table",
        )
    for commit in commits:
        if commit.version == document.anchor_version and not is_anchor(commit, document):
            raise TableChangedError(
                f"version {version} of the table {table} is a batch of the stream {document.stream!r} that continues "
                f"from the batch in version {commit.version}, but version {commit.version} is another commit "
                f"({commit.operation}): the table was dropped and created again, or another one was put in its place, "
                "so it lacks what the stream wrote before this batch",
                f"RESTORE it to version {version - 1}, which removes this batch; or use another table",
            )
        if commit.version >= version or commit.version <= document.base_version:
            continue
        own = commit.document()
        if own is not None and own.stream == document.stream:
            # The fence works while Delta keeps transaction versions; a table property can shorten this time.
            raise TableChangedError(
                f"versions {commit.version} and {version} of the table {table} both belong to the stream "
                f"{document.stream!r}, and the later one was planned at version {document.base_version}, before the "
                "earlier one was committed: the table may hold duplicates. Delta removed the transaction version of "
                "the earlier one (delta.setTransactionRetentionDuration)",
                f"Set this property to longer than any run takes, and RESTORE the table to version {version - 1}, from "
                "which the next run continues",
            )
        if takes_back(commit):
            raise TableChangedError(
                f"version {commit.version} of the table {table} is a {commit.operation}{commit.shown_parameters} "
                f"between the reading of the position (version {document.base_version}) and the commit of the batch "
                f"(version {version}). Rows in between may be missing",
                f"RESTORE the table to version {restorable(commit, version)} or earlier, from which the next run "
                "continues",
            )
        check_alone(commit, document, version, table)
        if replaces and effect_of(commit) is not Effect.KEEPS_ROWS:
            raise TableChangedError(
                f"{commit.named} of the table {table} came between the last look at its rows and version {version}, "
                "which replaced them all",
                f"RESTORE the table to version {version - 1}, and rebuild it again",
            )


def check_shared(
    target: DeltaTarget,
    streams: Mapping[str, CommitDocument],
    partitions: Collection[TopicPartition],
    state: EnumeratorState,
) -> None:
    """Rejects a stream that would read the same topic partitions as others of the table."""
    for stream, other in streams.items():
        check_only_stream(target, other)
        theirs = other.state
        both = sorted(tp for tp in partitions if tp in theirs.position and is_same_log(tp, theirs, state))
        if both:
            raise overlap(target, both, stream, "already")


def check_only_stream(target: DeltaTarget, other: CommitDocument) -> None:
    if target.key or other.key:
        raise TableModeError(
            f"the stream {other.stream!r} writes to {target} with {written(other.mode)}, and the stream "
            f"{target.stream!r} has {written(target.mode)}",
            "A table whose rows have a key belongs to one stream: let one source read all topics, or use another table",
        )


def overlap(target: DeltaTarget, both: Sequence[TopicPartition], stream: str, since: str) -> StreamOverlapError:
    return StreamOverlapError(
        f"{first_of(both)}: the stream {stream!r} of the table {target} reads it {since}; the stream {target.stream!r} "
        "would duplicate the records",
        f"Use another table for {target.stream!r}, or remove the topic from its source. If {stream!r} should stop "
        "reading it, remove the topic from that source and give up its position: "
        f"{set_position(str(target), stream, topics=('<topic to keep>',), to=None)}. It prints where the position was: "
        f"begin {target.stream!r} there, or records are lost or duplicated: "
        f"{set_position(str(target), target.stream, topics=sorted({tp.topic for tp in both}), to=AS_PRINTED)}",
    )


def check_forgotten(target: DeltaTarget, versions: Mapping[str, int], streams: Collection[str], oldest: int) -> None:
    """If history has expired, finds other streams by Delta's transaction ids."""
    known = {target.stream, *streams}
    forgotten = sorted(
        stream for application in versions if (stream := application.removeprefix(TRANSACTION_PREFIX)) not in known
    )
    if not forgotten:
        return
    stream = forgotten[0]
    raise PositionLostError(
        f"the stream {stream!r} has committed to the table {target} (its last transaction version is "
        f"{versions[TRANSACTION_PREFIX + stream]}), but history no longer holds a commit of it: the oldest is version "
        f"{oldest}. It may read the same topic partitions as the stream {target.stream!r}, which would duplicate "
        "records",
        f"Run the stream {stream!r}, or set its position, so that history holds it again: "
        f"{set_position(str(target), stream, topics=TOPIC)}; then run this one again. Or use another table for this "
        "stream",
    )


def shared_logs(document: CommitDocument, other: CommitDocument) -> list[TopicPartition]:
    """Topic partitions that two streams both land; none of dead letters, whose table several streams may share."""
    if document.settles is not None:
        return []
    theirs = other.state
    return sorted(
        tp for tp in document.state.position if tp in theirs.position and is_same_log(tp, theirs, document.state)
    )


def makes_windows(commit: Commit) -> bool:
    """Whether a commit sets up a table for windows, or writes some."""
    windows = commit.windows()
    if windows is not None:
        return windows.repairs is None
    return WINDOWS_PROPERTY in commit.properties_set


def _doubled(document: CommitDocument, other: CommitDocument) -> int:
    ranges = {split.topic_partition: (split.starting_offset, split.stopping_offset) for split in other.splits}
    return sum(
        max(0, min(split.stopping_offset, stop) - max(split.starting_offset, start))
        for split in document.splits
        for start, stop in [ranges.get(split.topic_partition, (0, 0))]
    )


def check_alone(commit: Commit, document: CommitDocument, version: int, table: str) -> None:
    """Checks that a commit in between is not of the same records, which is possible where the store has no lock."""
    way_out = (
        f"RESTORE the table to version {version - 1}, which removes this batch; then use another table for one of the "
        "two"
    )
    other = commit.document()
    if other is None:
        if makes_windows(commit):
            raise TableChangedError(
                f"version {commit.version} wrote windows to {table}, or set it up for windows, while the stream "
                f"{document.stream!r} wrote its batch (version {version}): the table may hold duplicates",
                way_out,
            )
        return
    both = shared_logs(document, other)
    if other.key or document.key:
        raise TableChangedError(
            f"versions {commit.version} (the stream {other.stream!r}, {written(other.mode)}) and {version} (the stream "
            f"{document.stream!r}, {written(document.mode)}) of the table {table} were written at once, and a table "
            f"whose rows have a key belongs to one stream",
            way_out,
        )
    if both:
        raise TableChangedError(
            f"versions {commit.version} (the stream {other.stream!r}) and {version} (the stream {document.stream!r}) "
            f"of the table {table} both contain {first_of(both)}, and the later one was planned before the earlier one "
            f"was committed: up to {counted(_doubled(document, other), 'record')} of these two batches may be there "
            f"twice",
            way_out,
        )


# Gaps in a stream: each of its commits must begin where the previous one ended.

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
        return tuple(found for found in self.breaks if found.reason is None)

    @property
    def explained(self) -> tuple[Break, ...]:
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
        yield Break(commit.version, f"no longer has a position of {first_of(lost)}", reason=reason)
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
        yield Break(commit.version, f"belongs to another topic or cluster for {first_of(others)}", reason=reason)
    if moved:
        skipped = sum(offsets for offsets, _ in moved.values())
        repeated = sum(offsets for _, offsets in moved.values())
        counted = [
            f"{number} offsets {how}" for number, how in ((skipped, "skipped"), (repeated, "repeated")) if number
        ]
        what = f"{' and '.join(counted)} since version {before.version}, on {first_of(list(moved))}"
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
