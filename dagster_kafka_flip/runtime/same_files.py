"""Whether a Spark Connect server, which may be on another machine, sees the files that this process sees."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.dagsterKafkaFlip.files"

# A file that is there on each Linux, and on no other file system.
_PROBE = "/proc/version"

_answers: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def files_setting() -> dict[str, str]:
    """The setting by which a server that this process starts says which files it sees; none if the system doesn't."""
    files = _files()
    return {} if files is None else {_SETTING: files}


def sees_same_files(server: SparkSession) -> bool:
    """Whether it is certain that a server sees this process's files. It is asked once for each session."""
    if server not in _answers:
        _answers[server] = False
        # A server that is gone fails in many ways, and says so when it is asked next.
        with contextlib.suppress(Exception):
            theirs = server.conf.get(_SETTING, None)
            _answers[server] = theirs is not None and theirs == _files() and _reads_local_files(server)
    return _answers[server]


def _reads_local_files(server: SparkSession) -> bool:
    """Whether a path without a scheme means a local file: settings, files and variables of Hadoop can change it."""
    return [file.partition("/")[0] for file in server.read.text(_PROBE).inputFiles()] == ["file:"]


def _files() -> str | None:
    """The start of the system, the mounts and the root folder; None where the system doesn't name them (Linux does).

    A container has mounts of its own, and a changed root folder is another one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        mounts = Path("/proc/self/ns/mnt").stat()
        root = os.open("/", os.O_RDONLY)
        try:
            of_root = Path(f"/proc/self/fdinfo/{root}").read_text(encoding="ascii")
            inode = os.fstat(root).st_ino
        finally:
            os.close(root)
        (mount,) = (line.split()[1] for line in of_root.splitlines() if line.startswith("mnt_id:"))
    except (OSError, ValueError):
        return None
    return f"{boot}-{mounts.st_ino}-{mount}-{inode}"
