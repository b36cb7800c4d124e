"""The bounded reads of runs: reads, decodes and transforms records of batches or windows, and counts them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.keyed_stream import (
    carried,
    change_columns,
    change_rows,
    check_keeps_unavailable,
    with_tombstones,
)
from dagster_kafka_flip.ingestion.observation import BatchObservation, WholeBatch
from dagster_kafka_flip.ingestion.progress import ReadProgress, read_watched
from dagster_kafka_flip.ingestion.rows_to_replace import check_keeps
from dagster_kafka_flip.reader.kafka_reader import no_records
from dagster_kafka_flip.reader.window_filter import CARRIED, LOG_FIELDS, WINDOW, WindowFilter, check_free, event_time
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.interruptible import write_tag
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.transform import transformed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.window import WindowPlan, Windows


class RunRows:
    """What one run reads, of streams and windows alike."""

    def __init__(self, session: SparkSession, spec: RunSpec) -> None:
        self._session = session
        self._spec = spec

    def records(self, assignment: SplitAssignment) -> DataFrame:
        """The records of a batch, as they are read."""
        return self._spec.records(self._session, assignment)

    def watched(self, attempt: str, progress: ReadProgress) -> AbstractContextManager[None]:
        """Logs how far the write of an attempt has read."""
        return read_watched(self._session, write_tag(attempt), progress, self._spec.log)


class BatchRows(RunRows):
    """The bounded read of a stream's batches, up to the rows."""

    def __init__(self, session: SparkSession, spec: RunSpec, *, leave_out_rejected: bool) -> None:
        super().__init__(session, spec)
        self._key = spec.target.key
        self._leave_out_rejected = leave_out_rejected

    def schema(self) -> StructType:
        """The columns of the rows, without reading anything."""
        rows = self._taken(self._decoded(no_records(self._session)))
        return (rows.landed if isinstance(rows, Changes) else rows).schema

    def rows(self, assignment: SplitAssignment) -> tuple[DataFrame | Changes, BatchObservation]:
        """The rows of a batch, and what observes the write of them."""
        # A new one each time: an observation reports the first run of a DataFrame, which may have failed.
        splits = assignment.plan.splits
        watch = BatchObservation(splits, WholeBatch(splits))
        with dead_spark_as_error():
            rows = self._decoded(self.records(assignment), watch)
            if self._spec.transform is not None and not assignment.plan.is_empty:
                watch.whole.transformed(rows)
        return self._taken(rows), watch

    def _decoded(self, records: DataFrame, watch: BatchObservation | None = None) -> DataFrame:
        decoder = self._spec.decoder
        keyed = bool(self._key)
        carry = carried(decoder) if keyed else ()
        if keyed:
            records = with_tombstones(records)
        staged = decoder.stage(records) if watch is None else watch.stage(records, decoder, carry, keyed=keyed)
        if keyed:
            rows = change_rows(staged, decoder, self._key, leave_out_rejected=self._leave_out_rejected)
        else:
            rows = decoder.finish(staged, leave_out_rejected=self._leave_out_rejected)
        result = transformed(rows, self._spec.transform)
        if self._key:
            check_keeps_unavailable(rows, result, change_columns(decoder.columns))
        return result

    def _taken(self, rows: DataFrame) -> DataFrame | Changes:
        mode = self._spec.target.mode
        if isinstance(mode, Append):
            return rows
        changes = Changes(rows, mode, change_columns(self._spec.decoder.columns), mode.key)
        changes.check(str(self._spec.target))
        return changes


@functools.singledispatch
def batch_rows(session: Any, spec: RunSpec, *, leave_out_rejected: bool) -> BatchRows:
    """Returns the reads of a run in a session."""
    return BatchRows(session, spec, leave_out_rejected=leave_out_rejected)


