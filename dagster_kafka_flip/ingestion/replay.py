"""Replays an old commit: writes its splits again, exactly as planned, to another table.

Use it after a wrong transform or changed rows: write the commit's records to another table, compare, and merge what you
need. The stream, its table and its position do not change.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import (
    ConfigurationError,
    LogChangedError,
    PositionLostError,
    TableError,
    TimestampOutOfRangeError,
    outcome,
)
from dagster_kafka_flip.ingestion.log_confirmation import LogConfirmation
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.stream_batch import Landing
from dagster_kafka_flip.runtime.session import parallelism
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import TableVersion
from dagster_kafka_flip.table.history import with_undone
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.result import BatchResult
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.table.commit import Commit, Committed
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.history import RestoredVersions

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replayed:
    """Result of a replay.

    Attributes:
        version: The version of the other table with the records.
        batch: The committed batch; None if it was replayed before.
    """

    version: int
    batch: BatchResult | None


@outcome("Nothing was written")
def replay(
    source: KafkaSource,
    table: DeltaTarget,
    version: int,
    into: str,
    *,
    spark: SparkSession,
    connection: KafkaConnection,
    decoder: Decoder,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> Replayed:
    """Writes the splits of a stream's commit to another table. Repeated calls write them once.

    Args:
        source: The stream's source.
        table: The stream and its table.
        version: Version of the commit in that table.
        into: The other table. It is created if it does not exist.
        spark: Returns the Spark session.
        connection: The Kafka connection.
        decoder: Decodes records.
        transform: Function from the records to the rows to write, both lazy DataFrames.
        logger: Logger for each step. Default: this module's.

    Raises:
        ConfigurationError: The version is not a commit of the stream with records, or the other table is the stream's
        own.
        PositionLostError: The table's history no longer has the version.
        RetentionOvertookPositionError: The topic no longer has all of the splits.
        LogChangedError: A topic was recreated while it was read, now or in an earlier replay whose rows are still in
        the table.
        KafkaFlipError: The replay failed.
    """
    log = logger or _logger
    # The first replay makes the table, and a later version may have more columns.
    target = DeltaTarget(table=into, stream=f"{table.stream}-replays", schema_evolution=table.schema_evolution)
    if target.identity == table.identity:
        msg = f"{into} is the stream's own table, which already holds these records; use another table"
        raise ConfigurationError(msg)
    main = DeltaTable(spark, table)
    document = _commit_of(main.history(), table, version)
    replays = TableVersion(str(table), main.table_id(), version)
    other = DeltaTable(spark, target)
    # Before reading the history, so that a concurrent replay is either found there or fenced out.
    anchor = other.anchor()
    done = _done_before(other.history() or (), replays, other.restored_versions)
    if done is not None:
        return Replayed(done, None)

    # Errors that the commit tolerated are also tolerated in its replay.
    landed_so = any(incident.error == TimestampOutOfRangeError.__name__ for incident in document.incidents)
    context = SplitEnumeratorContext(
        current_parallelism=parallelism(spark),
        tolerated=frozenset({TimestampOutOfRangeError} if landed_so else ()),
        log=log,
    )
    source = source.connected(connection)
    with contextlib.closing(source.restore_enumerator(context, document.state)) as enumerator:
        assignment = enumerator.replay(document.splits)
    spec = RunSpec(
        source=source,
        target=target,
        spark=lambda: spark,
        decoder=decoder,
        transform=transform,
        limits=Limits(),
        tolerated=context.tolerated,
        run_id=document.run_id,
        log=log,
    ).bound()
    # The commit's dead letters are still in the dead-letter table.
    landing = Landing(
        spec, spark, context, other, leave_out_rejected=document.dead_letter is not None, key=document.key
    )
    if anchor is None:
        anchor = other.made(landing.schema())
    confirmation = LogConfirmation(log, other, document.run_id)

    def confirm(written: CommitDocument, committed: Committed) -> None:
        def ask() -> None:
            with contextlib.closing(source.restore_enumerator(context, document.state)) as enumerator:
                enumerator.check_same_logs(assignment.plan)

        def doubt(error: KafkaFlipError) -> LogChangedError:
            return LogChangedError(
                f"{error.finding}. This happened while version {committed.version} of {target} was read and written: "
                "its rows may come from either log",
                f"RESTORE TABLE {target.identifier} TO VERSION AS OF {committed.version - 1} removes them. Replays "
                "into this table stop until then",
                outcome="The commit stays",
            )

        confirmation.confirm(ask, doubt, written, committed)

    with contextlib.closing(spec.decoder):
        batch = landing.land(anchor, assignment, replays=replays, confirm=confirm)
    confirmation.finish()
    return Replayed(batch.committed.version, batch)


def _commit_of(history: Iterable[Commit] | None, table: DeltaTarget, version: int) -> CommitDocument:
    if history is None:
        raise TableError(f"there is no Delta table {table}")
    oldest = newest = -1
    for commit in history:
        newest, oldest = max(newest, commit.version), commit.version
        if commit.version != version:
            continue
        document = commit.document()
        if document is None or document.stream != table.stream or not document.splits:
            raise ConfigurationError(
                f"version {version} of {table} ({commit.operation}) is not a commit of the stream {table.stream!r} "
                "with records; dagster-kafka-flip position show lists its commits"
            )
        return document
    if version > newest:
        raise ConfigurationError(f"{table} has no version {version} yet; its newest is {newest}")
    raise PositionLostError(
        f"the history of {table} no longer holds version {version}: its oldest commit is version {oldest}. Delta "
        "removes commits after delta.logRetentionDuration",
        "To read the records again, run with start and stop set to their offsets",
    )


def _done_before(
    history: Sequence[Commit], replays: TableVersion, restored: RestoredVersions | None = None
) -> int | None:
    """The version with the records; ignores versions that a RESTORE undid."""
    for commit, is_undone in with_undone(history, restored):
        document = None if is_undone else commit.document()
        if document is not None and document.replays is not None:
            known = document.replays
            if (known.table_id, known.version) == (replays.table_id, replays.version):
                return commit.version
    return None
