"""Builds a table with a key again, from the topic's beginning, and puts it in place in one commit."""

from __future__ import annotations

import contextlib
import logging
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    ConfigurationError,
    ForeignRowsError,
    OffsetOutOfRangeError,
    RetentionOvertookPositionError,
    SchemaMismatchError,
    TableError,
    TimestampOutOfRangeError,
    outcome,
)
from dagster_kafka_flip.ingestion.batch_writer import Batch, BatchWriter
from dagster_kafka_flip.ingestion.ingest import run_stream
from dagster_kafka_flip.ingestion.keyed_stream import change_columns, with_fitting_advice
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.history import commits_that_count, documented
from dagster_kafka_flip.table.mode import Scd2, Upsert, written
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.table_writer import TableWriter, is_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

# Properties of the other table: the id of the table whose rows are built in it, and one of this rebuild.
_REBUILDS = "dagster-kafka-flip.rebuilds"
_REBUILD = "dagster-kafka-flip.rebuild"


@dataclass(frozen=True)
class Rebuilt:
    """A table that was built again."""

    version: int
    rows: int
    state: EnumeratorState


@outcome("Nothing was replaced")
def rebuild(
    source: KafkaSource,
    table: DeltaTarget,
    staging: str,
    *,
    spark: SparkSession,
    connection: KafkaConnection,
    decoder: Decoder,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    dead_letters: DeadLetters | None = None,
    limits: Limits | None = None,
) -> Rebuilt:
    """Reads a topic from its beginning into another table, and then replaces the stream's own rows with these.

    Readers see the old rows until that commit, which also has the new position. After a crash, call it again: it
    continues where it stopped.

    The rows of the table have a key. `staging` is the path or name of the other table, which is created, and not used
    after that. Dead letters have `<stream>-rebuild` in their column `stream`.
    """
    beside = table.model_copy(update={"table": staging, "stream": f"{table.stream}-rebuild"})
    if not table.key:
        msg = f"the rows of {table} have no key, so it can't be rebuilt next to other writers; use a new table"
        raise ConfigurationError(msg)
    if beside.identity == table.identity:
        raise ConfigurationError(f"{staging} is the table itself", "Name another table to build the rows in")
    target, made = DeltaTable(spark, table), DeltaTable(spark, beside)
    if beside.is_nested_with(table):
        raise ConfigurationError(
            f"one of {staging} and {table} is inside the folder of the other, and VACUUM of the outer table would "
            "delete the files of the inner one",
            "Name a folder outside of it",
        )
    if target.history() is None:
        raise TableError(f"{table} does not exist, so there is nothing to rebuild", "A run creates the table")
    marks = _marks(target, made, table, beside)
    beside = beside.model_copy(update={"properties": {**table.properties, **marks}})
    if dead_letters is not None:
        # A stream of dead letters is of one table: neither the asset's own nor that of an earlier rebuild.
        dead_letters = dead_letters.model_copy(update={"stream": f"{beside.stream}-{marks[_REBUILD]}"})
    connected = source.connected(connection)
    # What monitors the group watches the stream's table, and not the other one. Aligned by time, one run would leave
    # out what is later than the end of another topic partition.
    from_earliest = connected.model_copy(
        update={"starting_offsets": OffsetsInitializer.earliest(), "commit_offsets": False, "max_drift": None}
    )
    there = _check_has_everything(from_earliest, table)
    anchor = target.anchor()
    if anchor is not None and anchor.state is not None:
        # The stream's logs must still be those of its position: the rows of others can't be put in place.
        with with_fitting_advice(table):
            from_earliest.plan_once(SplitEnumeratorContext(), anchor.state)
    # Numbers: by the time of the plan, "earliest" may be a later record.
    from_the_beginning = from_earliest.model_copy(
        update={"starting_offsets": OffsetsInitializer.specific_offsets(dict.fromkeys(there, 0))}
    )
    spec = RunSpec(
        source=from_the_beginning,
        target=beside,
        spark=lambda: spark,
        decoder=decoder,
        transform=transform,
        dead_letters=dead_letters,
        # All of it: a part of the topic can't be put in place.
        limits=(limits or Limits()).model_copy(update={"max_batches": None}),
        log=_logger,
    )
    try:
        run_stream(spec, known=None, verify_after=timedelta(0))
    except (OffsetOutOfRangeError, TimestampOutOfRangeError) as error:
        _check_has_everything(from_earliest, table)
        error.advice = "A rebuild reads every record from offset 0 on: read the topic into a new table, and compare"
        raise
    # Somebody may have set it to be compacted since.
    _check_keeps_all(from_earliest, there, table)

    def plan(_: KafkaFlipError | None) -> Batch[tuple[Committed, CommitDocument]]:
        rows, document = _replacement(target, made, table, beside, change_columns(decoder.columns).offset)
        return Batch(
            "the rebuilt rows", lambda: lambda: (TableWriter(target).replace(rows, document), document), lambda: rows
        )

    done = BatchWriter(spec, SplitEnumeratorContext(), table).write(plan)
    if done is None:
        msg = f"{table} was not rebuilt; this is a bug"
        raise TableError(msg)
    committed, document = done
    _notify(connected, document.state)
    with outcome(is_committed(committed.version)):
        return Rebuilt(committed.version, target.count_rows(), document.state)


