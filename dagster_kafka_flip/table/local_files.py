"""Whether a table's files are the same to this process as to Spark's driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.remote import is_remote
from dagster_kafka_flip.runtime.same_files import sees_same_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        msg = (
            f"the table {target} is a path on this machine, but Spark's default file system (fs.defaultFS) is {files}, "
            f"where it would look. Nothing was read or written. Write {files.rstrip('/')}{target.location}, or set "
            "fs.defaultFS to file:///"
        )
        raise ConfigurationError(msg)


def _default_files(spark: SparkSession) -> str:
    """Where Spark looks for paths without a scheme; empty if it can't be asked."""
    context: Any = spark.sparkContext
    try:
        # A cluster's configuration may send them to HDFS, and so may the session's settings.
        own = [value for name in _DEFAULT_FILES if (value := spark.conf.get(name, None)) is not None]
        return str(own[0] if own else context._jsc.hadoopConfiguration().get("fs.defaultFS"))  # noqa: SLF001
    except Exception:  # noqa: BLE001 - a Spark that is gone fails in many ways, and says so when it is asked next
        return ""
