"""Keeps two writers of a table apart on stores where Delta does not, and checks where something else must."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from filelock import FileLock, Timeout

from dagster_kafka_flip.errors import TableError, UnsafeStoreError
from dagster_kafka_flip.runtime.isolated_session import new_session
from dagster_kafka_flip.telemetry.repeatedly import said_while_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

# A write may take long and others wait for it, but not for a hanging process.
_PATIENCE_SECONDS = 2 * 3600.0

_REFUSED = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP)


@contextlib.contextmanager
def store_lock(location: str, *, is_remote: bool) -> Generator[None]:
    """Holds an operating system lock on a local table, so that only one process at a time writes to it.

    On a local file system, Delta's "rename if absent" is not atomic across processes: two can both create the same
    version. Does nothing on other stores. A Spark Connect server may write to another file system: its own JVM
    serializes writers, and the lock is only used if the path exists here.
    """
    path = local_path(location)
    if path is None or (is_remote and not path.parent.is_dir()):
        yield
        return
    # Different spellings of a path, through a link or with `..`, must use the same lock.
    path = Path(os.path.realpath(os.path.normpath(path)))
    file = path.parent / f".{path.name}.dagster-kafka-flip.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Every writer of the table's folder may use the lock, regardless of the first user's umask.
        mode = 0o644 | (path.parent.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        # Not per thread: after an interrupt, the write's thread releases the lock, not the thread that took it.
        lock = FileLock(file, mode=mode, thread_local=False)
        _make(file, mode)
        _acquire(lock, file, location)
    except OSError as error:
        raise TableError(
            f"the table {location} can't be locked: {file}: {error.strerror or error}",
            _advice(error, file),
        ) from error
    try:
        yield
    finally:
        lock.release()


def _make(file: Path, mode: int) -> None:
    if file.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which could point to any file")
    # FileLock would wait forever if the file can't be created, such as in /proc.
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def _acquire(lock: FileLock, file: Path, location: str) -> None:
    try:
        with said_while_waiting(_logger, lambda: f"another process is writing to {location}; fuser {file} shows it"):
            lock.acquire(timeout=_PATIENCE_SECONDS)
    except Timeout:
        raise TableError(
            f"the table {location} has been locked by another process for {_PATIENCE_SECONDS / 60:.0f} min, so "
            "nothing was written",
            f"Check whether that run hangs (fuser {file} shows its process), end it, and run again; the lock ends with "
            "the process",
        ) from None


def _advice(error: OSError, file: Path) -> str:
    if error.errno not in _REFUSED:
        return "Correct this, then run again"
    if not os.path.lexists(file):
        # Unlike Path's methods, this is no error where this user may not look.
        folder = next(one for one in file.parents if os.path.isdir(one))  # noqa: PTH112
        return f"Every user that writes to the table needs write access to the folder {folder}"
    return (
        "Every user that writes to the table needs write access to this file, which is always empty: change its owner "
        "or its mode, or remove it while no run writes to the table"
    )


def local_path(location: str) -> Path | None:
    parsed = urlparse(location)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    # In a path, '%', '#' and '?' are ordinary characters.
    return None if parsed.scheme else Path(location)


_S3 = frozenset({"s3", "s3a", "s3n"})

# Where Delta's choice for the scheme creates a commit in one step or not at all: by a rename, or by GCS's precondition.
_ATOMIC = frozenset({"", "file", "hdfs", "viewfs", "webhdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs", "dbfs"})

# Delta's own log stores for others, which it documents as safe, and which it uses only where they are set.
_LOG_STORES = {"cos": "io.delta.storage.IBMCOSLogStore", "oci": "io.delta.storage.OracleCloudLogStore"}

# Delta 4.0 documents these for several writers. Exactly this log store: another store's own, such as HDFSLogStore,
# would overwrite commits on S3.
_LOG_STORE = "io.delta.storage.S3DynamoDBLogStore"
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator-preview"
_DYNAMODB = "dynamodb"


def check_writers(
    spark: SparkSession, location: str, *, single_writer: bool, properties: Callable[[], Mapping[str, str] | None]
) -> None:
    """Rejects a table unless its store, or something else, keeps two writers apart, or there is only one."""
    scheme = urlparse(location).scheme.lower()
    if scheme in _ATOMIC or single_writer:
        return
    log_store = _log_store(spark, scheme)
    if log_store == (_LOG_STORE if scheme in _S3 else _LOG_STORES.get(scheme, "")):
        return
    if scheme not in _S3:
        known = _LOG_STORES.get(scheme)
        or_set = "" if known is None else f"; or start Spark with spark.delta.logStore.{scheme}.impl={known}"
        raise UnsafeStoreError(
            f"the table {location} is on {scheme}://, and it is unknown whether two concurrent runs could overwrite "
            "each other's commits there",
            "Set single_writer of its DeltaTarget (or DeadLetters) to true, and give its runs a pool with the limit "
            f"1{or_set}",
        )
    found = properties()
    if found is None:
        raise UnsafeStoreError(
            f"the table {location} is on S3 and does not exist yet, and nothing prevents two runs from creating it at "
            "once: the rows of one could be lost",
            "Set single_writer of its DeltaTarget (or DeadLetters) to true, and let one run create it. Then leave it "
            "set, with a limit of 1 on its runs' pool; or remove it, if the table has the property "
            f"{_COORDINATOR}={_DYNAMODB}",
        )
    coordinator = found.get(_COORDINATOR)
    if coordinator == _DYNAMODB:
        return
    now = f" (its {coordinator} is not known to keep two runs apart)" if coordinator else ""
    raise UnsafeStoreError(
        f"the table {location} is on S3, where two concurrent runs can overwrite each other's commits",
        "Set single_writer of its DeltaTarget (or DeadLetters) to true, and give its runs a pool with the limit 1; or "
        f"give the table a commit coordinator, by its property {_COORDINATOR}={_DYNAMODB}{now}",
    )


def _log_store(spark: SparkSession, scheme: str) -> str | None:
    """The log store that Delta uses for a scheme, as set at Spark's start; None for its own choice."""
    names = ("spark.delta.logStore.class", f"spark.delta.logStore.{scheme}.impl")
    if not any(spark.conf.get(name, None) for name in names):
        return None
    # Delta does not look at what is set in a session later, as by a Connect client.
    with new_session(spark) as started:
        return next(filter(None, (started.conf.get(name, None) for name in names)), None)
