"""Reads a table's log without Spark, if its files are on this machine: in a millisecond instead of a Spark job.

Anything unclear counts as unknown, and Spark reads the table instead.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from dagster_kafka_flip.errors import ConfigurationError, DocumentVersionError
from dagster_kafka_flip.runtime.remote import is_remote, sees_same_files
from dagster_kafka_flip.table.commit import Commit, Effect, effect_of
from dagster_kafka_flip.table.store_lock import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

_P = ParamSpec("_P")
_T = TypeVar("_T")

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
_LEAVES_POSITION = frozenset({Effect.APPENDS, Effect.KEEPS_ROWS, Effect.CHANGES_ROWS})


class TableDetails(NamedTuple):
    """Some of what `DESCRIBE DETAIL` returns about a table."""

    id: str
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]


def _if_clear(read: Callable[Concatenate[Path, _P], _T]) -> Callable[Concatenate[str, _P], _T | None]:
    """Reads the log of the table at a location: None if it is elsewhere, also in part, or anything is unclear."""

    @functools.wraps(read)
    def told(location: str, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        if (table := local_path(location)) is None:
            return None
        log = table / "_delta_log"
        try:
            is_staged = any(any((log / name).iterdir()) for name in _STAGED if (log / name).is_dir())
            return None if is_staged else read(log, *args, **kwargs)
        except (OSError, ValueError, LookupError, TypeError, DocumentVersionError):
            return None

    return told


@_if_clear
def version_if_still_valid(
    log: Path, stream: str, state: EnumeratorState, anchor_version: int, table_version: int, table_rows: int | None
) -> tuple[int, int | None] | None:
    """The newest version of a table and its rows, if known; None if a stream's recorded position may have changed."""
    # The table may have been replaced by another one.
    anchor = _commit(log, anchor_version)
    document = anchor.document()
    is_there = effect_of(anchor) is Effect.RESTORES
    if document is not None:
        is_there = (document.stream, document.state) == (stream, state)
    if not is_there:
        return None
    version, rows = table_version, table_rows
    _file(log, version).stat()
    while _file(log, version + 1).is_file():
        version += 1
        commit = _commit(log, version)
        document, effect = commit.document(), effect_of(commit)
        is_left = effect in _LEAVES_POSITION if document is None else document.stream != stream
        if not is_left or version - table_version > _MOST_COMMITS:
            return None
        added = 0 if effect is Effect.KEEPS_ROWS else commit.rows_gained
        rows = None if rows is None or added is None or effect is Effect.CHANGES_ROWS else rows + added
    return version, rows


def is_absent(location: str) -> bool:
    """Whether there is certainly no log at a location of this machine."""
    if (table := local_path(location)) is None:
        return False
    try:
        (table / "_delta_log").stat()
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


@_if_clear
def newest_commits(log: Path, limit: int) -> list[Commit] | None:
    """The newest commits as `DESCRIBE HISTORY` returns them, newest first."""
    versions, checkpoints = _versions(log)
    first = newest = max(versions | checkpoints)
    while first - 1 in versions and newest - first + 1 < limit:
        first -= 1
    # Delta deletes old commits, oldest first, once a checkpoint has their files.
    is_cut = first > 0 and first - 1 not in versions
    if is_cut and (min(versions) < first or max(checkpoints, default=-1) < first - 1):
        return None
    found: list[Commit] = []
    for version in range(first, newest + 1):
        commit, last = _commit(log, version), found[-1].timestamp_ms if found else None
        # As Delta does, after a clock was set back.
        if last is not None and commit.timestamp_ms is not None and commit.timestamp_ms <= last:
            commit = replace(commit, timestamp_ms=last + 1)
        found.append(commit)
    return found[::-1]


@_if_clear
def commits_between(log: Path, first: int, last: int) -> list[Commit]:
    return [_commit(log, version) for version in range(first, last + 1)]


@_if_clear
def details_at(log: Path) -> tuple[int, TableDetails] | None:
    versions, checkpoints = _versions(log)
    newest = max(versions)
    if newest < max(checkpoints, default=-1):
        return None
    for version in range(newest, max(-1, newest - _MOST_COMMITS), -1):
        if (found := _metadata(log, version)) is not None:
            properties = dict(found["configuration"])
            return newest, TableDetails(str(found["id"]), tuple(found["partitionColumns"]), properties)
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
    action = json.loads(line)
    if not isinstance(action, dict):
        raise TypeError("an action is a JSON object")
    return action.get(name)


def _versions(log: Path) -> tuple[set[int], set[int]]:
    found = [match for name in os.listdir(log) if (match := _NAME.fullmatch(name)) is not None]  # noqa: PTH208 - a log may have 100,000 files
    return (
        {int(match[1]) for match in found if match[2] == "json"},
        {int(match[1]) for match in found if match[2] != "json"},
    )


def _file(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _commit(log: Path, version: int) -> Commit:
    file = _file(log, version)
    if (status := file.stat()).st_size > _LARGEST_COMMIT:
        raise ValueError("too large to be read here")
    with file.open(encoding="utf-8") as lines:
        info: Any = next((found for line in lines if (found := _action(line, "commitInfo"))), None)
    if not isinstance(info, dict):
        raise TypeError("it does not tell what it did")
    return Commit(
        version=version,
        operation=info.get("operation"),
        parameters={
            name: value if value is None else _text(value)
            for name, value in (info.get("operationParameters") or {}).items()
        },
        metrics={name: _text(value) for name, value in (info.get("operationMetrics") or {}).items()},
        user_metadata=info.get("userMetadata"),
        # Delta goes by the file's time, unless the table has a feature for times within commits.
        timestamp_ms=info.get("inCommitTimestamp") or status.st_mtime_ns // 1_000_000,
        engine=info.get("engineInfo"),
    )


def _text(value: Any) -> str:
    """A value as Delta shows it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
