"""Landing: reads, decodes, transforms and commits the batches of a stream, one by one."""

from __future__ import annotations

import contextlib
import functools
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from dagster_kafka_flip.errors import WriteFailedError
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records, truncation
from dagster_kafka_flip.formats.learning import knowing_schemas
from dagster_kafka_flip.ingestion.keyed_stream import (
    carried,
    change_columns,
    change_rows,
    check_keeps_unavailable,
    with_tombstones,
)
from dagster_kafka_flip.ingestion.observation import (
    NOTHING_REPORTED,
    BatchObservation,
    Observed,
    WholeBatch,
    log_observed,
)
from dagster_kafka_flip.ingestion.progress import ReadProgress, measure_commit, read_watched
from dagster_kafka_flip.ingestion.reader_failures import naming_wild_timestamps, write_retries
from dagster_kafka_flip.ingestion.result import BatchResult
from dagster_kafka_flip.ingestion.run_spec import Clock
from dagster_kafka_flip.reader.kafka_reader import no_records
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.source.identity import taken_up
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.interruptible import write_tag
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.spark_error import error_summary
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.transform import transformed
from dagster_kafka_flip.telemetry.log_fields import log_with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.schema import TableColumns


class Landing:
    """Writes the planned batches of one run."""

    def __init__(
        self,
        spec: RunSpec,
        session: SparkSession,
        context: SplitEnumeratorContext,
        table: DeltaTable,
        letters: DeadLetterTable | None = None,
    ) -> None:
        self.columns: TableColumns | None = None
        self.commits = 0
        self._spec = spec
        self._context = context
        self._table = table
        self._letters = letters
        self._rows = batch_rows(session, spec, leave_out_rejected=letters is not None)

    def schema(self) -> StructType:
        """Returns the schema of the rows, without reading anything."""
        return self._rows.schema()

    def land(
        self,
        anchor: Anchor,
        assignment: SplitAssignment,
        *,
        overrides_start: bool = False,
        incidents: tuple[Incident, ...] = (),
        confirm: Callable[[CommitDocument, Committed], None] | None = None,
    ) -> BatchResult:
        """Writes one batch in one commit.

        Raises:
            CommitUnknownError: The batch may be committed.
            KafkaFlipError: Nothing of the batch was committed.
        """
        if self._letters is not None:
            # Opened before the document is fixed, which records what is tolerated of that table, too.
            self._letters.prepare(None)
            incidents = (*incidents, *self._letters.take_incidents())
        batch = assignment.plan
        tasks = len(assignment.task_plan.tasks)
        takes_up = taken_up(anchor.state, batch.state)

        def write() -> tuple[CommitDocument, Committed, BatchObservation]:
            if self._letters is not None and not batch.is_empty:
                self._letters.prepare(self._rows.records(assignment))
            document = CommitDocument(
                stream=self._spec.target.stream,
                attempt=uuid.uuid4().hex,
                run_id=self._spec.run_id,
                base_version=anchor.table_version,
                anchor_version=anchor.version,
                after=anchor.attempt,
                splits=batch.splits,
                state=batch.state,
                rows_before=self._table.count_rows() if anchor.table_rows is None else anchor.table_rows,
                overrides_start=overrides_start,
                dead_letter=None if self._letters is None else self._letters.route(),
                incidents=incidents,
                schemas=self._spec.decoder.schemas,
                mode=self._spec.target.mode,
            )
            retrying = write_retries(self._spec.log, self._spec.target, self._spec.source, self._context, batch.splits)
            committed, watch = retrying(
                lambda: self._commit(assignment, document, takes_up, retrying.statistics["attempt_number"])
            )
            return document, committed, watch

        # Of all attempts: failed ones took time, too.
        clock = Clock()
        with naming_wild_timestamps(self._spec.source, self._context, batch.splits, self._spec.target):
            document, committed, watch = knowing_schemas(
                write, lambda: self._rows.records(assignment), self._spec.decoder, self._spec.log
            )
        self.commits += 1
        seconds = clock.lap()
        if confirm is not None:
            confirm(document, committed)
        observed = self._observed(watch, patience=2.0 if committed.rows == 0 else 10.0)
        if observed.unknown == NOTHING_REPORTED and committed.rows == 0 and self._has_no_record(batch):
            observed = Observed(records=0, bytes=0, rejected=0)
        log_with_fields(
            self._spec.log,
            "committed version %d of %s",
            committed.version,
            self._spec.target,
            rows=committed.rows,
            bytes_written=committed.bytes,
            records=observed.records,
            bytes_read=observed.bytes,
            rejected=observed.rejected,
            splits=len(batch.splits),
            tasks=tasks,
            lag=sum(batch.lag_after.values()),
            seconds=seconds,
        )
        measure_commit(self._spec, committed, observed)
        log_observed(self._spec.log, observed)
        routed = document.routed(committed.version)
        if self._letters is not None and routed is not None:
            # If not all of the batch was counted, reading it again finds the dead letters.
            rejected = self._letters.settle(routed, observed if observed.is_whole else None)
            observed = replace(observed, rejected=rejected)
        return BatchResult(
            plan=batch,
            tasks=tasks,
            committed=committed,
            observed=observed,
            read_and_write_seconds=seconds - committed.confirm_seconds,
            confirm_seconds=committed.confirm_seconds,
            incidents=document.incidents,
        )

    def _observed(self, watch: BatchObservation, patience: float) -> Observed:
        """Returns the counts of a batch. It is committed: a failure here only makes them unknown."""
        try:
            return watch.get(patience)
        except Exception as error:  # noqa: BLE001 - whatever it is, it takes nothing away from the commit
            return Observed.nothing(f"Spark's count of them can't be read: {error_summary(error)}")

    def _has_no_record(self, batch: ReadPlan) -> bool:
        """Whether there is no record in a batch's offsets, as compaction leaves them."""
        # If rows are merged by key, Spark then drops what observes them from its adaptive plan.
        try:
            return self._rows.records(self._context.assignment(batch)).isEmpty()
        except Exception:  # noqa: BLE001 - the batch is committed, and what can't be read stays unknown
            return False

    def _commit(
        self,
        assignment: SplitAssignment,
        document: CommitDocument,
        takes_up: Sequence[TopicPartition],
        attempt_number: int,
    ) -> tuple[Committed, BatchObservation]:
        """Commits a batch. A repeat is the same attempt with the same plan, if the logs still hold its records."""
        if attempt_number > 1:
            self._check_still_in_log(assignment)
        batch, watch = self._rows.rows(assignment)
        with dead_spark_as_error():
            columns = self._table.check_schema((batch.landed if isinstance(batch, Changes) else batch).schema)
        before = () if self.columns is None else self.columns.changes
        # A repeat finds the same changes.
        self.columns = replace(columns, changes=tuple(dict.fromkeys((*before, *columns.changes))))
        plan = assignment.plan
        progress = ReadProgress(plan.offset_span, self._context.record_bytes, behind=sum(plan.lag_after.values()))
        try:
            with self._rows.watched(document.attempt, progress):
                return TableWriter(self._table).commit(batch, document, takes_up), watch
        except WriteFailedError as error:
            if is_rejection(error):
                nulls = not self._spec.target.key
                raise rejected_records(self._rows.records(assignment), self._spec.decoder, nulls=nulls) from None
            if (truncated := truncation(error, str(self._spec.target))) is not None:
                raise truncated from None
            raise

    def _check_still_in_log(self, assignment: SplitAssignment) -> None:
        """Checks that retention has not deleted planned records meanwhile; the error has the numbers."""
        plan = assignment.plan
        if plan.is_empty:
            return
        with contextlib.closing(self._spec.source.restore_enumerator(self._context, plan.state)) as enumerator:
            enumerator.replay(plan.splits)


