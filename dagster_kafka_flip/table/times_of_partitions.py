"""Refuses to write TIMESTAMP partition columns where Delta would store wrong times.

Spark names the folder of a partition in the session's time zone, and Delta reads this name in the zone of the JVM that
writes. If the zones differ, other times are stored; if they have summer time, two hours of a year become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.table.local_files import is_local
from dagster_kafka_flip.table.spark_error import error_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.table.target import DeltaTarget

_SESSION_ZONE = "spark.sql.session.timeZone"
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00"})


def timestamps_among(schema: StructType, names: Collection[str]) -> list[str]:
    """The columns of the type TIMESTAMP among some of a table's columns.

    Args:
        schema: The table's columns.
        names: The names of some of them.
    """
    from pyspark.sql.types import TimestampType

    wanted = {name.lower() for name in names}
    return [
        field.name for field in schema if field.name.lower() in wanted and isinstance(field.dataType, TimestampType)
    ]


def check_times_of_partitions(
    spark: SparkSession, target: DeltaTarget, timestamps: Callable[[], Sequence[str]]
) -> None:
    """Checks that the times in a table's partition columns are stored as they are.

    Args:
        spark: The session that writes.
        target: The table.
        timestamps: Returns the names of its partition columns of the type TIMESTAMP.

    Raises:
        SparkSessionError: There is such a column, and the time zones of session and JVM are not both UTC.
    """
    # First the checks that need no query.
    if is_local(spark, target) and not timestamps():
        return
    zones = (spark.conf.get(_SESSION_ZONE) or "unknown", _zone_of_writers(spark))
    if _UTC.issuperset(zones):
        return
    names = timestamps()
    if not names:
        return
    msg = (
        f"the table {target} is partitioned by the TIMESTAMP {names[0]}, in which Delta would store wrong times: "
        f"{_SESSION_ZONE} is {zones[0]} and the time zone of Spark's JVM is {zones[1]}, and both must be UTC. Nothing "
        f"was written. Start Spark with {_SESSION_ZONE}=UTC, and with -Duser.timezone=UTC in "
        "spark.driver.extraJavaOptions and spark.executor.extraJavaOptions. Or partition a new table by a DATE"
    )
    raise SparkSessionError(msg)


def _zone_of_writers(spark: SparkSession) -> str:
    """The time zone of the JVM in which tasks run."""
    try:
        ((zone,),) = spark.sql("SELECT reflect('java.time.ZoneId', 'systemDefault')").collect()
    except Exception as error:  # noqa: BLE001 - a cluster may not allow this function
        return f"unknown ({error_summary(error)})"
    return str(zone)
