"""WindowLanding: one commit of windows is read, put into windows, decoded, transformed and written."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.clock import Clock
from dagster_kafka_flip.dead_letter_table import Repair
from dagster_kafka_flip.errors import ConfigurationError, TimestampTypeChangedError, WriteFailedError
from dagster_kafka_flip.facts import facts
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records
from dagster_kafka_flip.observation import BatchObservation, Observed, WholeBatch, observed_metrics, tell_unknown
from dagster_kafka_flip.progress import ReadProgress
from dagster_kafka_flip.read_watch import read_watched
from dagster_kafka_flip.reader.read import no_records, read
from dagster_kafka_flip.reader.window_filter import CARRIED, WINDOW, WindowFilter, record_set_by_producer
from dagster_kafka_flip.spark_status import ui_address
from dagster_kafka_flip.table.interruptible import write_tag
from dagster_kafka_flip.table.retries import retries
from dagster_kafka_flip.table.spark_error import telling_line
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.windowed_table import (
    kept_predicate,
    repair_predicate,
    time_predicate,
    windows_predicate,
)
from dagster_kafka_flip.table.windows_document import WindowsDocument
from dagster_kafka_flip.transforming import transformed
from dagster_kafka_flip.window_result import WindowsResult, WindowsSeen

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.dead_letter_table import DeadLetterTable
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.window import Windows
    from dagster_kafka_flip.source.window_enumerator import WindowEnumerator
    from dagster_kafka_flip.source.window_plan import WindowPlan
    from dagster_kafka_flip.table.delta_table import Committed
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.table.windowed_table import WindowedTable, WindowsLook


class WindowLanding:
    """What one run does with some windows once they are planned.

    Args:
        spark: The session to read and write with.
        source: What to read.
        enumerator: What planned it.
        table: Where to.
        target: The same, described.
        rules: How records are put into windows.
        decoder: From bytes to columns.
        transform: From the records to the rows to land; None for all as they are.
        topics: Of the source's topics, those whose rows are replaced; None for all.
        run_id: Kept in the commits.
        log: Where to tell each step.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        source: KafkaSource,
        enumerator: WindowEnumerator,
        table: WindowedTable,
        target: DeltaTarget,
        rules: Windows,
        decoder: Decoder,
        transform: Callable[[DataFrame], DataFrame] | None,
        topics: tuple[str, ...] | None,
        run_id: str,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._spark = spark
        self._source = source
        self._enumerator = enumerator
        self._table = table
        self._target = target
        self._rules = rules
        self._decoder = decoder
        self._transform = transform
        self._topics = topics
        self._run_id = run_id
        self._log = log

    def schema(self) -> StructType:
        """The columns of the rows to land; nothing is read."""
        from pyspark.sql import functions as f

        rows = self._decoder.finish(self._decoder.stage(no_records(self._spark)))
        return self._transformed(rows.withColumn(self._rules.column, f.lit("").cast("string"))).schema

    def land(
        self, look: WindowsLook, plan: WindowPlan, plan_seconds: float, letters: DeadLetterTable | None = None
    ) -> WindowsResult:
        """Replaces some windows, in one commit.

        Args:
            look: What is known of the table.
            plan: What to read for them.
            plan_seconds: How long it took to plan.
            letters: Of a repair: where the stream's rejected records go; None if they stop the run or are kept.

        Raises:
            ForeignConflictError: Somebody else came in between; a new plan can be made.
            KafkaFlipError: Nothing of it was committed; but for CommitUnknownError, which says that it may be.
        """
        for incident in plan.incidents:
            self._log.warning("tolerated %s: %s", incident.error, incident.message)
        assignment = self._enumerator.assign(plan)
        tasks = len(assignment.task_plan.tasks)
        self._log.info(
            "planned %d window%s from %s to %s: %s",
            len(plan.windows),
            "" if len(plan.windows) == 1 else "s",
            plan.windows[0].window.start,
            plan.windows[-1].window.stop,
            facts(splits=len(plan.splits), offsets=plan.offset_span, seconds=plan_seconds),
        )
        clock = Clock()
        attempt = uuid.uuid4().hex
        if letters is not None and plan.splits:
            # Before the rows go: a record that was decoded then and is rejected now is lost at no time.
            self._land_letters(letters, look, plan, assignment, attempt)
            plan = replace(plan, incidents=(*plan.incidents, *letters.take_incidents()))
        batch = _Batch(plan, assignment, leaves_out_rejected=letters is not None)
        document = self._document(look, plan, attempt)
        # A repair of what the stream has not landed yet has nothing to put anywhere, and nothing to replace.
        if not (self._rules.repair and not plan.splits):
            batch.done = retries(self._log, f"the write to {self._target}")(lambda: self._write(batch, document))
        seconds = clock.lap()
        self._log.info(
            "committed %s of %s: %s",
            "nothing" if batch.done is None else f"version {batch.done.version}",
            self._target,
            facts(
                windows=len(plan.windows),
                rows=0 if batch.done is None else batch.done.rows,
                bytes_written=0 if batch.done is None else batch.done.bytes,
                splits=len(plan.splits),
                tasks=tasks,
                seconds=seconds,
            ),
        )
        return self._result(batch, document, plan_seconds, seconds)

    def _result(self, batch: _Batch, document: WindowsDocument, plan_seconds: float, seconds: float) -> WindowsResult:
        done = batch.done
        observed, seen = self._observed(batch)
        rows = None if self._rules.repair else {}
        tell_unknown(self._log, observed)
        if done is not None and not self._rules.repair:
            try:
                rows = self._table.rows_by_window(document, done, self._rules.column)
            except Exception as error:  # noqa: BLE001 - the windows are committed, whatever can't be told of them
                self._log.warning("the windows are committed; the rows of each can't be told: %s", telling_line(error))
                rows = None
        confirm_seconds = 0.0 if done is None else done.confirm_seconds
        return WindowsResult(
            plan=batch.plan,
            tasks=len(batch.assignment.task_plan.tasks),
            committed=done,
            observed=observed,
            seen=seen,
            rows=rows,
            location=self._table.location(),
            columns=batch.columns,
            plan_seconds=plan_seconds,
            read_and_write_seconds=seconds - confirm_seconds,
            confirm_seconds=confirm_seconds,
            spark_ui=ui_address(self._spark),
            can_miss=batch.reads and batch.window_watch is not None,
        )

    def _observed(self, batch: _Batch) -> tuple[Observed, WindowsSeen | None]:
        """What was seen of the records, and of their windows."""
        if not batch.reads or batch.watch is None:
            return Observed(records=0, bytes=0, rejected=0), None
        patience = 2.0 if batch.done is not None and batch.done.rows == 0 else 10.0
        metrics = {} if batch.window_watch is None else observed_metrics(batch.window_watch, patience)
        observed = batch.watch.get(patience, batch.whole.coverage(metrics))
        return observed, _seen(metrics) if observed.is_whole else None

    def _land_letters(
        self,
        letters: DeadLetterTable,
        look: WindowsLook,
        plan: WindowPlan,
        assignment: SplitAssignment,
        attempt: str,
    ) -> None:
        """Lands the rejected records of a repair, as far as they are not among the stream's dead letters yet."""
        from pyspark.sql import functions as f

        windows = [planned.window for planned in plan.windows]
        columns = self._repaired_columns()

        def select(rejected: DataFrame) -> DataFrame:
            if self._rules.event_time is None:
                return rejected.where(f.expr(time_predicate(windows, "kafka_timestamp")))
            # The time in a rejected record is not known. What keeps its row is not of these windows.
            kept = self._spark.table(self._target.identifier).where(
                f.expr(kept_predicate(windows, plan.splits, columns))
            )
            names = ("topic", "partition", "offset")
            same = [rejected[f"kafka_{name}"] == kept[quoted(columns[name])] for name in names]
            return rejected.join(kept, same, "left_anti")

        state = plan.state if look.position is None else replace(plan.state, position=look.position)
        repair = Repair(look.base_version, attempt, plan.splits, state)
        letters.land_missing(repair, look.routed, self._records(assignment), select)

    def _document(self, look: WindowsLook, plan: WindowPlan, attempt: str) -> WindowsDocument:
        is_tiled = self._rules.mode == "offset"
        return WindowsDocument(
            attempt=attempt,
            run_id=self._run_id,
            base_version=look.base_version,
            mode="repair" if self._rules.repair else self._rules.mode,
            windows=tuple(planned.window for planned in plan.windows),
            splits=plan.splits,
            state=plan.state,
            incomplete=tuple(planned.window.key for planned in plan.windows if not planned.is_complete),
            bounds=(plan.starts, *(planned.stops for planned in plan.windows)) if is_tiled else (),
            topics=self._topics,
            repairs=self._table.repairs,
            incidents=plan.incidents,
        )

    def _write(self, batch: _Batch, document: WindowsDocument) -> Committed | None:
        """Writes a batch; once more it is the same attempt."""
        from pyspark.sql import functions as f

        # Made anew each time: an observation tells of one run of a DataFrame, the first, and that may have failed.
        batch.whole = WholeBatch(batch.plan.splits)
        records = self._records(batch.assignment)
        if self._rules.repair:
            predicate = self._repair_predicate(batch.plan)
            rows = self._transformed(self._decoded(records, batch)).where(f.expr(predicate))
        else:
            topic = self._decoder.columns.name("topic")
            windows = [planned.window for planned in batch.plan.windows]
            predicate = windows_predicate(windows, self._rules.column, topic, self._topics)
            rows = self._transformed(self._windowed(records, batch))
        if self._transform is not None and batch.reads:
            batch.whole.transformed(self._spark)
        batch.columns = self._table.check_schema(rows.schema)
        progress = ReadProgress(batch.plan.offset_span)
        try:
            with read_watched(self._spark, write_tag(document.attempt), progress, self._log):
                return self._table.rewrite(rows, document, predicate)
        except WriteFailedError as error:
            if (record := record_set_by_producer(error)) is not None:
                msg = (
                    f"{record}: a producer set its time, and by the topic's settings (message.timestamp.type) brokers "
                    "do: the setting was changed. Such a record may be late, and the log was not read for late ones. "
                    "Nothing was written. Tolerate TimestampTypeChangedError to read it as far as max_lateness says"
                )
                raise TimestampTypeChangedError(msg) from None
            if is_rejection(error):
                raise rejected_records(records, self._decoder) from None
            raise

    def _records(self, assignment: SplitAssignment) -> DataFrame:
        if assignment.plan.is_empty:
            return no_records(self._spark)
        return read(self._source, self._spark, assignment)

    def _windowed(self, records: DataFrame, batch: _Batch) -> DataFrame:
        """Decoded records of the windows, each with its window's key."""
        windows = WindowFilter(batch.plan, self._rules)
        if windows.is_by_value:
            rows = self._watched(windows, self._decoded(records, batch, CARRIED), batch)
        else:
            rows = self._decoded(self._watched(windows, records, batch), batch, {WINDOW: WINDOW})
        return windows.labelled(rows, self._rules.column)

    def _watched(self, windows: WindowFilter, records: DataFrame, batch: _Batch) -> DataFrame:
        from pyspark.sql import Observation

        numbered = windows.number(records)
        metrics = windows.metrics()
        batch.window_watch = Observation() if metrics else None
        if batch.window_watch is None:
            return windows.inside(numbered)
        if not windows.is_by_value:
            # Before those that are in no window are left out.
            metrics += batch.whole.metrics()
        return windows.inside(numbered.observe(batch.window_watch, *metrics))

    def _decoded(self, records: DataFrame, batch: _Batch, carry: dict[str, str] | None = None) -> DataFrame:
        is_counted = batch.window_watch is not None and self._rules.event_time is None
        batch.watch = BatchObservation(batch.plan.splits, batch.whole, is_counted=is_counted)
        staged = batch.watch.watch(self._decoder.stage(records), self._decoder.problem())
        return self._decoder.finish(staged, carry=carry, leave_out_rejected=batch.leaves_out_rejected)

    def _transformed(self, rows: DataFrame) -> DataFrame:
        result = transformed(rows, self._transform)
        column = self._rules.column
        if not self._rules.repair and column.lower() not in {name.lower() for name in result.columns}:
            msg = (
                f"the transform left out the column {column}, which says which window a row is of; keep it, and group "
                "by it where rows are aggregated"
            )
            raise ConfigurationError(msg)
        return result

    def _repair_predicate(self, plan: WindowPlan) -> str:
        return repair_predicate([planned.window for planned in plan.windows], plan.splits, self._repaired_columns())

    def _repaired_columns(self) -> dict[str, str]:
        """The repaired table's columns by what they hold."""
        names = self._decoder.columns
        return {
            "topic": names.name("topic"),
            "partition": names.name("partition"),
            "offset": names.name("offset"),
            "time": self._rules.time_column or self._rules.event_time or names.name("timestamp"),
        }


class _Batch:
    """One commit on its way.

    Args:
        plan: What is read.
        assignment: The same, dealt out to tasks.
        leaves_out_rejected: Whether records that can't be decoded are left out.
    """

    def __init__(self, plan: WindowPlan, assignment: SplitAssignment, *, leaves_out_rejected: bool = False) -> None:
        self.plan = plan
        self.assignment = assignment
        self.leaves_out_rejected = leaves_out_rejected
        self.whole = WholeBatch(plan.splits)
        self.watch: BatchObservation | None = None
        self.window_watch: Observation | None = None
        self.columns: tuple[tuple[str, str], ...] = ()
        self.done: Committed | None = None

    @property
    def reads(self) -> bool:
        """Whether there is something to read."""
        return bool(self.plan.splits)


def _seen(metrics: dict[str, Any]) -> WindowsSeen | None:
    if "stragglers" not in metrics:
        return None
    late: dict[int, int] = {}
    for step in json.loads(metrics["late"] or "[]"):
        # Parts of a histogram that were counted apart may come as several steps of the same value.
        late[round(step["x"])] = late.get(round(step["x"]), 0) + round(step["y"])
    return WindowsSeen(late, metrics["stragglers"], metrics["timeless"])