def _reason(beside: DeltaTarget, made: DeltaTable) -> str:
    return f"rebuilt from {beside} ({made.table_id()})"


def _marks(target: DeltaTable, made: DeltaTable, table: DeltaTarget, beside: DeltaTarget) -> dict[str, str]:
    """The properties of the other table, unless it is used or was created for another one."""
    table_id = target.table_id()
    if made.history() is None:
        return {_REBUILDS: table_id, _REBUILD: uuid.uuid4().hex[:8]}
    found = made.properties()
    if found.get(_REBUILDS) != table_id or _REBUILD not in found:
        raise ConfigurationError(
            f"{beside} was not created to rebuild {table}, so it may have rows of another table",
            "Name another staging table; the command creates it",
        )
    for commit, document in documented(commits_that_count(made.history() or ()), beside.stream):
        if document.reason is not None:
            raise ConfigurationError(
                f"the position in {beside} was moved ({document.reason}, version {commit.version}): it may lack rows",
                "Drop this staging table, or name another one",
            )
    reason = _reason(beside, made)
    for commit, document in documented(commits_that_count(target.history() or ()), table.stream):
        if document.reason == reason:
            raise ConfigurationError(
                f"{beside} already replaced the rows of {table}, in version {commit.version}",
                "To rebuild the table once more, drop this staging table, or name another one",
            )
    return {mark: found[mark] for mark in (_REBUILDS, _REBUILD)}


def _check_has_everything(source: KafkaSource, table: DeltaTarget) -> Collection[TopicPartition]:
    plan = source.plan_once(SplitEnumeratorContext())
    gone = {(tp.topic, tp.partition): offset for tp, offset in plan.beginning_offsets.items() if offset > 0}
    if gone:
        (topic, partition), offset = next(iter(gone.items()))
        more = f" (and {counted(len(gone) - 1, 'more topic partition')} later)" if len(gone) > 1 else ""
        raise RetentionOvertookPositionError(
            f"{topic}-{partition} begins at offset {offset}{more}: retention has deleted the records before, and rows "
            f"of {table} may come from them",
            "Read the topic into a new table, and compare",
            log_start_offsets=gone,
        )
    _check_keeps_all(source, plan.beginning_offsets, table)
    return plan.beginning_offsets


