"""Detects other writers of the same records: two streams, or a stream and windows in one table. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableChangedError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.windows_document import WINDOWS_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    return commit.operation == "SET TBLPROPERTIES" and WINDOWS_PROPERTY in (commit.parameters.get("properties") or "")


def _doubled(document: CommitDocument, other: CommitDocument) -> int:
    """Number of offsets that two batches both read."""
    ranges = {split.topic_partition: (split.starting_offset, split.stopping_offset) for split in other.splits}
    return sum(
        max(0, min(split.stopping_offset, stop) - max(split.starting_offset, start))
        for split in document.splits
        for start, stop in [ranges.get(split.topic_partition, (0, 0))]
    )


def check_alone(since: Iterable[Commit], document: CommitDocument, version: int, table: str) -> None:
    """Checks that no other writer wrote the same records between the reading of the position and the commit.

    On a store without a lock, this can happen after the check before the write.

    Args:
        since: The commits since the position was read.
        document: The document of the commit.
        version: The commit's version.
        table: The table's name, for the message.

    Raises:
        TableChangedError: Another writer did.
    """
    way_out = (
        f"RESTORE the table to version {version - 1}, which removes this batch; then use another table for one of the "
        "two"
    )
    for commit in since:
        if not document.base_version < commit.version < version:
            continue
        other = commit.document()
        both = [] if other is None or other.stream == document.stream else shared_logs(document, other)
        if other is not None and both:
            more = f" (and {counted(len(both) - 1, 'more topic partition')})" if len(both) > 1 else ""
            msg = (
                f"versions {commit.version} (the stream {other.stream!r}) and {version} (the stream "
                f"{document.stream!r}) of the table {table} both contain {both[0]}{more}, and the later one was "
                f"planned before the earlier one was committed: up to {counted(_doubled(document, other), 'record')} "
                f"of these two batches may be there twice. {way_out}"
            )
            raise TableChangedError(msg)
        if makes_windows(commit):
            msg = (
                f"version {commit.version} wrote windows to {table}, or set it up for windows, while the stream "
                f"{document.stream!r} wrote its batch (version {version}): the table may hold duplicates. {way_out}"
            )
            raise TableChangedError(msg)
