"""Reads a table's log without Spark, if its files are on this machine: in a millisecond instead of a Spark job.

Anything unclear counts as unknown, and Spark reads the table instead.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.errors import ConfigurationError, DocumentVersionError
from dagster_kafka_flip.runtime.remote import is_remote, sees_same_files
from dagster_kafka_flip.table.commit import Commit, Effect, effect_of
from dagster_kafka_flip.table.store_lock import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

# Hadoop's setting of the file system of paths without a scheme, and its former name.
_DEFAULT_FILES = ("fs.defaultFS", "fs.default.name")


def is_local(spark: SparkSession, target: DeltaTarget) -> bool:
    """Whether a table has a path that means the same files to Spark's driver as to this process."""
    if target.local_path is None:
        return False
    return sees_same_files(spark) if is_remote(spark) else _default_files(spark).startswith("file:")


def check_place(spark: SparkSession, target: DeltaTarget) -> None:
    """Refuses a path for which Spark looks elsewhere than the lock, and looks without Spark, which expect it here."""
    files = "" if target.local_path is None or is_remote(spark) else _default_files(spark)
    if files and not files.startswith("file:"):
        raise ConfigurationError(
            f"the table {target} is a path on this machine, but Spark's default file system (fs.defaultFS) is {files}, "
            "where it would look",
            f"Write {files.rstrip('/')}{target.location}, or set fs.defaultFS to file:///",
        )


def _default_files(spark: SparkSession) -> str:
    """Where Spark looks for paths without a scheme; empty if it can't be asked."""
    context: Any = spark.sparkContext
    try:
        # A cluster's configuration may send them to HDFS, and so may the session's settings.
        own = [value for name in _DEFAULT_FILES if (value := spark.conf.get(name, None)) is not None]
        return str(own[0] if own else context._jsc.hadoopConfiguration().get("fs.defaultFS"))  # noqa: SLF001
    except Exception:  # noqa: BLE001 - a Spark that is gone fails in many ways, and says so when it is asked next
        return ""


# With more commits, Spark reads the log.
_MOST_COMMITS = 50
_LARGEST_COMMIT = 16 * 1024 * 1024

_NAME = re.compile(r"(\d{20})\.(json|checkpoint\..+)")
# The folders of commits that a catalog knows before the log has them, in Delta's protocol and in its preview.
_STAGED = ("_staged_commits", "_commits")


class TableDetails(NamedTuple):
    """Some of what `DESCRIBE DETAIL` returns about a table."""

    id: str
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]


_LEAVES_POSITION = frozenset({Effect.APPENDS, Effect.KEEPS_ROWS, Effect.CHANGES_ROWS})


def version_if_still_valid(
    location: str, stream: str, state: EnumeratorState, anchor_version: int, table_version: int, table_rows: int | None
) -> tuple[int, int | None] | None:
    """Returns the newest version of a table and its rows, if a stream's recorded position is still valid.

    Returns:
        The version, and the rows if known. None if the log is not accessible, does not show the position, or has later
        commits that may have changed it.
    """
    log = _log(location)
    if log is None:
        return None
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
    """Whether a table's log is on this machine, and has a version and none after it."""
    log = _log(location)
    if log is None:
        return False
    try:
        return _file(log, version).is_file() and not _file(log, version + 1).is_file()
    except OSError:
        return False


def is_absent(location: str) -> bool:
    """Whether there is certainly no log at a location of this machine."""
    table = local_path(location)
    if table is None:
        return False
    try:
        (table / "_delta_log").stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def newest_commits(location: str, limit: int) -> list[Commit] | None:
    """Reads what `DESCRIBE HISTORY` returns about a table, if its log is on this machine.

    Returns:
        The newest commits, newest first; None if the log is elsewhere, or anything about it is unclear.
    """
    log = _log(location)
    if log is None:
        return None
    try:
        versions, checkpoints = _versions(log)
        first = newest = max(versions | checkpoints)
        while first - 1 in versions and newest - first + 1 < limit:
            first -= 1
        # Delta deletes old commits, oldest first, once a checkpoint has their files.
        is_cut = first > 0 and first - 1 not in versions
        if is_cut and (min(versions) < first or max(checkpoints, default=-1) < first - 1):
            return None
        found = [_commit(log, version) for version in range(first, newest + 1)]
    except (OSError, ValueError):
        return None
    known = [commit for commit in found if commit is not None]
    return _in_order_of_time(known)[::-1] if len(known) == len(found) else None


