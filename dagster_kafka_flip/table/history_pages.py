"""Reads a table's history in pages: its commits, newest first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.runtime.jars import hadoop_version
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.history import FIRST_PAGE
from dagster_kafka_flip.table.local_files import is_local
from dagster_kafka_flip.table.local_log import is_absent, newest_commits
from dagster_kafka_flip.table.retries import answered
from dagster_kafka_flip.table.spark_error import is_not_there, is_sparks_own, missing_file_system
from dagster_kafka_flip.table.store_errors import CHECK_ACCESS, with_advice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

# Hadoop artifact with the file system of each scheme.
_FILE_SYSTEMS = {
    "s3": "hadoop-aws",
    "s3a": "hadoop-aws",
    "s3n": "hadoop-aws",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "wasb": "hadoop-azure",
    "wasbs": "hadoop-azure",
}


class TableNotThereError(TableError):
    """The table does not exist: nobody has made it yet, or somebody dropped it."""

    def __init__(self, target: DeltaTarget) -> None:
        super().__init__(
            f"there is no Delta table {target} any more. Nothing was written. If it was dropped by mistake, put its "
            "folder back with its _delta_log; otherwise the next run creates a new table. Then run again"
        )


def commits_of(spark: SparkSession, target: DeltaTarget) -> Iterator[Commit]:
    """Yields a table's commits, newest first. Excludes versions that are created meanwhile.

    Raises:
        TableNotThereError: The table does not exist.
        TableError: The history can't be read.
    """
    here = is_local(spark, target)

    def read(limit: int) -> list[Commit]:
        if here and is_absent(target.location):
            raise TableNotThereError(target)
        found = newest_commits(target.location, limit) if here else None
        if found is not None:
            return found
        try:
            return answered(_logger, f"reading the history of {target}", lambda: _read_page(spark, target, limit))
        except Exception as error:
            if not is_sparks_own(error):
                raise
            msg = f"the history of the table {target} can't be read: {with_advice(error, CHECK_ACCESS)}"
            raise TableError(msg) from error

    return paged(read)


def paged(page_of: Callable[[int], Sequence[Commit]], first_page: int = FIRST_PAGE) -> Iterator[Commit]:
    """Yields all commits of a history that only returns its newest ones, without duplicates, newest first.

    Args:
        page_of: Returns the given number of newest commits.
        first_page: Size of the first page; each later one is ten times larger.
    """
    oldest: int | None = None
    limit = first_page
    while oldest is None or oldest > 0:
        page = page_of(limit)
        # Commits created since the first page shift the others back.
        fresh = [commit for commit in page if oldest is None or commit.version < oldest]
        yield from fresh
        if len(page) < limit:
            return
        if fresh:
            oldest = fresh[-1].version
        limit *= 10


def _read_page(spark: SparkSession, target: DeltaTarget, limit: int) -> list[Commit]:
    try:
        rows = (
            spark.sql(f"DESCRIBE HISTORY {target.identifier} LIMIT {limit}")
            .selectExpr(
                "version",
                "operation",
                "operationParameters",
                "operationMetrics",
                "userMetadata",
                "engineInfo",
                # As a number: a timestamp would be converted to Python's time zone.
                "unix_millis(timestamp) AS timestamp_ms",
            )
            .collect()
        )
    except Exception as error:
        if is_not_there(error):
            raise TableNotThereError(target) from error
        if (scheme := missing_file_system(error)) is not None:
            raise TableError(_no_file_system(target, scheme)) from error
        raise
    return [
        Commit(
            version=row["version"],
            operation=row["operation"],
            parameters=row["operationParameters"] or {},
            metrics=row["operationMetrics"] or {},
            user_metadata=row["userMetadata"],
            timestamp_ms=row["timestamp_ms"],
            engine=row["engineInfo"],
        )
        for row in rows
    ]


def _no_file_system(target: DeltaTarget, scheme: str) -> str:
    """Advice if Spark lacks a store's classes."""
    if target.is_path:
        # Some classes have other names.
        scheme = target.location.partition(":")[0].lower()
    version = hadoop_version()
    package = _FILE_SYSTEMS.get(scheme)
    if package is None:
        return (
            f"the table {target} can't be reached: Spark has no file system for {scheme}:. Nothing was read. Correct "
            "the scheme, or add the file system's Maven artifact to Spark's packages"
        )
    if package == "hadoop-aws" and scheme != "s3a":
        # The jar may be there: it brings a file system for s3a: alone.
        instead = "Name the table with s3a://" if target.is_path else "Give the catalog's locations s3a://"
        return (
            f"the table {target} can't be reached: Spark has no file system for {scheme}:. Nothing was read. "
            f"{instead}; or set spark.hadoop.fs.{scheme}.impl=org.apache.hadoop.fs.s3a.S3AFileSystem in Spark's "
            f'config. Either needs packages=["org.apache.hadoop:{package}:{version}"]; a Spark Connect server needs it '
            "at its start"
        )
    return (
        f"the table {target} can't be reached: Spark has no file system for {scheme}:, because the jar {package} is "
        f'missing. Nothing was read. Add it to Spark: packages=["org.apache.hadoop:{package}:{version}"]; a Spark '
        "Connect server needs it at its start"
    )
