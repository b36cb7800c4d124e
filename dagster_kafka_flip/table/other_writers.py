"""Detects other writers of the same records: two streams, or a stream and windows in one table. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError, StreamOverlapError, TableChangedError, TableModeError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.next_step import AS_PRINTED, TOPIC, set_position
from dagster_kafka_flip.table.document import WINDOWS_PROPERTY
from dagster_kafka_flip.table.mode import written
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget


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
    """Checks that a stream may write to a table that another stream has written to."""
    if target.key or other.key:
        raise TableModeError(
            f"the stream {other.stream!r} writes to {target} with {written(other.mode)}, and the stream "
            f"{target.stream!r} has {written(target.mode)}",
            "A table whose rows have a key belongs to one stream: let one source read all topics, or use another table",
        )


def overlap(target: DeltaTarget, both: Sequence[TopicPartition], stream: str, since: str) -> StreamOverlapError:
    """Creates the error for overlapping streams."""
    more = f" (and {counted(len(both) - 1, 'more topic partition')})" if len(both) > 1 else ""
    return StreamOverlapError(
        f"{both[0]}{more}: the stream {stream!r} of the table {target} reads it {since}; the stream {target.stream!r} "
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
    # Ids with another slash belong to windows by offset, of an earlier version.
    forgotten = sorted(
        stream
        for application in versions
        if (stream := application.removeprefix(TRANSACTION_PREFIX)) not in known and "/" not in stream
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
    """Checks that a commit between the reading of the position and a batch's commit is not of the same records.

    On a store without a lock, this can happen after the check before the write.
    """
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
        more = f" (and {counted(len(both) - 1, 'more topic partition')})" if len(both) > 1 else ""
        raise TableChangedError(
            f"versions {commit.version} (the stream {other.stream!r}) and {version} (the stream {document.stream!r}) "
            f"of the table {table} both contain {both[0]}{more}, and the later one was planned before the earlier one "
            f"was committed: up to {counted(_doubled(document, other), 'record')} of these two batches may be there "
            f"twice",
            way_out,
        )