def details_at(location: str) -> tuple[int, TableDetails] | None:
    """Reads a table's newest version and its details, if its log is on this machine.

    Returns:
        Both; None if the log is elsewhere, or anything about it is unclear.
    """
    log = _log(location)
    if log is None:
        return None
    try:
        versions, checkpoints = _versions(log)
        newest = max(versions)
        if newest < max(checkpoints, default=-1):
            return None
        for version in range(newest, max(-1, newest - _MOST_COMMITS), -1):
            found = _metadata(log, version)
            if found is not None:
                return newest, TableDetails(
                    str(found["id"]), tuple(found["partitionColumns"]), dict(found["configuration"])
                )
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return None


def _metadata(log: Path, version: int) -> Any:
    """The table's metadata, if the files of a version have it."""
    checksum = log / f"{version:020}.crc"
    if checksum.is_file():
        # Delta writes it after the commit, with the metadata that the version has.
        return _action(checksum.read_text(encoding="utf-8"), "metadata")
    with _file(log, version).open(encoding="utf-8") as lines:
        return next((found for line in lines if '"metaData"' in line and (found := _action(line, "metaData"))), None)


def _action(line: str, name: str) -> Any:
    """A commit's action, if it has this name."""
    action = json.loads(line)
    if not isinstance(action, dict):
        raise ValueError("an action is a JSON object")  # noqa: TRY004 - as for a text that is not JSON
    return action.get(name)


def _log(location: str) -> Path | None:
    """A table's log; None if it is elsewhere, in part or in whole."""
    table = local_path(location)
    if table is None:
        return None
    log = table / "_delta_log"
    try:
        is_staged = any(any((log / name).iterdir()) for name in _STAGED if (log / name).is_dir())
    except OSError:
        return None
    return None if is_staged else log


def _versions(log: Path) -> tuple[set[int], set[int]]:
    """The versions that have a commit here, and those that have a checkpoint."""
    found = [match for name in os.listdir(log) if (match := _NAME.fullmatch(name)) is not None]  # noqa: PTH208 - a log may have 100,000 files
    return (
        {int(match[1]) for match in found if match[2] == "json"},
        {int(match[1]) for match in found if match[2] != "json"},
    )


def _in_order_of_time(commits: list[Commit]) -> list[Commit]:
    """Moves the time of a commit that seems older than the one before, by a clock that was set back, as Delta does."""
    found: list[Commit] = []
    for commit in commits:
        last = found[-1].timestamp_ms if found else None
        if last is not None and commit.timestamp_ms is not None and commit.timestamp_ms <= last:
            found.append(replace(commit, timestamp_ms=last + 1))
        else:
            found.append(commit)
    return found


def commits_between(location: str, first: int, last: int) -> list[Commit] | None:
    """Reads commits from a table's log, if it is on this machine.

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
    if not file.is_file() or (status := file.stat()).st_size > _LARGEST_COMMIT:
        return None
    with file.open(encoding="utf-8") as lines:
        info = next((found for line in lines if (found := _action(line, "commitInfo"))), None)
    if not isinstance(info, dict):
        return None
    found: dict[str, Any] = {**info}
    return Commit(
        version=version,
        operation=found.get("operation"),
        parameters={
            name: value if value is None else _text(value)
            for name, value in (found.get("operationParameters") or {}).items()
        },
        metrics={name: _text(value) for name, value in (found.get("operationMetrics") or {}).items()},
        user_metadata=found.get("userMetadata"),
        # Delta goes by the file's time, unless the table has a feature for times within commits.
        timestamp_ms=found.get("inCommitTimestamp") or status.st_mtime_ns // 1_000_000,
        engine=found.get("engineInfo"),
    )


def _text(value: Any) -> str:
    """A value as Delta shows it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
