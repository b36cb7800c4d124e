"""Runs a query once and keeps its rows on the executors' disks, with what it observes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.remote import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kept_rows(rows: DataFrame) -> DataFrame:
    """Runs a query once, and returns its rows as they were then. They are kept until nothing refers to them.

    `persist` is not enough: after the loss of an executor rows are computed again, and may differ.
    """
    from pyspark import StorageLevel

    if not is_remote(rows):
        return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    from pyspark.sql.connect.plan import Checkpoint

    # As localCheckpoint does it, which drops what the query observes (Spark 4.0 to 4.2).
    client: Any = rows.sparkSession.client
    plan: Any = vars(rows)["_plan"]
    command = Checkpoint(child=plan, local=True, eager=True, storage_level=StorageLevel.DISK_ONLY).command(client)
    _, properties, _ = client.execute_command(command, plan.observations)
    return properties["checkpoint_command_result"]
