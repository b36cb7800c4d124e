"""What checks find in a table: gaps between a stream's commits, records that are there twice, and keys' rows.

Of keys: several rows, none with the whole key, and histories that overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.settings.names import first_of
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.change_errors import place
from dagster_kafka_flip.table.changes import IS_CURRENT, VALID_FROM, VALID_TO
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.history import why_elsewhere
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.window_rows import RecordColumns, covering_predicate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument


# Gaps in a stream: each of its commits must begin where the previous one ended.


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
        """Those for which no commit records a reason."""
        return tuple(found for found in self.breaks if found.reason is None)

    @property
    def explained(self) -> tuple[Break, ...]:
        """The others."""
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
    """Compares each commit of a stream with the one before it, and follows what others did in between."""
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


@dataclass(frozen=True)
class Duplicates:
    """Numbers of compared rows, duplicated records and surplus rows, and one of the records."""

    rows: int
    records: int
    surplus: int
    example: str | None


def topics_with_several_logs(states: Iterable[EnumeratorState]) -> tuple[str, ...]:
    """Topics with more than one log in the commits, so that an offset may have two records."""
    ids: dict[str, tuple[set[str | None], set[str | None]]] = {}
    for state in states:
        for topic in {tp.topic for tp in state.position}:
            clusters, topic_ids = ids.setdefault(topic, (set(), set()))
            clusters.add(state.cluster_id)
            topic_ids.add(state.topic_ids.get(topic))
    return tuple(sorted(topic for topic, known in ids.items() if any(len(each - {None}) > 1 for each in known)))


def find_duplicates(
    table: DataFrame,
    columns: RecordColumns,
    splits: Iterable[KafkaPartitionSplit] | None,
    leave_out: Sequence[str] = (),
) -> Duplicates:
    """Counts duplicates of splits, or of all rows, in one pass over three columns; ignores rows without an offset."""
    from pyspark.sql import functions as f

    if splits is not None:
        table = table.where(covering_predicate(splits, columns) or "false")
    if leave_out:
        table = table.where(~f.col(quoted(columns.topic)).isin(list(leave_out)))
    keys = [f.col(quoted(name)).alias(alias) for name, alias in zip(columns, RecordColumns._fields, strict=True)]
    counted = table.select(*keys).dropna().groupBy(*RecordColumns._fields).agg(f.count(f.lit(1)).alias("copies"))
    (found,) = counted.agg(*_copies(f.struct(*RecordColumns._fields))).collect()
    rows, records, surplus, one = found
    return Duplicates(rows, records, surplus, None if one is None else f"{one[0]}-{one[1]} offset {one[2]}")


def _copies(example: Column) -> list[Column]:
    """Of groups with a number of `copies`: all copies, the groups with several, their surplus, and an example."""
    from pyspark.sql import functions as f

    copies = f.col("copies")
    is_double = copies > 1
    counted = (copies, f.when(is_double, 1), f.when(is_double, copies - 1))
    return [*(f.coalesce(f.sum(each), f.lit(0)) for each in counted), f.min(f.when(is_double, example))]


@dataclass(frozen=True)
class KeysSeen:
    """Result of a check of all rows."""

    rows: int
    # With a null in a key column.
    null_rows: int
    # Keys with several rows; a null equals a null.
    duplicate_keys: int
    surplus: int
    # Records that two rows of one key come from.
    example: str | None


def look_at_keys(table: DataFrame, key: Sequence[str], columns: RecordColumns) -> KeysSeen:
    """Counts rows without a whole key, and keys with several rows, in one pass."""
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)).alias(f"key_{index}") for index, name in enumerate(key)]
    record = place(*columns)
    names = [f"key_{index}" for index in range(len(key))]
    lacks = f.lit(False)
    for name in names:
        lacks |= f.col(name).isNull()
    counted = (
        table.select(*keys, record.alias("record"))
        .groupBy(*names)
        .agg(f.count(f.lit(1)).alias("copies"), f.min("record").alias("one"), f.max("record").alias("other"))
    )
    null_rows = f.coalesce(f.sum(f.when(lacks, f.col("copies"))), f.lit(0))
    (found,) = counted.agg(*_copies(f.struct("one", "other")), null_rows).collect()
    rows, doubled, surplus, two, nulls = found
    return KeysSeen(rows, nulls, doubled, surplus, None if two is None else f"{two['one']} and {two['other']}")


@dataclass(frozen=True)
class HistorySeen:
    """Result of a look at the history of all keys."""

    rows: int
    # Rows that are valid until after the next one of their key begins, or that end before they begin, or whose
    # `is_current` contradicts this.
    overlaps: int
    # The record that one of them comes from.
    example: str | None


def look_at_history(table: DataFrame, key: Sequence[str], columns: RecordColumns) -> HistorySeen:
    """Counts rows of a history that contradict each other, in one pass."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)) for name in key]
    since, until = f.col(VALID_FROM), f.col(VALID_TO)
    in_order = Window.partitionBy(*keys).orderBy(since, until.asc_nulls_last(), f.col(quoted(columns.offset)))
    following = f.lead(f.struct(since)).over(in_order)[VALID_FROM]
    is_wrong = (
        since.isNull()
        | f.coalesce(until < since, f.lit(False))
        | (following.isNotNull() & f.coalesce(following < until, f.lit(True)))
        | ~f.coalesce(f.col(IS_CURRENT) == until.isNull(), f.lit(False))
    )
    (found,) = (
        table.select(is_wrong.alias("is_wrong"), place(*columns).alias("record"))
        .agg(
            f.count(f.lit(1)), f.count(f.when(f.col("is_wrong"), 1)), f.min(f.when(f.col("is_wrong"), f.col("record")))
        )
        .collect()
    )
    return HistorySeen(*found)
