"""A table's id, partition columns and properties."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.local_files import is_local
from dagster_kafka_flip.table.local_log import TableDetails, details_at
from dagster_kafka_flip.table.retries import answered
from dagster_kafka_flip.table.spark_error import is_sparks_own
from dagster_kafka_flip.table.store_errors import CHECK_ACCESS, with_advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def details_of(spark: SparkSession, target: DeltaTarget) -> TableDetails:
    """Returns a table's details, as of now.

    Spark's way counts the table's files, which is a job of its own.

    Args:
        spark: The Spark session.
        target: The table.

    Raises:
        TableError: It is not there, or can't be described.
    """
    if is_local(spark, target) and (found := details_at(target.location)):
        return found[1]
    # SHOW TBLPROPERTIES hides what looks like a secret or an address: a topic's id may have "url" in it.
    row = detail_of(spark, target, "id", "partitionColumns", "properties")
    return TableDetails(str(row["id"]), tuple(row["partitionColumns"]), dict(row["properties"] or {}))


def detail_of(spark: SparkSession, target: DeltaTarget, *columns: str) -> Any:
    """Returns columns of Delta's description of a table.

    Raises:
        TableError: It is not there, or can't be described.
    """
    (row,) = described(target, lambda: spark.sql(f"DESCRIBE DETAIL {target.identifier}").select(*columns).collect())
    return row


def described(target: DeltaTarget, describe: Callable[[], _T]) -> _T:
    """Asks Spark about a table that is there, and again after transient errors of its store or its catalog.

    Args:
        target: The table.
        describe: Asks.

    Raises:
        TableError: Spark's error, and what to do.
    """
    try:
        return answered(_logger, f"describing {target}", describe)
    except Exception as error:
        if not is_sparks_own(error):
            raise
        msg = f"the table {target} can't be described: {with_advice(error, CHECK_ACCESS)}"
        raise TableError(msg) from error
