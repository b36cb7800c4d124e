"""A table's id, partition columns and properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.table.local_files import is_local
from dagster_kafka_flip.table.local_log import TableDetails, details_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget


def details_of(spark: SparkSession, target: DeltaTarget) -> TableDetails:
    """Returns a table's details, as of now.

    Spark's way counts the table's files, which is a job of its own.

    Args:
        spark: The Spark session.
        target: The table. There must be one: Spark raises errors of its own.
    """
    if is_local(spark, target) and (found := details_at(target.location)):
        return found[1]
    # SHOW TBLPROPERTIES hides what looks like a secret or an address: a topic's id may have "url" in it.
    (row,) = spark.sql(f"DESCRIBE DETAIL {target.identifier}").select("id", "partitionColumns", "properties").collect()
    return TableDetails(str(row["id"]), tuple(row["partitionColumns"]), dict(row["properties"] or {}))
