"""Landing: one batch after the other is read, decoded, transformed and committed."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import WriteFailedError
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records
from dagster_kafka_flip.ingestion.observation import BatchObservation, Observed, WholeBatch, tell_unknown
from dagster_kafka_flip.ingestion.progress import ReadProgress
from dagster_kafka_flip.ingestion.read_watch import read_watched
from dagster_kafka_flip.ingestion.reader_failures import write_retries
from dagster_kafka_flip.ingestion.result import BatchResult
from dagster_kafka_flip.ingestion.stopwatch import Clock
from dagster_kafka_flip.ingestion.transform import transformed
from dagster_kafka_flip.reader.read import no_records
from dagster_kafka_flip.reader.set_aside import around_unreadable
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.log_line import facts
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.interruptible import write_tag
from dagster_kafka_flip.table.spark_error import telling_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.history import Anchor
    from dagster_kafka_flip.table.table_version import TableVersion
    from dagster_kafka_flip.table.written import Committed


class _Written(NamedTuple):
    """A batch that is in the table.

    Attributes:
        document: The commit's document.
        committed: What the table's history says.
        watch: What was observed of the write.
        seconds: How long it took.
        incidents: What was met and tolerated on the way.
    """

    document: CommitDocument
    committed: Committed
    watch: BatchObservation
    seconds: float
    incidents: tuple[Incident, ...]


class Landing:
    """What one run does with a batch once it is planned.

    Args:
        spec: The run.
        session: To read and write with.
        context: What enumerators are told.
        table: Where to.
        letters: What becomes of records that can't be decoded; None if they stop the run or are kept.
        leave_out_rejected: Whether they are left out although they go nowhere.

    Attributes:
        columns: Names and types of the table's columns, once a batch was landed.
    """

    def __init__(
        self,
        spec: RunSpec[Source],
        session: SparkSession,
        context: SplitEnumeratorContext,
        table: DeltaTable,
        letters: DeadLetterTable | None = None,
        *,
        leave_out_rejected: bool = False,
    ) -> None:
        self.columns: tuple[tuple[str, str], ...] = ()
        self._spec = spec
        self._session = session
        self._context = context
        self._table = table
        self._letters = letters
        self._leave_out_rejected = leave_out_rejected or letters is not None

    def schema(self) -> StructType:
        """The columns of the rows to land; nothing is read."""
        return self._decoded(no_records(self._session)).schema

    def land(
        self,
        anchor: Anchor,
        assignment: SplitAssignment,
        *,
        overrides_start: bool = False,
        incidents: tuple[Incident, ...] = (),
        replays: TableVersion | None = None,
        confirm: Callable[[CommitDocument, Committed], None] | None = None,
    ) -> BatchResult:
        """Lands one batch, in one commit.

        Args:
            anchor: Where the stream stands.
            assignment: The batch.
            overrides_start: Whether the batch starts elsewhere than at the position, because somebody said so.
            incidents: What was tolerated before it.
            replays: The commit whose splits these are, where they are landed once more.
            confirm: Looks, right after the commit, whether what was read is what was planned. Default: nobody does.

        Raises:
            KafkaFlipError: Nothing of the batch was committed; but for CommitUnknownError, which says that it may be.
        """
        batch = assignment.plan
        tasks = len(assignment.task_plan.tasks)
        takes_up = [
            tp
            for tp in batch.state.position
            if anchor.state is None or tp not in anchor.state.position or not is_same_log(tp, anchor.state, batch.state)
        ]

        def write(met: tuple[Incident, ...]) -> _Written:
            assignment = self._context.assignment(batch)
            if self._letters is not None:
                self._letters.prepare(None if batch.is_empty else self._records(assignment))
            document = CommitDocument(
                stream=self._spec.target.stream,
                attempt=uuid.uuid4().hex,
                run_id=self._spec.run_id,
                base_version=anchor.table_version,
                anchor_version=anchor.version,
                splits=batch.splits,
                state=batch.state,
                rows_before=self._table.count_rows() if anchor.table_rows is None else anchor.table_rows,
                overrides_start=overrides_start,
                dead_letter=None if self._letters is None else self._letters.route(),
                incidents=(*incidents, *met),
                replays=replays,
            )
            clock = Clock()
            retrying = write_retries(self._spec.log, self._spec.target, self._spec.source, self._context, batch.splits)
            committed, watch = retrying(
                lambda: self._commit(assignment, document, takes_up, retrying.statistics["attempt_number"])
            )
            return _Written(document, committed, watch, clock.lap(), met)

        document, committed, watch, seconds, met = around_unreadable(
            write, self._spec.source, self._context, batch.splits, self._spec.log
        )
        if confirm is not None:
            confirm(document, committed)
        observed = self._observed(watch, patience=2.0 if committed.rows == 0 else 10.0)
        self._spec.log.info(
            "committed version %d of %s: %s",
            committed.version,
            self._spec.target,
            facts(
                rows=committed.rows,
                bytes_written=committed.bytes,
                records=observed.records,
                bytes_read=observed.bytes,
                rejected=observed.rejected,
                splits=len(batch.splits),
                tasks=tasks,
                lag=sum(batch.lag_after.values()),
                seconds=seconds,
            ),
        )
        tell_unknown(self._spec.log, observed)
        routed = document.routed(committed.version)
        if self._letters is not None and routed is not None:
            # Of a batch that was not counted whole, the dead letters are found by reading it again.
            rejected = self._letters.settle(routed, observed if observed.is_whole else None)
            observed = replace(observed, rejected=rejected)
        return BatchResult(
            plan=batch,
            tasks=tasks,
            committed=committed,
            observed=observed,
            read_and_write_seconds=seconds - committed.confirm_seconds,
            confirm_seconds=committed.confirm_seconds,
            incidents=met,
        )

    def _observed(self, watch: BatchObservation, patience: float) -> Observed:
        """What was seen of a batch. It is committed by now, so that a failure here only leaves that unknown."""
        try:
            return watch.get(patience)
        except Exception as error:  # noqa: BLE001 - whatever it is, it takes nothing away from the commit
            return Observed.nothing(f"Spark's count of them can't be read: {telling_line(error)}")

    def _commit(
        self,
        assignment: SplitAssignment,
        document: CommitDocument,
        takes_up: Sequence[TopicPartition],
        attempt_number: int,
    ) -> tuple[Committed, BatchObservation]:
        """Commits a batch; once more it is the same attempt, as it was planned, if the logs still hold it."""
        if attempt_number > 1:
            self._make_sure_it_is_there(assignment)
        # Made anew each time: an observation tells of one run of a DataFrame, the first, and that may have failed.
        splits = assignment.plan.splits
        watch = BatchObservation(splits, WholeBatch(splits))
        rows = self._decoded(self._records(assignment), watch)
        if self._spec.transform is not None and not assignment.plan.is_empty:
            watch.whole.transformed(rows)
        self.columns = self._table.check_schema(rows.schema)
        plan = assignment.plan
        progress = ReadProgress(plan.offset_span, self._context.record_bytes, behind=sum(plan.lag_after.values()))
        try:
            with read_watched(self._session, write_tag(document.attempt), progress, self._spec.log):
                return self._table.commit(rows, document, takes_up), watch
        except WriteFailedError as error:
            if is_rejection(error):
                raise rejected_records(self._records(assignment), self._spec.decoder) from None
            raise

    def _make_sure_it_is_there(self, assignment: SplitAssignment) -> None:
        """Retention may have taken what was planned while it was read; the logs tell with which numbers."""
        plan = assignment.plan
        if plan.is_empty:
            return
        with contextlib.closing(self._spec.source.restore_enumerator(self._context, plan.state)) as enumerator:
            enumerator.replay(plan.splits)

    def _records(self, assignment: SplitAssignment) -> DataFrame:
        if assignment.plan.is_empty:
            return no_records(self._session)
        return self._spec.read(self._spec.source, self._session, assignment)

    def _decoded(self, records: DataFrame, watch: BatchObservation | None = None) -> DataFrame:
        staged = self._spec.decoder.stage(records)
        if watch is not None:
            staged = watch.watch(staged, self._spec.decoder)
        rows = self._spec.decoder.finish(staged, leave_out_rejected=self._leave_out_rejected)
        return transformed(rows, self._spec.transform)
