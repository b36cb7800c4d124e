"""Who else lands in a table: two streams of the same records, or a stream beside windows, double each of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableChangedError
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.windows_document import WINDOWS_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.history import Commit


def shared_logs(document: CommitDocument, other: CommitDocument) -> list[TopicPartition]:
    """Topic partitions of a stream that another one reads as well."""
    theirs = other.state
    return sorted(
        tp for tp in document.state.position if tp in theirs.position and is_same_log(tp, theirs, document.state)
    )


def makes_windows(commit: Commit) -> bool:
    """Whether a commit makes a table one of windows, or lands some in it."""
    windows = commit.windows()
    if windows is not None:
        return windows.repairs is None
    return commit.operation == "SET TBLPROPERTIES" and WINDOWS_PROPERTY in (commit.parameters.get("properties") or "")


def _doubled(document: CommitDocument, other: CommitDocument) -> int:
    """Offsets that both of two batches have read, of the same topic partitions."""
    ranges = {split.topic_partition: (split.starting_offset, split.stopping_offset) for split in other.splits}
    return sum(
        max(0, min(split.stopping_offset, stop) - max(split.starting_offset, start))
        for split in document.splits
        for start, stop in [ranges.get(split.topic_partition, (0, 0))]
    )


def check_alone(since: Iterable[Commit], document: CommitDocument, version: int, table: str) -> None:
    """Makes sure that nobody else landed the same between the look at the position and the commit that rests on it.

    On a store without a lock that can happen after the look just before the write.

    Args:
        since: The commits since the look.
        document: The document of the commit.
        version: The commit's version.
        table: The table's name, for the message.

    Raises:
        TableChangedError: Somebody did.
    """
    way_out = (
        f"RESTORE the table to version {version - 1}, which takes this batch out again; then land one of the two in "
        "another table"
    )
    for commit in since:
        if not document.base_version < commit.version < version:
            continue
        other = commit.document()
        both = [] if other is None or other.stream == document.stream else shared_logs(document, other)
        if other is not None and both:
            more = f" (and {len(both) - 1} more topic partitions)" if len(both) > 1 else ""
            msg = (
                f"versions {commit.version} (the stream {other.stream!r}) and {version} (the stream "
                f"{document.stream!r}) of the table {table} are both of {both[0]}{more}, and the later one was planned "
                f"before the earlier one was there: up to {_doubled(document, other)} records are in the table twice "
                f"by these two batches. {way_out}"
            )
            raise TableChangedError(msg)
        if makes_windows(commit):
            msg = (
                f"version {commit.version} made {table} a table of windows, or landed some in it, while the stream "
                f"{document.stream!r} landed its batch (version {version}): records may be in the table "
                f"twice. {way_out}"
            )
            raise TableChangedError(msg)
