"""The bounded reads of runs: the rows of batches and windows, and their dead letters, which are read again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.dead_letters import DEAD_LETTER_SCHEMA, RECORD_COLUMNS
from dagster_kafka_flip.ingestion.keyed_stream import (
    carried,
    change_columns,
    change_rows,
    check_keeps_unavailable,
    with_tombstones,
)
from dagster_kafka_flip.ingestion.observation import BatchObservation, WholeBatch
from dagster_kafka_flip.ingestion.progress import ReadProgress, read_watched
from dagster_kafka_flip.reader.kafka_reader import no_records, read
from dagster_kafka_flip.reader.window_filter import CARRIED, LOG_FIELDS, WINDOW, WindowFilter, check_free, event_time
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.runtime.session_settings import SESSION_ZONE
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.interruptible import write_tag
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.transform import transformed
from dagster_kafka_flip.table.window_rows import RecordColumns, covering_predicate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import WindowPlan, Windows
    from dagster_kafka_flip.table.document import RoutedBatch


@dataclass
class RunRows:
    """The bounded reads of one run, up to the rows: of a stream's batches, or of windows by their rules.

    What observes a write is new each time: an observation reports the first run of a DataFrame, which may have failed.
    """

    _session: SparkSession
    _spec: RunSpec

    def records(self, assignment: SplitAssignment) -> DataFrame:
        return self._spec.records(self._session, assignment)

    def watched(self, attempt: str, progress: ReadProgress) -> AbstractContextManager[None]:
        """Logs how far the write of an attempt has read."""
        return read_watched(self._session, write_tag(attempt), progress, self._spec.log)

    def schema(self, rules: Windows | None = None) -> StructType:
        rows = self._decoded(no_records(self._session))
        if rules is not None:
            # Before there is a table, which would keep columns that are to be changed.
            check_free(rows, rules.column)
            if rules.event_time is not None:
                event_time(rows, rules.event_time)
            rows = rows.withColumn(rules.column, f.lit("").cast("string"))
        landed = self._landed(rows, None, rules)
        return (landed.landed if isinstance(landed, Changes) else landed).schema

    def rows(
        self, assignment: SplitAssignment, *, leave_out_rejected: bool
    ) -> tuple[DataFrame | Changes, BatchObservation]:
        splits = assignment.plan.splits
        watch = BatchObservation(splits, WholeBatch(splits))
        with dead_spark_as_error():
            rows = self._decoded(self.records(assignment), watch, leave_out_rejected=leave_out_rejected)
            return self._landed(rows, watch), watch

    def rows_of_windows(
        self, assignment: SplitAssignment, plan: WindowPlan, rules: Windows
    ) -> tuple[DataFrame | Changes, BatchObservation]:
        windows, whole = WindowFilter(plan, rules), WholeBatch(plan.splits)
        watch = BatchObservation(plan.splits, whole, is_counted=not windows.is_by_value)
        with dead_spark_as_error():
            rows = self.records(assignment)
            if windows.is_by_value:
                rows, watch.windows = _inside(windows, self._decoded(rows, watch, CARRIED))
            else:
                # Before records in no window are dropped.
                rows, watch.windows = _inside(windows, rows, whole)
                rows = self._decoded(rows, watch, {WINDOW: WINDOW})
            return self._landed(windows.labelled(rows, rules.column), watch, rules), watch

    def missing(
        self, rows: DataFrame, named: Mapping[str, str], assignment: SplitAssignment, plan: WindowPlan, rules: Windows
    ) -> tuple[int, Any]:
        """Counts records of the table's rows that the windows lack, with the first; `named` are the log's columns."""
        there = rows.select(*(f.col(quoted(name)).alias(field) for field, name in named.items()))
        # Others' rows without an offset are of no record, and a transform may give a topic another name.
        there = there.where(f.col("topic").isin(sorted({tp.topic for tp in plan.stops})) & f.col("offset").isNotNull())
        records, windows = self.records(assignment), WindowFilter(plan, rules)
        # Where a value tells the window, and in a repair, what is read tells enough.
        if not (windows.is_by_value or rules.repair):
            records = windows.inside(windows.number(records))
        gone = there.join(records.select(*LOG_FIELDS), list(LOG_FIELDS), "left_anti").agg(
            f.count_distinct(*LOG_FIELDS), f.min(f.struct(*LOG_FIELDS))
        )
        ((number, first),) = gone.collect()
        return number, first

    def _decoded(
        self,
        records: DataFrame,
        watch: BatchObservation | None = None,
        carry: dict[str, str] | None = None,
        *,
        leave_out_rejected: bool = False,
    ) -> DataFrame:
        decoder, key = self._spec.decoder, self._spec.target.key
        needed = carried(decoder) if key else carry or ()
        if key:
            records = with_tombstones(records)
        staged = decoder.stage(records) if watch is None else watch.stage(records, decoder, needed, keyed=bool(key))
        if key:
            return change_rows(staged, decoder, key, leave_out_rejected=leave_out_rejected)
        return decoder.finish(staged, carry=carry, leave_out_rejected=leave_out_rejected)

    def _landed(
        self, rows: DataFrame, watch: BatchObservation | None, rules: Windows | None = None
    ) -> DataFrame | Changes:
        result = transformed(rows, self._spec.transform)
        if watch is not None and self._spec.transform is not None:
            watch.whole.transformed(result)
        if rules is not None and not rules.repair:
            check_keeps(result, [rules.column])
        mode, columns = self._spec.target.mode, change_columns(self._spec.decoder.columns)
        if isinstance(mode, Append):
            return result
        check_keeps_unavailable(rows, result, columns)
        changes = Changes(result, mode, columns, mode.key)
        changes.check(str(self._spec.target))
        return changes


def _inside(
    windows: WindowFilter, records: DataFrame, whole: WholeBatch | None = None
) -> tuple[DataFrame, Observation]:
    from pyspark.sql import Observation

    seen = Observation() if whole is None else Observation(whole.name)
    metrics = [*windows.metrics(), *(() if whole is None else whole.metrics())]
    return windows.inside(windows.number(records).observe(seen, *metrics)), seen


def check_keeps(rows: DataFrame, columns: list[str]) -> None:
    """Checks that a transform has kept the columns by which the rows to replace are found."""
    known = {name.lower() for name in rows.columns}
    for column in columns:
        if column.lower() not in known:
            raise ConfigurationError(
                f"the transform dropped the column {column}, which is needed to find the rows to replace; keep it, "
                "and group by it in aggregations"
            )


@functools.singledispatch
def run_rows(session: Any, spec: RunSpec) -> RunRows:
    return RunRows(session, spec)


@dataclass
class DeadLetterRows:
    """The dead letters of one run, as rows."""

    _session: SparkSession
    _spec: RunSpec

    def rules(self) -> dict[str, str]:
        """What decides besides the decoder which records are read and rejected, by the setting's name."""
        with dead_spark_as_error():
            zone = self._session.conf.get(SESSION_ZONE)
        return {SESSION_ZONE: str(zone), "isolation_level": self._spec.source.isolation_level}

    def schema(self) -> StructType:
        return self._session.createDataFrame([], DEAD_LETTER_SCHEMA).schema

    def rejected(
        self, assignment: SplitAssignment, batch: RoutedBatch, decoder: Decoder, state: EnumeratorState, table_id: str
    ) -> tuple[DataFrame, Observation]:
        """The rejected records of a batch as rows, and an observation with their number (`rejected`)."""
        from pyspark.sql import Observation

        number = Observation()
        staged = decoder.stage(read(self._spec.source, self._session, assignment))
        fields = [f.col(field).alias(column) for column, field in RECORD_COLUMNS.items()]
        rows = (
            staged.select(*fields, decoder.problem().alias("error"), *decoder.written_with())
            # The observation also prevents Spark from moving filters past it, so each record is parsed once.
            .observe(number, f.count("error").alias("rejected"))
            .where("error IS NOT NULL")
            .withColumns(
                {
                    "stream": f.lit(self._spec.target.stream),
                    "target_table": f.lit(str(self._spec.target)),
                    "run_id": f.lit(batch.run_id),
                    "attempt": f.lit(batch.attempt),
                    "landed_at": f.current_timestamp(),
                    "kafka_cluster_id": f.lit(state.cluster_id).cast("string"),
                    "kafka_topic_id": _by_topic(state, assignment),
                    "target_table_id": f.lit(table_id),
                }
            )
        )
        return rows, number

    def missing(
        self, rows: DataFrame, there: DataFrame, splits: Sequence[KafkaPartitionSplit], table_id: str
    ) -> DataFrame:
        """The dead letters that the table does not have yet; only compares rows of about these splits."""
        columns = RecordColumns("kafka_topic", "kafka_partition", "kafka_offset")
        ranges = covering_predicate(splits, columns)
        of_stream = f"target_table_id = {literal(table_id)} AND stream = {literal(self._spec.target.stream)}"
        known = there.where(f"{of_stream} AND ({ranges})").alias("there")
        return rows.alias("new").join(known, f.expr(SAME_LETTER), "left_anti")


@functools.singledispatch
def dead_letter_rows(session: Any, spec: RunSpec) -> DeadLetterRows:
    return DeadLetterRows(session, spec)


# An offset identifies a record only within one topic of one cluster, and after an unclean election with its time. If
# ids are unknown, the record's content identifies it, because it never changes.
SAME_LETTER = """
new.kafka_topic = there.kafka_topic AND new.kafka_partition = there.kafka_partition
AND new.kafka_offset = there.kafka_offset AND new.kafka_timestamp <=> there.kafka_timestamp
AND coalesce(new.kafka_cluster_id = there.kafka_cluster_id, true)
AND coalesce(
    new.kafka_topic_id = there.kafka_topic_id,
    new.kafka_key <=> there.kafka_key AND new.kafka_value <=> there.kafka_value
)
"""


def _by_topic(state: EnumeratorState, assignment: SplitAssignment) -> Column:
    topics = {split.topic_partition.topic for split in assignment.plan.splits}
    column = f.lit(None).cast("string")
    for topic in sorted(topics & state.topic_ids.keys()):
        column = f.when(f.col("kafka_topic") == topic, f.lit(state.topic_ids[topic])).otherwise(column)
    return column
