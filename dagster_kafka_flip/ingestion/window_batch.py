"""WindowLanding: reads records, puts them into windows, and replaces those windows in one commit."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    EndBeforePositionError,
    KafkaFlipError,
    LogChangedError,
    RetentionOvertookPositionError,
    TimestampTypeChangedError,
    TopicNotFoundError,
    TopicRecreatedError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records
from dagster_kafka_flip.formats.learning import knowing_schemas
from dagster_kafka_flip.ingestion.dead_letter_table import Repair
from dagster_kafka_flip.ingestion.log_confirmation import LogConfirmation
from dagster_kafka_flip.ingestion.observation import Observed, log_observed
from dagster_kafka_flip.ingestion.progress import ReadProgress, measure_commit, measure_incidents
from dagster_kafka_flip.ingestion.reader_failures import naming_wild_timestamps, write_retries
from dagster_kafka_flip.ingestion.result import WindowsResult, WindowsSeen
from dagster_kafka_flip.ingestion.rows_to_replace import ReplacedRows, RowsToReplace, check_keeps
from dagster_kafka_flip.ingestion.run_spec import Clock
from dagster_kafka_flip.ingestion.tolerance import log_tolerated
from dagster_kafka_flip.ingestion.window_read import window_rows
from dagster_kafka_flip.reader.window_filter import record_set_by_producer
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.runtime.spark_status import ui_address
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.window import carried
from dagster_kafka_flip.table.document import EXACT, WindowsDocument
from dagster_kafka_flip.table.schema import comments, names_and_types
from dagster_kafka_flip.table.spark_error import error_summary
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.window_rows import LandedLogs, kept_predicate, time_predicate
from dagster_kafka_flip.table.windowed_table import Replacement
from dagster_kafka_flip.telemetry.log_fields import log_with_fields

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.ingestion.window_read import WindowsObservation
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.window import WindowPlan, Windows
    from dagster_kafka_flip.source.window_enumerator import WindowEnumerator
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.schema import TableColumns
    from dagster_kafka_flip.table.windowed_table import WindowedTable, WindowsLook


class PlannedLogsGoneError(KafkaFlipError):
    """A log lost planned records during the read; nothing was written. Plan again."""


class WindowLanding:
    """Writes the planned windows of one run.

    The rows of the topics are replaced; if these are None, those of all topics of the source.
    """

    def __init__(
        self,
        spec: RunSpec,
        session: SparkSession,
        context: SplitEnumeratorContext,
        *,
        enumerator: WindowEnumerator,
        table: WindowedTable,
        rules: Windows,
        topics: tuple[str, ...] | None,
    ) -> None:
        self._spec = spec
        self._target = spec.target
        self._session = session
        self._context = context
        self._enumerator = enumerator
        self._table = table
        self._rules = rules
        self._topics = topics
        self.commits = 0
        self.dead_letters: int | None = 0
        self._rows = window_rows(session, spec, rules)
        self._to_replace = RowsToReplace(spec, context, table, rules, topics)
        self._confirmation = LogConfirmation(spec.log)

    def create(self, plan: WindowPlan) -> None:
        """Creates the table, empty."""
        landed = LandedLogs().landing(plan.state, plan.stops, self._target.stream, instants.now_ms())
        self._table.create(self._rows.schema(), landed)

    def land(
        self, look: WindowsLook, plan: WindowPlan, plan_seconds: float, letters: DeadLetterTable | None = None
    ) -> WindowsResult:
        """Replaces some windows, in one commit.

        Raises:
            ForeignConflictError: Another writer changed the table meanwhile; plan again.
            PlannedLogsGoneError: A log no longer has the planned records; plan again.
            LogChangedError: It was committed, and its rows may come from another log.
            CommitUnknownError: It may be committed.
            KafkaFlipError: Nothing was committed.
        """
        self._confirmation.ask_again()
        scoped, plan = self._to_replace.of(look, plan)
        for incident in plan.incidents:
            log_tolerated(self._spec.log, incident)
        tasks = len(self._enumerator.assign(plan).task_plan.tasks)
        log_with_fields(
            self._spec.log,
            "planned %s from %s to %s",
            counted(len(plan.windows), "window"),
            plan.windows[0].window.start,
            plan.windows[-1].window.stop,
            splits=len(plan.splits),
            offsets=plan.offset_span,
            seconds=plan_seconds,
        )
        # Before the commit: if Spark dies after it, the result must not suffer.
        spark_ui = ui_address(self._session)
        location, table_name = self._table.delta.location(), self._table.delta.name_in_catalog()
        clock = Clock()
        with naming_wild_timestamps(self._spec.source, self._context, plan.splits):
            batch = knowing_schemas(
                lambda: self._written(look, plan, scoped, letters),
                lambda: self._rows.records(self._enumerator.assign(plan)),
                self._spec.decoder,
                self._spec.log,
            )
        seconds = clock.lap()
        self.commits += batch.done is not None
        self._confirm(batch)
        log_with_fields(
            self._spec.log,
            "committed %s of %s",
            "nothing" if batch.done is None else f"version {batch.done.version}",
            self._target,
            windows=len(plan.windows),
            rows=0 if batch.done is None else batch.done.rows,
            bytes_written=0 if batch.done is None else batch.done.bytes,
            splits=len(plan.splits),
            tasks=tasks,
            seconds=seconds,
        )
        return self._result(batch, plan_seconds, seconds, location, table_name, spark_ui)

    def _confirm(self, batch: _Batch) -> None:
        """Checks that the windows were read from the logs that they were planned for."""
        plan, done = batch.plan, batch.done

        def doubt(error: KafkaFlipError) -> LogChangedError:
            first, last = plan.windows[0].window, plan.windows[-1].window
            windows = f"the windows from {first.start} to {last.stop}"
            begin = f"{error.finding}. This happened while {windows} were read for {self._target}"
            again = (
                f"Set the stream's position first ({set_position(str(self._target), self._target.stream)}), and repair "
                "the range then"
                if self._rules.repair
                else "To replace their rows with the new log's records, write the windows again and tolerate "
                f"{type(error).__name__}"
            )
            if done is None:
                return LogChangedError(
                    f"{begin}. No records were found, possibly because they were in the other log",
                    again,
                    outcome="Nothing was written",
                )
            return LogChangedError(
                f"{begin} and written in version {done.version}: the rows may come from either log",
                f"1. RESTORE TABLE {self._target.identifier} TO VERSION AS OF {done.version - 1} brings back the "
                f"previous rows. 2. {again}",
                outcome="The commit stays",
            )

        self._confirmation.confirm(lambda: self._enumerator.check_same_logs(plan), doubt)

    def finish(self) -> None:
        """Checks the last commit's logs again, if Kafka did not answer the first time."""
        self._confirmation.finish()

    def _written(
        self, look: WindowsLook, plan: WindowPlan, scoped: ReplacedRows, letters: DeadLetterTable | None
    ) -> _Batch:
        """Writes one commit."""
        attempt = uuid.uuid4().hex
        assignment = self._enumerator.assign(plan)
        if letters is not None and plan.splits:
            # Before the rows are replaced: a record that was decoded then and is rejected now is never missing.
            self._land_letters(letters, look, plan, assignment, attempt)
            self.dead_letters = total((self.dead_letters, letters.landed))
            plan = replace(plan, incidents=(*plan.incidents, *letters.take_incidents()))
        batch = _Batch(plan, assignment, look, scoped, leaves_out_rejected=letters is not None)
        # A repair of a range that the stream has not reached has nothing to replace.
        if not (self._rules.repair and not plan.splits):
            retrying = write_retries(self._spec.log, self._target, self._spec.source, self._context, plan.splits)
            batch.done = retrying(lambda: self._write(batch, attempt, retrying.statistics["attempt_number"]))
        batch.plan = batch.plan_with_losses
        return batch

    def _result(
        self,
        batch: _Batch,
        plan_seconds: float,
        seconds: float,
        location: str,
        table_name: str | None,
        spark_ui: str | None,
    ) -> WindowsResult:
        done = batch.done
        try:
            observed, seen = self._observed(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it takes nothing away from the commit
            observed = Observed.nothing(f"Spark's count of them can't be read: {error_summary(error)}")
            seen = None
        log_observed(self._spec.log, observed)
        if done is not None:
            measure_commit(self._spec, done, observed)
        measure_incidents(self._spec, batch.plan.incidents)
        rows = rows_by_topic = None
        scope = batch.scoped.scope
        if scope is not None:
            counted = self._table.rows_by_window(
                [planned.window for planned in batch.plan.windows],
                done,
                self._rules.column,
                None if self._topics is None else self._spec.decoder.columns.name("topic"),
                is_whole=scope.topics is None,
            )
            if counted is not None:
                rows_by_topic = {(key, topic): count for (key, topic), count in counted.items() if topic is not None}
                rows = {}
                for (key, _), count in counted.items():
                    rows[key] = rows.get(key, 0) + count
        confirm_seconds = 0.0 if done is None else done.confirm_seconds
        return WindowsResult(
            plan=batch.plan,
            tasks=len(batch.assignment.task_plan.tasks),
            committed=done,
            observed=observed,
            seen=seen,
            rows=rows,
            rows_by_topic=rows_by_topic if self._topics is not None else None,
            location=location,
            table_name=table_name,
            columns=names_and_types(batch.columns),
            comments=comments(batch.columns),
            column_changes=() if batch.columns is None else batch.columns.changes,
            columns_not_written=() if batch.columns is None else batch.columns.not_written,
            reader_schemas=self._spec.decoder.reader_schemas,
            plan_seconds=plan_seconds,
            read_and_write_seconds=seconds - confirm_seconds,
            confirm_seconds=confirm_seconds,
            spark_ui=spark_ui,
            kept=() if scope is None else tuple(sorted(scope.kept)),
            can_miss=batch.reads and batch.scoped.scope is not None,
        )

    def _observed(self, batch: _Batch) -> tuple[Observed, WindowsSeen | None]:
        """Returns the counts of the records and of their windows."""
        if not batch.reads or batch.watch is None:
            return Observed(records=0, bytes=0, rejected=0), None
        return batch.watch.get(patience=2.0 if batch.done is not None and batch.done.rows == 0 else 10.0)

    def _land_letters(
        self,
        letters: DeadLetterTable,
        look: WindowsLook,
        plan: WindowPlan,
        assignment: SplitAssignment,
        attempt: str,
    ) -> None:
        """Writes the rejected records of a repair that are not among the stream's dead letters yet."""
        from pyspark.sql import functions as f

        windows = [planned.window for planned in plan.windows]
        columns = self._to_replace.repaired_columns()

        def select(rejected: DataFrame) -> DataFrame:
            if self._rules.event_time is None:
                return rejected.where(f.expr(time_predicate(windows, "kafka_timestamp")))
            # The event time of a rejected record is unknown. Records whose rows stay are not in these windows.
            kept = self._table.delta.rows().where(f.expr(kept_predicate(windows, plan.splits, columns)))
            names = ("topic", "partition", "offset")
            same = [rejected[f"kafka_{name}"] == kept[quoted(columns[name])] for name in names]
            return rejected.join(kept, same, "left_anti")

        state = plan.state if look.position is None else replace(plan.state, position=look.position)
        repair = Repair(look.base_version, attempt, plan.splits, state)
        letters.land_missing(repair, look.routed, self._rows.records(assignment), select)
        letters.confirm()

    def _document(self, batch: _Batch, attempt: str) -> WindowsDocument:
        look, plan, scope = batch.look, batch.plan_with_losses, batch.scoped.scope
        replaced = None if scope is None or scope.topics is None else tuple(scope.topics)
        return WindowsDocument(
            attempt=attempt,
            run_id=self._spec.run_id,
            base_version=look.base_version,
            mode="repair" if self._rules.repair else EXACT,
            windows=tuple(planned.window for planned in plan.windows),
            splits=plan.splits,
            state=plan.state if self._rules.repair else carried(look.known, plan),
            topics=self._topics if self._rules.repair else replaced,
            repairs=self._table.repairs,
            incidents=plan.incidents,
            until_ms=None if self._rules.repair else max(look.until_ms or 0, plan.windows[-1].window.stop_ms),
            schemas=self._spec.decoder.schemas,
        )

    def _check_still_in_log(self, plan: WindowPlan) -> None:
        """Checks that the logs still have the planned records. If not, another plan finds out what to do."""
        if not plan.splits:
            return
        with contextlib.closing(self._spec.source.restore_enumerator(self._context, plan.state)) as enumerator:
            try:
                enumerator.replay(plan.splits)
            except (
                ClusterChangedError,
                EndBeforePositionError,
                RetentionOvertookPositionError,
                TopicNotFoundError,
                TopicRecreatedError,
            ) as error:
                raise PlannedLogsGoneError(error.finding, error.advice) from error

    def _write(self, batch: _Batch, attempt: str, attempt_number: int) -> Committed | None:
        """Writes a batch. A repeat is the same attempt, if the logs still have its records."""
        if attempt_number > 1:
            self._check_still_in_log(batch.plan)
        with dead_spark_as_error():
            records = self._rows.records(batch.assignment)
        try:
            with self._watching(batch, look := f"{attempt}-look"):
                batch.losses = TableWriter(self._table.delta).read(lambda: self._lost(records, batch), look)
            return self._write_rows(records, batch, attempt)
        except WriteFailedError as error:
            if (record := record_set_by_producer(error)) is not None:
                raise TimestampTypeChangedError(
                    f"{record}: a producer set its timestamp, but message.timestamp.type of the topic says that "
                    "brokers set it: the setting was changed. Such records may be late, and late records were not read",
                    "Tolerate TimestampTypeChangedError to read as far as max_lateness allows",
                ) from None
            if is_rejection(error):
                raise rejected_records(records, self._spec.decoder, dead_letters=self._rules.repair) from None
            raise

    def _watching(self, batch: _Batch, attempt: str) -> AbstractContextManager[None]:
        return self._rows.watched(attempt, ReadProgress(batch.plan.offset_span))

    def _lost(self, records: DataFrame, batch: _Batch) -> tuple[Incident, ...]:
        """The tolerated loss of records that the table has rows of, by a read of its own."""
        return self._to_replace.lost(
            batch.plan, batch.scoped, lambda rows, named: self._rows.missing(rows, named, records, batch.plan)
        )

    def _write_rows(self, records: DataFrame, batch: _Batch, attempt: str) -> Committed | None:
        scope, predicate = batch.scoped.scope, batch.scoped.predicate
        rows, batch.watch = self._rows.rows(
            records, batch.plan, are_windows=scope is not None, leave_out_rejected=batch.leaves_out_rejected
        )
        with dead_spark_as_error():
            if scope is None:
                check_keeps(rows, list(self._to_replace.repaired_columns().values()))
                rows = self._to_replace.repaired(rows, batch.plan, predicate)
            else:
                check_keeps(rows, self._to_replace.needed_columns(scope))
            batch.columns = self._table.delta.check_schema(rows.schema)
        if scope is not None:
            landed = batch.look.landed.landing(
                batch.plan.state,
                batch.plan.stops,
                self._target.stream,
                batch.look.until_ms or instants.now_ms(),
                batch.plan.made_again,
            )
            self._table.keep(landed, batch.look)
        replacement = Replacement(predicate, frozenset(batch.plan.stops))
        with self._watching(batch, attempt):
            return self._table.rewrite(rows, self._document(batch, attempt), replacement)


@dataclass
class _Batch:
    """A commit that is being made."""

    plan: WindowPlan
    assignment: SplitAssignment
    look: WindowsLook
    scoped: ReplacedRows
    leaves_out_rejected: bool
    watch: WindowsObservation | None = None
    columns: TableColumns | None = None
    done: Committed | None = None
    losses: tuple[Incident, ...] = ()

    @property
    def plan_with_losses(self) -> WindowPlan:
        """The plan, with what its look at the records found."""
        return replace(self.plan, incidents=(*self.plan.incidents, *self.losses))

    @property
    def reads(self) -> bool:
        """Whether there is something to read."""
        return bool(self.plan.splits)
