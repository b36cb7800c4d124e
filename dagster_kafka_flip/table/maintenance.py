"""OPTIMIZE and VACUUM of a table, serialized with the runs that write to it, and safe for a stream's position."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import KafkaFlipError, PositionTooOldError, TableError, outcome
from dagster_kafka_flip.runtime.isolated_session import isolated_session
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.spark_error import told
from dagster_kafka_flip.table.table_port import guarded, or_failed

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.target import DeltaTarget

SHORTEST_RETENTION = timedelta(days=7)
"""Delta's own limit for VACUUM: a reader or a writer may need a file for that long after a commit removed it."""

# Delta ignores RETAIN from 4.1 on, and keeps files for delta.deletedFileRetentionDuration only.
_RETAINS = {"spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false"}


@dataclass(frozen=True)
class Maintained:
    """Result of the maintenance of one table; `files_vacuumed` is None without VACUUM, or if unknown."""

    version: int
    files: int
    bytes: int
    files_removed: int
    files_added: int
    files_vacuumed: int | None


def maintain(
    spark: SparkSession, target: DeltaTarget, vacuum_after: timedelta | None, *, has_position: bool = True
) -> Maintained | None:
    """Runs OPTIMIZE and VACUUM under the lock of every run: two processes at once can lose a commit."""
    table = DeltaTable(spark, target)
    target = table.target
    if not table.is_there():
        return None
    found: dict[str, Any] = {}

    @outcome("Nothing was changed")
    def precheck() -> None:
        anchor = table.anchor() if has_position else None
        if anchor is not None:
            _check_position_is_kept(table, anchor, target)
        # OPTIMIZE writes the partitions again.
        table.check_partition_types()

    def work(session: SparkSession) -> None:
        (optimized,) = session.sql(f"OPTIMIZE {target.identifier}").collect()
        found["optimized"] = optimized["metrics"]
        if vacuum_after is not None:
            # Rounded up: no file goes earlier than asked for.
            hours = -(-vacuum_after // timedelta(hours=1))
            session.sql(f"VACUUM {target.identifier} RETAIN {hours} HOURS").collect()

    def state_after(failure: Exception | None) -> tuple[Row, Commit]:
        or_failed(failure)
        return table.port.detail("numFiles", "sizeInBytes"), next(table.commits())

    try:
        with isolated_session(spark, _RETAINS) as session:
            detail, newest = guarded(
                table.port,
                table.location(),
                precheck=precheck,
                write=lambda: work(session),
                look_back=state_after,
                session=session,
            )
    except KafkaFlipError:
        raise
    except Exception as error:
        finding = f"the table {target} can't be maintained, its rows and its position are unchanged"
        again = "Run the maintenance again when no other run changes the table"
        raise TableError(*told(finding, error, again)) from error
    is_vacuum = vacuum_after is not None and newest.operation == "VACUUM END"
    return Maintained(
        version=newest.version,
        files=detail["numFiles"],
        bytes=detail["sizeInBytes"],
        files_removed=found["optimized"]["numFilesRemoved"],
        files_added=found["optimized"]["numFilesAdded"],
        files_vacuumed=newest.metric("numDeletedFiles") if is_vacuum else None,
    )


def _check_position_is_kept(table: DeltaTable, anchor: Anchor, target: DeltaTarget) -> None:
    """Checks that Delta keeps the commit with the position: new commits make it clean up old ones."""
    until = table.kept_until(anchor)
    if until is not None and until <= instants.now():
        raise PositionTooOldError(
            f"the position of the stream {target.stream!r} is in version {anchor.version} of {target}, which is older "
            "than half of delta.logRetentionDuration. The commits of OPTIMIZE and VACUUM could make Delta delete it",
            "First materialize the asset that writes to the table: its run commits the position again",
        )
