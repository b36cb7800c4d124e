"""Reads a table's history: its commits, newest first, a few at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.runtime.jars import hadoop_version
from dagster_kafka_flip.table.history import Commit
from dagster_kafka_flip.table.retries import retries
from dagster_kafka_flip.table.spark_error import is_not_there, is_sparks_own, missing_file_system, telling_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_FIRST_PAGE = 10

# Which artifact of Hadoop brings the file system of a scheme.
_FILE_SYSTEMS = {
    "s3": "hadoop-aws",
    "s3a": "hadoop-aws",
    "s3n": "hadoop-aws",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "wasb": "hadoop-azure",
    "wasbs": "hadoop-azure",
}


class TableNotThereError(Exception):
    """There is no such table."""


def commits_of(spark: SparkSession, target: DeltaTarget) -> Iterator[Commit]:
    """A table's commits, newest first. Versions that come in meanwhile are left out.

    Args:
        spark: To ask with.
        target: The table.

    Raises:
        TableNotThereError: There is no such table.
        TableError: The history can't be read.
    """

    def read(limit: int) -> list[Commit]:
        try:
            return retries(_logger, f"reading the history of {target}")(_read_page, spark, target, limit)
        except Exception as error:
            if not is_sparks_own(error):
                raise
            msg = (
                f"the history of the table {target} can't be read: {telling_line(error)}. Check the table's "
                "name, and whether this machine reaches its store or its catalog; then run again"
            )
            raise TableError(msg) from error

    return paged(read)


def paged(page_of: Callable[[int], Sequence[Commit]], first_page: int = _FIRST_PAGE) -> Iterator[Commit]:
    """The commits of a history that can only be asked for its newest ones, each once, newest first.

    Args:
        page_of: Gives as many of the newest commits as it is told.
        first_page: How many to ask for first; then ten times as many each time.
    """
    oldest: int | None = None
    limit = first_page
    while oldest is None or oldest > 0:
        page = page_of(limit)
        # Commits that came in since the first page move the others further back.
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
                # As a number: a timestamp would come back in whatever time zone Python runs in.
                "unix_millis(timestamp) AS timestamp_ms",
            )
            .collect()
        )
    except Exception as error:
        if is_not_there(error):
            raise TableNotThereError from error
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
    """What to do where Spark lacks the classes of a store."""
    if target.is_path:
        # The classes of some are named otherwise.
        scheme = target.location.partition(":")[0].lower()
    version = hadoop_version()
    package = _FILE_SYSTEMS.get(scheme)
    if package is None:
        return (
            f"the table {target} can't be reached: Spark has no file system for {scheme}:. Nothing was read. Correct "
            "the scheme, or add the Maven artifact with its file system: SparkResource(packages=[...])"
        )
    as_s3a = "" if scheme == "s3a" or package != "hadoop-aws" else " and name the table with s3a://"
    return (
        f"the table {target} can't be reached: Spark has no file system for {scheme}:, because the jar {package} is "
        f'not there. Nothing was read. Add it: SparkResource(packages=["org.apache.hadoop:{package}:{version}"])'
        f"{as_s3a}; start a server of Spark Connect with it"
    )
