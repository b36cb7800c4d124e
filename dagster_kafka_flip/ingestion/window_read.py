"""The bounded read of windows: decodes records, puts each into its window, and counts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.ingestion.observation import BatchObservation, Observed, WholeBatch, observed_metrics
from dagster_kafka_flip.ingestion.result import WindowsSeen, windows_seen
from dagster_kafka_flip.ingestion.rows_to_replace import check_keeps
from dagster_kafka_flip.ingestion.stream_batch import RunRows
from dagster_kafka_flip.reader.kafka_reader import no_records
from dagster_kafka_flip.reader.window_filter import CARRIED, LOG_FIELDS, WINDOW, WindowFilter, check_free, event_time
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.transform import transformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.window import WindowPlan, Windows


class WindowsObservation(NamedTuple):
    """What observes the write of windows; `windows` is None if they are not told apart."""

    batch: BatchObservation
    windows: Observation | None

    def get(self, patience: float) -> tuple[Observed, WindowsSeen | None]:
        """Returns the counts of the records and of their windows, after some seconds at most."""
        metrics = {} if self.windows is None else observed_metrics(self.windows, patience)
        observed = self.batch.get(patience, metrics)
        return observed, windows_seen(metrics) if observed.is_whole else None


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
    ) -> tuple[DataFrame, WindowsObservation]:
        """The rows, with their windows' keys unless it is a repair, and what observes the write of them."""
        # New ones each time: an observation reports the first run of a DataFrame, which may have failed.
        windows = WindowFilter(plan, self._rules) if are_windows else None
        is_counted = windows is not None and not windows.is_by_value
        batch = BatchObservation(plan.splits, whole := WholeBatch(plan.splits), is_counted=is_counted)
        seen: Observation | None = None
        with dead_spark_as_error():
            if windows is None:
                rows = self._decoded(records, batch, leave_out_rejected=leave_out_rejected)
            elif windows.is_by_value:
                rows = self._decoded(records, batch, CARRIED, leave_out_rejected=leave_out_rejected)
                rows, seen = _inside(windows, rows)
            else:
                # Before records in no window are dropped.
                rows, seen = _inside(windows, records, whole)
                rows = self._decoded(rows, batch, {WINDOW: WINDOW}, leave_out_rejected=leave_out_rejected)
            if windows is not None:
                rows = windows.labelled(rows, self._rules.column)
        rows = self._transformed(rows)
        if self._spec.transform is not None and plan.splits:
            with dead_spark_as_error():
                whole.transformed(rows)
        return rows, WindowsObservation(batch, seen)

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
    """The records in a window, and what observes all of them."""
    from pyspark.sql import Observation

    seen = Observation() if whole is None else Observation(whole.name)
    metrics = [*windows.metrics(), *(() if whole is None else whole.metrics())]
    return windows.inside(windows.number(records).observe(seen, *metrics)), seen


@functools.singledispatch
def window_rows(session: Any, spec: RunSpec, rules: Windows) -> WindowRows:
    """Returns the reads of a run of windows in a session."""
    return WindowRows(session, spec, rules)
