"""Whether a Spark Connect server, which may be on another machine, sees the files that this process sees."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster_kafka_flip.runtime.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.dagsterKafkaFlip.files"

# Where Hadoop's configuration may be, by which a path without a scheme may mean another file system.
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_OF_HADOOP = "core-site.xml"
_DEFAULT_FILES = "spark.hadoop.fs.defaultFS"

_answers: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def files_setting() -> dict[str, str]:
    """The setting by which a server that this process starts says which files it sees; none if that is not certain."""
    files = _files()
    of_spark = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")
    if files is None or any(os.environ.get(name) for name in _HADOOP) or (of_spark / _OF_HADOOP).exists():
        return {}
    return {_SETTING: files}


def sees_same_files(server: SparkSession) -> bool:
    """Whether it is certain that a server sees this process's files. It is asked once for each session.

    Args:
        server: A session of Spark Connect.
    """
    if server not in _answers:
        _answers[server] = False
        # A server that is gone fails in many ways, and says so when it is asked next.
        with contextlib.suppress(Exception):
            theirs, default = server.conf.get(_SETTING, None), server.conf.get(_DEFAULT_FILES, None)
            _answers[server] = default is None and theirs is not None and theirs == _files()
    return _answers[server]


def _files() -> str | None:
    """The start of the system, the mounts and the root folder; None where the system doesn't name them (Linux does).

    A container has mounts of its own, and a changed root folder is another one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        mounts, root = Path("/proc/self/ns/mnt").stat(), Path("/").stat()
    except (OSError, ValueError):
        return None
    return f"{boot}-{mounts.st_ino}-{root.st_dev}-{root.st_ino}"
