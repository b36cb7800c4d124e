"""The settings of a session that values, reads and writes rely on: a session with other ones is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.remote import is_remote
from dagster_kafka_flip.runtime.session import dead_spark_as_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SKIPS = ((), "Delta would skip writes in silence")
_LEAVES_OUT = (("false",), "Spark would leave out rows in silence")
_TAKES_OTHERWISE = (("false",), "Spark would understand conditions differently")
_OLD_DATES = (("CORRECTED", "EXCEPTION"), "dates before 1582-10-15 would change")

RELIED_ON: dict[str, tuple[tuple[str, ...], str]] = {
    "spark.databricks.delta.write.txnAppId": _SKIPS,
    "spark.databricks.delta.write.txnVersion": _SKIPS,
    "spark.databricks.delta.stalenessLimit": ((), "Delta would read a table as it was some time ago"),
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": (("true",), "rows outside of a window could land"),
    "spark.sql.files.ignoreMissingFiles": _LEAVES_OUT,
    "spark.sql.files.ignoreCorruptFiles": _LEAVES_OUT,
    "spark.sql.timeTravelVersionKey": (("versionAsOf",), "Spark would read other versions of a table"),
    "spark.sql.parser.escapedStringLiterals": _TAKES_OTHERWISE,
    "spark.sql.parser.quotedRegexColumnNames": _TAKES_OTHERWISE,
    "spark.sql.storeAssignmentPolicy": (("ANSI", "STRICT"), "values that don't fit a column would change"),
    "spark.sql.legacy.timeParserPolicy": (("CORRECTED", "EXCEPTION"), "2026-02-31 would become March 3"),
    "spark.sql.legacy.json.allowEmptyString.enabled": (("false",), "empty texts would become nulls"),
    "spark.sql.avro.datetimeRebaseModeInWrite": _OLD_DATES,
    "spark.sql.parquet.datetimeRebaseModeInRead": _OLD_DATES,
    # Its former name, which Spark still takes, unlike those of the others.
    "spark.sql.legacy.parquet.datetimeRebaseModeInRead": _OLD_DATES,
    "spark.sql.parquet.datetimeRebaseModeInWrite": _OLD_DATES,
    "spark.sql.parquet.int96RebaseModeInRead": _OLD_DATES,
    "spark.sql.parquet.int96RebaseModeInWrite": _OLD_DATES,
    "spark.sql.parquet.outputTimestampType": (("INT96", "TIMESTAMP_MICROS"), "times would lose their microseconds"),
}
"""The values that each may have, none if it must not be set, and what happens with another one."""


def check_settings(session: SparkSession) -> None:
    """Refuses a session with a setting that would change values, or which rows are read and written."""
    with dead_spark_as_error():
        # One request to a Connect server; where Spark is in this process, all of them take longer than these.
        found = (
            session.conf.getAll if is_remote(session) else {name: session.conf.get(name, None) for name in RELIED_ON}
        )
    for name, (values, otherwise) in RELIED_ON.items():
        value = found.get(name)
        if value is not None and value.upper() not in map(str.upper, values):
            raise ConfigurationError(
                f"{name} is {value}: {otherwise}",
                f"{f'Set it to {values[0]}' if values else 'Unset it'} for this session, where it is set: in Spark's "
                "config, its spark-defaults.conf, or a transform",
            )