class WindowRows(RunRows):
    """The bounded read of one run's windows, up to the rows."""

    def __init__(self, session: SparkSession, spec: RunSpec, rules: Windows) -> None:
        super().__init__(session, spec)
        self._rules = rules

    def schema(self) -> StructType:
        """The columns of the rows, without reading anything."""
        from pyspark.sql import functions as f

        rows = self._spec.decoder.finish(self._spec.decoder.stage(no_records(self._session)))
        # Before there is a table, which would keep columns that are to be changed.
        check_free(rows, self._rules.column)
        if self._rules.event_time is not None:
            event_time(rows, self._rules.event_time)
        return self._transformed(rows.withColumn(self._rules.column, f.lit("").cast("string"))).schema

    def missing(
        self, rows: DataFrame, named: Mapping[str, str], records: DataFrame, plan: WindowPlan
    ) -> tuple[int, Any]:
        """Counts the records of the table's rows that are not among those of the windows, and returns the first.

        `named` are the table's columns with topic, partition and offset.
        """
        from pyspark.sql import functions as f

        there = rows.select(*(f.col(quoted(name)).alias(field) for field, name in named.items()))
        # Others' rows without an offset are of no record, and a transform may give a topic another name.
        there = there.where(f.col("topic").isin(sorted({tp.topic for tp in plan.stops})) & f.col("offset").isNotNull())
        windows = WindowFilter(plan, self._rules)
        # Where a value tells the window, and in a repair, what is read tells enough.
        if not (windows.is_by_value or self._rules.repair):
            records = windows.inside(windows.number(records))
        gone = there.join(records.select(*LOG_FIELDS), list(LOG_FIELDS), "left_anti").agg(
            f.count_distinct(*LOG_FIELDS), f.min(f.struct(*LOG_FIELDS))
        )
        ((number, first),) = gone.collect()
        return number, first

    def rows(
        self, records: DataFrame, plan: WindowPlan, *, are_windows: bool, leave_out_rejected: bool
    ) -> tuple[DataFrame, BatchObservation]:
        """The rows, with their windows' keys unless it is a repair, and what observes the write of them."""
        # New ones each time: an observation reports the first run of a DataFrame, which may have failed.
        windows = WindowFilter(plan, self._rules) if are_windows else None
        is_counted = windows is not None and not windows.is_by_value
        batch = BatchObservation(plan.splits, whole := WholeBatch(plan.splits), is_counted=is_counted)
        with dead_spark_as_error():
            if windows is None:
                rows = self._decoded(records, batch, leave_out_rejected=leave_out_rejected)
            elif windows.is_by_value:
                rows = self._decoded(records, batch, CARRIED, leave_out_rejected=leave_out_rejected)
                rows, batch.windows = _inside(windows, rows)
            else:
                # Before records in no window are dropped.
                rows, batch.windows = _inside(windows, records, whole)
                rows = self._decoded(rows, batch, {WINDOW: WINDOW}, leave_out_rejected=leave_out_rejected)
            if windows is not None:
                rows = windows.labelled(rows, self._rules.column)
        rows = self._transformed(rows)
        if self._spec.transform is not None and plan.splits:
            with dead_spark_as_error():
                whole.transformed(rows)
        return rows, batch

    def _decoded(
        self,
        records: DataFrame,
        watch: BatchObservation,
        carry: dict[str, str] | None = None,
        *,
        leave_out_rejected: bool,
    ) -> DataFrame:
        staged = watch.stage(records, self._spec.decoder, carry or ())
        return self._spec.decoder.finish(staged, carry=carry, leave_out_rejected=leave_out_rejected)

    def _transformed(self, rows: DataFrame) -> DataFrame:
        result = transformed(rows, self._spec.transform)
        if not self._rules.repair:
            check_keeps(result, [self._rules.column])
        return result


def _inside(
    windows: WindowFilter, records: DataFrame, whole: WholeBatch | None = None
) -> tuple[DataFrame, Observation]:
    from pyspark.sql import Observation

    seen = Observation() if whole is None else Observation(whole.name)
    metrics = [*windows.metrics(), *(() if whole is None else whole.metrics())]
    return windows.inside(windows.number(records).observe(seen, *metrics)), seen


@functools.singledispatch
def window_rows(session: Any, spec: RunSpec, rules: Windows) -> WindowRows:
    """Returns the reads of a run of windows in a session."""
    return WindowRows(session, spec, rules)
