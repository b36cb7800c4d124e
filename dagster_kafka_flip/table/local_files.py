"""Whether a table's files are the same to this process as to Spark's driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.remote import is_remote
from dagster_kafka_flip.runtime.same_files import sees_same_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget

# Hadoop's setting of the file system of paths without a scheme, and its former name.
_DEFAULT_FILES = ("fs.defaultFS", "fs.default.name")


def is_local(spark: SparkSession, target: DeltaTarget) -> bool:
    """Whether a table has a path that means the same files to Spark's driver as to this process.

    Args:
        spark: The Spark session. A Spark Connect server may be on another machine.
        target: The table.
    """
    if target.local_path is None:
        return False
    if is_remote(spark):
        return sees_same_files(spark)
    context: Any = spark.sparkContext
    try:
        # A cluster's configuration may send paths without a scheme to HDFS, and so may the session's settings.
        if any(spark.conf.get(name, None) is not None for name in _DEFAULT_FILES):
            return False
        return str(context._jsc.hadoopConfiguration().get("fs.defaultFS")).startswith("file:")  # noqa: SLF001
    except Exception:  # noqa: BLE001 - a Spark that is gone fails in many ways, and says so when it is asked next
        return False
