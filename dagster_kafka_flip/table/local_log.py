"""Reads a table's log without Spark, if its files are on this machine.

Only verifies that a recorded position is still valid, or that nobody has written since. Anything unclear counts as
unknown, and Spark reads the table instead.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.table.history import Commit, Effect, effect_of
from dagster_kafka_flip.table.store_lock import local_path

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.source.state import EnumeratorState

# With more commits, Spark reads the log.
_MOST_COMMITS = 50
_LARGEST_COMMIT = 16 * 1024 * 1024

_LEAVES_POSITION = frozenset({Effect.APPENDS, Effect.KEEPS_ROWS, Effect.CHANGES_ROWS})


def standing_at(
    location: str, stream: str, state: EnumeratorState, anchor_version: int, table_version: int, table_rows: int | None
) -> tuple[int, int | None] | None:
    """Returns the newest version of a table and its rows, if a stream's recorded position is still valid.

    Args:
        location: The table's location.
        stream: Id of the stream.
        state: The recorded state.
        anchor_version: Version of the commit that defined the position.
        table_version: The table's newest version at that time.
        table_rows: The table's rows at that time, if known.

    Returns:
        The version, and the rows if known. None if the log is not accessible, does not show the position, or has later
        commits that may have changed it.
    """
    table = local_path(location)
    if table is None:
        return None
    log = table / "_delta_log"
    try:
        if not _shows(log, stream, state, anchor_version) or not _file(log, table_version).is_file():
            return None
        version, rows = table_version, table_rows
        while _file(log, version + 1).is_file():
            version += 1
            commit = _commit(log, version)
            if commit is None or version - table_version > _MOST_COMMITS:
                return None
            document = commit.document()
            effect = effect_of(commit)
            if (document is None and effect not in _LEAVES_POSITION) or (document and document.stream == stream):
                return None
            added = 0 if effect is Effect.KEEPS_ROWS else commit.rows_gained
            rows = None if rows is None or added is None or effect is Effect.CHANGES_ROWS else rows + added
    except (OSError, ValueError, DocumentVersionError):
        return None
    return version, rows


def is_newest(location: str, version: int) -> bool:
    """Whether a table's log is on this machine, and has a version and none after it.

    Args:
        location: The table's location.
        version: The version.
    """
    table = local_path(location)
    if table is None:
        return False
    log = table / "_delta_log"
    try:
        return _file(log, version).is_file() and not _file(log, version + 1).is_file()
    except OSError:
        return False


def commits_between(location: str, first: int, last: int) -> list[Commit] | None:
    """Reads commits from a table's log, if it is on this machine.

    Args:
        location: The table's location.
        first: The first version.
        last: The last version.

    Returns:
        The commits by version; None if the log is elsewhere, or one of them is gone or unclear.
    """
    table = local_path(location)
    if table is None:
        return None
    try:
        found = [_commit(table / "_delta_log", version) for version in range(first, last + 1)]
    except (OSError, ValueError):
        return None
    known = [commit for commit in found if commit is not None]
    return known if len(known) == len(found) else None


def _shows(log: Path, stream: str, state: EnumeratorState, anchor_version: int) -> bool:
    """Whether the commit that defined the position exists: the table may have been replaced by another one."""
    commit = _commit(log, anchor_version)
    if commit is None:
        return False
    document = commit.document()
    if document is None:
        return effect_of(commit) is Effect.RESTORES
    return document.stream == stream and document.state == state


def _file(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _commit(log: Path, version: int) -> Commit | None:
    file = _file(log, version)
    if not file.is_file() or file.stat().st_size > _LARGEST_COMMIT:
        return None
    with file.open(encoding="utf-8") as lines:
        info: Any = next((action for line in lines if (action := json.loads(line).get("commitInfo"))), None)
    if not isinstance(info, dict):
        return None
    found: dict[str, Any] = {**info}
    return Commit(
        version=version,
        operation=str(found.get("operation")),
        parameters={
            name: None if value is None else str(value)
            for name, value in (found.get("operationParameters") or {}).items()
        },
        metrics={name: str(value) for name, value in (found.get("operationMetrics") or {}).items()},
        user_metadata=found.get("userMetadata"),
        timestamp_ms=found.get("timestamp"),
        engine=found.get("engineInfo"),
    )