class BatchRows(Protocol):
    """The bounded read of one run's batches, up to the rows."""

    def schema(self) -> StructType:
        """The columns of the rows, without reading anything."""
        ...

    def records(self, assignment: SplitAssignment) -> DataFrame:
        """The records of a batch, as they are read."""
        ...

    def rows(self, assignment: SplitAssignment) -> tuple[DataFrame | Changes, BatchObservation]:
        """The rows of a batch, and what observes the write of them."""
        ...

    def watched(self, attempt: str, progress: ReadProgress) -> AbstractContextManager[None]:
        """Logs how far the write of an attempt has read."""
        ...


class _SparkRows:
    def __init__(self, session: SparkSession, spec: RunSpec, *, leave_out_rejected: bool) -> None:
        self._session = session
        self._spec = spec
        self._key = spec.target.key
        self._leave_out_rejected = leave_out_rejected

    def schema(self) -> StructType:
        rows = self._taken(self._decoded(no_records(self._session)))
        return (rows.landed if isinstance(rows, Changes) else rows).schema

    def records(self, assignment: SplitAssignment) -> DataFrame:
        return self._spec.records(self._session, assignment)

    def rows(self, assignment: SplitAssignment) -> tuple[DataFrame | Changes, BatchObservation]:
        # A new one each time: an observation reports the first run of a DataFrame, which may have failed.
        splits = assignment.plan.splits
        watch = BatchObservation(splits, WholeBatch(splits))
        with dead_spark_as_error():
            rows = self._decoded(self.records(assignment), watch)
            if self._spec.transform is not None and not assignment.plan.is_empty:
                watch.whole.transformed(rows)
        return self._taken(rows), watch

    def watched(self, attempt: str, progress: ReadProgress) -> AbstractContextManager[None]:
        return read_watched(self._session, write_tag(attempt), progress, self._spec.log)

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
        """The rows as the table takes them."""
        mode = self._spec.target.mode
        if isinstance(mode, Append):
            return rows
        changes = Changes(rows, mode, change_columns(self._spec.decoder.columns), mode.key)
        changes.check(str(self._spec.target))
        return changes


@functools.singledispatch
def batch_rows(session: Any, spec: RunSpec, *, leave_out_rejected: bool) -> BatchRows:
    """Returns the reads of a run in a session."""
    return _SparkRows(session, spec, leave_out_rejected=leave_out_rejected)
