"""Checks that something keeps two writers of a table apart, where the store doesn't."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlparse

from dagster_kafka_flip.errors import UnsafeStoreError
from dagster_kafka_flip.runtime.isolated_session import new_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_S3 = frozenset({"s3", "s3a", "s3n"})

# Where Delta's choice for the scheme creates a commit in one step or not at all: by a rename, or by GCS's precondition.
_ATOMIC = frozenset({"", "file", "hdfs", "viewfs", "webhdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs", "dbfs"})

# Delta's own log stores for others, which it documents as safe, and which it uses only where they are set.
_LOG_STORES = {"cos": "io.delta.storage.IBMCOSLogStore", "oci": "io.delta.storage.OracleCloudLogStore"}

# Delta 4.0 documents these for several writers. Exactly this log store: another store's own, such as HDFSLogStore,
# would overwrite commits on S3.
_LOG_STORE = "io.delta.storage.S3DynamoDBLogStore"
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator-preview"
_DYNAMODB = "dynamodb"


def check_writers(
    spark: SparkSession,
    location: str,
    *,
    single_writer: bool,
    properties: Callable[[], Mapping[str, str] | None],
) -> None:
    """Rejects a table unless its store, or something else, keeps two writers apart, or there is only one.

    Args:
        spark: The session that writes.
        location: The table's location.
        single_writer: Whether the user confirmed that there is only one writer.
        properties: Gives the table's properties; None if there is no table yet.

    Raises:
        UnsafeStoreError: Two writers could overwrite each other's commits.
    """
    scheme = urlparse(location).scheme.lower()
    if scheme in _ATOMIC or single_writer:
        return
    log_store = _log_store(spark, scheme)
    if log_store == (_LOG_STORE if scheme in _S3 else _LOG_STORES.get(scheme, "")):
        return
    if scheme not in _S3:
        known = _LOG_STORES.get(scheme)
        or_set = "" if known is None else f"; or start Spark with spark.delta.logStore.{scheme}.impl={known}"
        msg = (
            f"the table {location} is on {scheme}://, and it is unknown whether two concurrent runs could overwrite "
            "each other's commits there. Nothing was written. Set single_writer of its DeltaTarget (or "
            f"DeadLetters) to true, and give its runs a pool with the limit 1{or_set}"
        )
        raise UnsafeStoreError(msg)
    found = properties()
    if found is None:
        msg = (
            f"the table {location} is on S3 and does not exist yet, and nothing prevents two runs from creating it at "
            "once: the rows of one could be lost. Nothing was written. Set single_writer of its DeltaTarget (or "
            "DeadLetters) to true, and let one run create it. Then leave it set, with a limit of 1 on its runs' pool; "
            f"or remove it, if the table has the property {_COORDINATOR}={_DYNAMODB}"
        )
        raise UnsafeStoreError(msg)
    coordinator = found.get(_COORDINATOR)
    if coordinator == _DYNAMODB:
        return
    now = f" (its {coordinator} is not known to keep two runs apart)" if coordinator else ""
    msg = (
        f"the table {location} is on S3, where two concurrent runs can overwrite each other's commits. Nothing was "
        "written. Set single_writer of its DeltaTarget (or DeadLetters) to true, and give its runs a pool with the "
        f"limit 1; or give the table a commit coordinator, by its property {_COORDINATOR}={_DYNAMODB}{now}"
    )
    raise UnsafeStoreError(msg)


def _log_store(spark: SparkSession, scheme: str) -> str | None:
    """The log store that Delta uses for a scheme, as set at Spark's start; None for its own choice."""
    names = ("spark.delta.logStore.class", f"spark.delta.logStore.{scheme}.impl")
    if not any(spark.conf.get(name, None) for name in names):
        return None
    # Delta does not look at what is set in a session later, as by a Connect client.
    with new_session(spark) as started:
        return next(filter(None, (started.conf.get(name, None) for name in names)), None)
