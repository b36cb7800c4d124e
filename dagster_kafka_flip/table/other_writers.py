"""Detects other writers of the same records: two streams, or a stream and windows in one table. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableChangedError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.mode import written
from dagster_kafka_flip.table.windows_document import WINDOWS_PROPERTY

if TYPE_CHECKING:
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument


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
    """Number of offsets that two batches both read."""
    ranges = {split.topic_partition: (split.starting_offset, split.stopping_offset) for split in other.splits}
    return sum(
        max(0, min(split.stopping_offset, stop) - max(split.starting_offset, start))
        for split in document.splits
        for start, stop in [ranges.get(split.topic_partition, (0, 0))]
    )


def check_alone(commit: Commit, document: CommitDocument, version: int, table: str) -> None:
    """Checks that a commit between the reading of the position and a batch's commit is not of the same records.

    On a store without a lock, this can happen after the check before the write.

    Args:
        commit: The commit.
        document: The document of the batch.
        version: The version of the batch.
        table: The table's name, for the message.

    Raises:
        TableChangedError: It is.
    """
    way_out = (
        f"RESTORE the table to version {version - 1}, which removes this batch; then use another table for one of the "
        "two"
    )
    other = commit.document()
    if other is None:
        if makes_windows(commit):
            msg = (
                f"version {commit.version} wrote windows to {table}, or set it up for windows, while the stream "
                f"{document.stream!r} wrote its batch (version {version}): the table may hold duplicates. {way_out}"
            )
            raise TableChangedError(msg)
        return
    both = shared_logs(document, other)
    if other.key or document.key:
        msg = (
            f"versions {commit.version} (the stream {other.stream!r}, {written(other.mode)}) and {version} (the stream "
            f"{document.stream!r}, {written(document.mode)}) of the table {table} were written at once, and a table "
            f"whose rows have a key belongs to one stream. {way_out}"
        )
        raise TableChangedError(msg)
    if both:
        more = f" (and {counted(len(both) - 1, 'more topic partition')})" if len(both) > 1 else ""
        msg = (
            f"versions {commit.version} (the stream {other.stream!r}) and {version} (the stream {document.stream!r}) "
            f"of the table {table} both contain {both[0]}{more}, and the later one was planned before the earlier one "
            f"was committed: up to {counted(_doubled(document, other), 'record')} of these two batches may be there "
            f"twice. {way_out}"
        )
        raise TableChangedError(msg)
