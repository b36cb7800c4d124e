"""Keeping two writers apart on stores where Delta alone does not."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from filelock import FileLock

from dagster_kafka_flip.errors import TableError, UnsafeStoreError

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

_PLAIN_S3 = frozenset({"s3", "s3a", "s3n"})
_SINGLE_DRIVER = "S3SingleDriverLogStore"


@contextlib.contextmanager
def store_lock(location: str, *, is_remote: bool) -> Generator[None]:
    """Holds an operating system's lock on a local table, so that only one process at a time writes to it.

    On a local file system Delta's "rename if absent" is not atomic across processes: two of them can both believe that
    they made the same version. On other stores this does nothing.

    Args:
        location: The table's location, as a path or a URI.
        is_remote: Whether a Spark Connect server does the writing, whose file system may be another one. Then its own
            JVM keeps writers apart, and the lock is taken only where the path is visible here.

    Raises:
        TableError: The lock's file can't be opened.
    """
    path = local_path(location)
    if path is None or (is_remote and not path.parent.is_dir()):
        yield
        return
    # Two spellings of one path, through a link or with `..`, have to meet at one lock.
    path = Path(os.path.realpath(os.path.normpath(path)))
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.parent / f".{path.name}.dagster-kafka-flip.lock"
    # Not of one thread alone: a write that outlives an interrupt lets go of it, and not the thread that took it.
    lock = FileLock(file, mode=_mode_in(path.parent), thread_local=False)
    try:
        _refuse_a_link(file)
        lock.acquire()
    except OSError as error:
        msg = (
            f"the table {location} can't be locked, so nothing was written: {file}: {error.strerror or error}"
            f"{_owner(file)}. Whoever may write to the table has to be able to write to this file, which is always "
            "empty: change its owner or its mode, or remove it while no run writes to the table"
        )
        raise TableError(msg) from error
    try:
        yield
    finally:
        lock.release()


def _refuse_a_link(file: Path) -> None:
    if file.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which could lead the lock to any file")


def _mode_in(folder: Path) -> int:
    """Whoever may make files in the table's folder may take the lock, whatever the umask of its first user."""
    return 0o644 | (folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _owner(file: Path) -> str:
    try:
        status = file.lstat()
    except OSError:
        return ""
    return f" (user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})"


def local_path(location: str) -> Path | None:
    """A table's location as a path on this machine; None if it is on another file system.

    Args:
        location: A path or a URI.
    """
    parsed = urlparse(location)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    # In a path '%', '#' and '?' are letters like any other.
    return None if parsed.scheme else Path(location)


def check_store(spark: SparkSession, location: str, *, single_writer: bool) -> None:
    """Refuses a store that can't keep two writers apart, unless there is only one.

    Args:
        spark: For its `spark.delta.logStore` settings.
        location: The table's location.
        single_writer: Whether the user said that there is only one writer.

    Raises:
        UnsafeStoreError: It is plain S3, with neither a log store for several writers nor that word.
    """
    scheme = urlparse(location).scheme
    if scheme not in _PLAIN_S3 or single_writer:
        return
    log_store = spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None) or spark.conf.get(
        "spark.delta.logStore.class", None
    )
    if log_store is None or log_store.endswith(_SINGLE_DRIVER):
        msg = (
            f"the table {location} lies on S3 with Delta's default log store, under which two runs at once can "
            "overwrite each other's commits. Either set single_writer=True and give the asset a pool with the limit 1, "
            f"or set spark.delta.logStore.{scheme}.impl to a log store for several writers, such as "
            "io.delta.storage.S3DynamoDBLogStore"
        )
        raise UnsafeStoreError(msg)
