"""Commits as `DESCRIBE HISTORY` shows them, for tests of the walk."""

from __future__ import annotations

from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.document import CommitDocument


def state_at(version: int) -> EnumeratorState:
    """The position that the stream's commit with this version fixes."""
    return EnumeratorState({TopicPartition("t", 0): version * 10})


def document_of(
    version: int,
    *,
    stream: str = "main",
    base: int | None = None,
    rows_before: int | None = None,
    anchor: int | None = None,
    after: str | None = None,
) -> CommitDocument:
    """The document of a stream's commit, planned at the version before it unless told otherwise."""
    base = version - 1 if base is None else base
    anchor = base if anchor is None else anchor
    return CommitDocument(
        stream=stream,
        attempt=f"attempt-{version}",
        run_id="run",
        base_version=base,
        anchor_version=anchor,
        splits=(),
        state=state_at(version),
        rows_before=rows_before,
        after=after,
    )


def own(
    version: int,
    *,
    rows: int = 1,
    stream: str = "main",
    base: int | None = None,
    rows_before: int | None = None,
    operation: str = "WRITE",
    anchor: int | None = None,
    after: str | None = None,
) -> Commit:
    """A commit that carries a stream's document."""
    document = document_of(version, stream=stream, base=base, rows_before=rows_before, anchor=anchor, after=after)
    return Commit(version, operation, {"mode": "Append"}, {"numOutputRows": str(rows)}, document.to_text())


def foreign(
    version: int, operation: str | None, metrics: dict[str, int] | None = None, /, **parameters: str | None
) -> Commit:
    """A commit of somebody else."""
    shown = {name: str(number) for name, number in (metrics or {}).items()}
    return Commit(version, operation, parameters, shown)


def append(version: int, rows: int = 1) -> Commit:
    """An append of somebody else."""
    return foreign(version, "WRITE", {"numOutputRows": rows}, mode="Append", predicate="[]")


def create(version: int = 0) -> Commit:
    """The creation of an empty table."""
    return foreign(version, "CREATE TABLE")


def restore(version: int, to: int) -> Commit:
    """A RESTORE to a version."""
    return foreign(version, "RESTORE", version=str(to), timestamp=None)