def _check_keeps_all(source: KafkaSource, partitions: Collection[TopicPartition], table: DeltaTarget) -> None:
    """Checks that rows which come from all records of a key have all of them."""
    if not (isinstance(table.mode, Scd2) or (isinstance(table.mode, Upsert) and table.mode.soft_delete)):
        return
    topics = sorted({tp.topic for tp in partitions})
    with contextlib.closing(KafkaCluster(source.required_connection(), source.librdkafka_config())) as cluster:
        settings = cluster.topic_settings(topics)
    for topic in topics:
        if topic not in settings:
            what = f"this client can't read whether the topic {topic} is compacted (cleanup.policy)"
            grant = f"Grant DESCRIBE_CONFIGS on the topic {topic} and repeat, or read"
        elif settings[topic].is_compacted:
            what, grant = f"the topic {topic} is compacted (cleanup.policy)", "Read"
        else:
            continue
        raise ConfigurationError(
            f"{what}: compaction removes all records of a key but the last, and rows of {table} "
            f"({written(table.mode)}) may come from the others",
            f"{grant} the topic into a new table, and compare",
        )


def _notify(source: KafkaSource, state: EnumeratorState) -> None:
    """Commits the new position to the consumer group, as a run does; a failure does not affect the rebuilt rows."""
    if not source.commit_offsets:
        return
    try:
        with contextlib.closing(source.restore_enumerator(SplitEnumeratorContext(), state)) as enumerator:
            enumerator.start()
            enumerator.notify_checkpoint_complete()
    except Exception as error:  # noqa: BLE001 - the rows are replaced, even if reporting it fails
        _logger.warning("the rows are replaced, but committing to the consumer group failed: %s", error)


def _replacement(
    target: DeltaTable, made: DeltaTable, table: DeltaTarget, beside: DeltaTarget, offset: str
) -> tuple[DataFrame, CommitDocument]:
    anchor, built = target.anchor(), made.anchor()
    if anchor is None or built is None or built.state is None:
        raise TableError(f"{table if anchor is None else beside} does not exist", "A run creates the table")
    _check_reaches(anchor, built.state, table, beside)
    rows = made.rows(built.table_version)
    _check_only_known_columns(target.schema().names, rows.columns, table)
    target.check_schema(rows.schema)
    _check_only_own(target, offset)
    document = CommitDocument(
        stream=table.stream,
        base_version=anchor.table_version,
        anchor_version=anchor.version,
        after=anchor.attempt,
        # The time that runs have reached is theirs: the rebuild has not looked for it.
        state=built.state if anchor.state is None else replace(built.state, watermark=anchor.state.watermark),
        overrides_start=True,
        reason=_reason(beside, made),
        carried=anchor.routed,
        mode=table.mode,
    )
    return rows, document


def _check_reaches(anchor: Anchor, state: EnumeratorState, table: DeltaTarget, beside: DeltaTarget) -> None:
    known = {} if anchor.state is None else anchor.state.position
    for tp, offset in known.items():
        there = state.position.get(tp)
        if anchor.state is not None and (there is None or there < offset or not is_same_log(tp, anchor.state, state)):
            raise ConcurrentIngestionError(
                f"{tp}: {beside} has {'no records' if there is None else f'the records before offset {there}'}, but "
                f"the stream of {table} is at {offset}, or it is another log",
                "Run it again. If the source has a stop or no longer reads the topic, change that first",
            )


def _check_only_known_columns(there: Collection[str], built: Collection[str], table: DeltaTarget) -> None:
    """Refuses to remove the values of columns that the rows which are built do not have."""
    known = {name.lower() for name in built}
    if others := [name for name in there if name.lower() not in known]:
        raise SchemaMismatchError(
            f"{table} has the column {', '.join(others)}, which the rebuilt rows lack, so its values would be lost",
            "Return it from the function, or drop it from the table, then repeat",
        )


def _check_only_own(table: DeltaTable, offset: str) -> None:
    """Refuses to remove rows that are not of the stream's records."""
    others = table.rows().where(f"{quoted(offset)} IS NULL").count()
    if others:
        raise ForeignRowsError(
            f"{table.target} has {counted(others, 'row')} without an offset: another writer added them, such as an "
            "initial load, and they are not in the topic",
            "Delete them if you don't need them, or use a new table",
        )
