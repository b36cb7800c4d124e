"""OpenStream: a stream whose position is read and whose splits are planned; lands them batch by batch.

The order of steps makes it exactly once: read the position from the table, fix the plan, and write the rows and the new
position in one Delta commit. Everything after the commit only reports.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    EndBeforePositionError,
    KafkaFlipError,
    TopicRecreatedError,
)
from dagster_kafka_flip.ingestion.batch_rows import run_rows
from dagster_kafka_flip.ingestion.batch_writer import Batch, BatchWriter
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.ingestion.observation import NOTHING_REPORTED, BatchObservation, Observed, observed_by_write
from dagster_kafka_flip.ingestion.progress import ReadProgress
from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult
from dagster_kafka_flip.ingestion.run_spec import nothing_written, start_spark
from dagster_kafka_flip.ingestion.stream_plan import StreamPlanner, find_unreported
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.api import SplitAssignment
from dagster_kafka_flip.source.identity import is_same_log, taken_up
from dagster_kafka_flip.source.incident import incident_of
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.commit import Committed
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.history import commits_that_count, documented
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.spark_error import error_summary
from dagster_kafka_flip.table.table_writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_kafka_flip.ingestion.run_spec import RunSource, RunSpec
    from dagster_kafka_flip.ingestion.tolerance import Incidents
    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.table.schema import TableColumns

_T = TypeVar("_T")
_Landed: TypeAlias = tuple[SplitAssignment, CommitDocument, Committed, BatchObservation]


class OpenStream:
    """A stream with a plan. It starts Spark, reads the position from the table, and creates the table if needed."""

    def __init__(
        self,
        spec: RunSpec,
        reads: RunSource,
        context: SplitEnumeratorContext,
        record: KnownPosition | None,
        incidents: Incidents,
        reported: int | None,
    ) -> None:
        self.context = context
        self._spec = spec
        self._reads = reads
        self._incidents = incidents
        self._commits = 0
        self._told_letters: int | None = 0
        session, self._spark_seconds, self._spark_ui = start_spark(spec, context)
        begun = time.monotonic()
        self._table = DeltaTable(session, spec.target, context.tolerated)
        self._letters = None
        if spec.dead_letters is not None:
            self._letters = DeadLetterTable(spec, session, context, self._table, spec.dead_letters)
        self._rows = run_rows(session, spec)
        self._writer = BatchWriter(spec, context, spec.target, self._table)
        self._batches: list[BatchResult] = []
        self._planner = StreamPlanner(
            spec, session, context, self._table, self._rows.schema, self._letters, record, reads, incidents, reported
        )
        try:
            self._continue_earlier_try()
            spec.log.info("looking up the position of the stream %r in %s", spec.target.stream, spec.target)
            self._planned = self._planner.plan(reads.first)
            # It may have committed since; what it commits after the plan is a conflict.
            if self._continue_earlier_try():
                self._planned = self._planner.plan(reads.source)
            self._unreported = None
            if reported is not None:
                self._unreported = find_unreported(self._table, spec.target, self._planned.anchor, reported, spec.log)
        except BaseException:
            self.close()
            raise
        self.plan = self._planned.plan
        self._plan_seconds = time.monotonic() - begun
        self._assigned: SplitAssignment | None = None
        self._until: Position | None = None
        self._columns: TableColumns | None = None
        self._group_commit_failures = 0

    def _continue_earlier_try(self) -> bool:
        """Drops the overridden start if an earlier try of this run has committed from it: it would land rows twice."""
        if self._reads.overriding is None or not self._spec.tries:
            return False
        for commit, document in documented(commits_that_count(self._table.history() or ()), self._spec.target.stream):
            if document.overrides_start and document.run_id in self._spec.tries:
                self._reads.overriding = None
                self._spec.log.warning(
                    "an earlier try of this run (%s) already started at its `start`, and committed version %s of %s: "
                    "continuing from the position. To start there once more, launch a new run",
                    document.run_id,
                    commit.version,
                    self._spec.target,
                )
                return True
        return False

    def outcome(self) -> str:
        return nothing_written(self._commits, 0 if self._letters is None else self._letters.landed, self._told_letters)

    @property
    def position(self) -> Position:
        """The stream's state once all assigned splits are committed."""
        state = self._planned.enumerator.snapshot_state()
        return {} if state is None else state.position

    @property
    def overridden(self) -> Position | None:
        """The position that the run's start overrides, empty for a new stream; None without such a start."""
        if self._reads.overriding is None:
            return None
        state, moved = self._planned.anchor.state, self._reads.overriding.starting_offsets.offsets
        position = {} if state is None else state.position
        return {tp: offset for tp, offset in position.items() if moved is None or tp in moved}

    @property
    def has_more(self) -> bool:
        return (
            self._planned.enumerator.has_pending
            and self._planner.needs_commit(self._planned)
            and len(self._batches) != self._spec.limits.max_batches
        )

    def assign(self, until: Position | None = None) -> bool:
        self._until = until
        self._assigned = self._planned.enumerator.assign(self._spec.limits, until) if self.has_more else None
        return self._assigned is not None

    def land(self) -> None:
        """Writes the assigned batch, if any; after a conflict with another writer, what is left is planned again."""
        landed = self._writer.write(self._batch, self.context.tolerated)
        if landed is None:
            return
        assignment, document, committed, watch = landed
        self._commits += 1
        self._confirm(document, committed)
        done = self._reported(assignment, document, committed, watch)
        self._batches.append(done)
        self._incidents.commit()
        if self._letters is not None:
            self._told_letters = self._letters.landed
            # Met after the commit: the next one records them.
            self._incidents.add(self._letters.take_incidents())
        planned = self._planned
        self._group_commit_failures += self._notify(planned.enumerator)
        if done.observed.records and done.observed.bytes is not None:
            self.context.record_bytes = done.observed.bytes / done.observed.records
        planned.anchor = planned.anchor.followed_by(committed, assignment.plan.state)
        self._planner.told = committed.version

    def _batch(self, conflict: KafkaFlipError | None) -> Batch[_Landed] | None:
        if conflict is not None:
            self._plan_again(conflict)
        if (assignment := self._assigned) is None:
            return None
        return Batch(
            "the batch",
            lambda: self._attempt(assignment),
            lambda: self._rows.records(assignment),
            assignment.plan.splits,
            assignment.plan.state,
        )

    def _plan_again(self, conflict: KafkaFlipError) -> None:
        planned = self._planned
        if isinstance(conflict, ConcurrentIngestionError):
            self._incidents.add((incident_of(conflict, "The run planned again from there."),))
        # What wrote for an earlier try may only now have ended.
        if not self._batches and self._continue_earlier_try():
            self._planned = self._planner.plan(self._reads.source)
        else:
            if self._assigned is not None:
                planned.enumerator.add_splits_back(self._assigned.plan)
            source = self._reads.source if self._batches else self._reads.first
            self._planned = self._planner.plan_again(planned, source)
        self.assign(self._until)

    def _attempt(self, assignment: SplitAssignment) -> Callable[[], _Landed]:
        plan, anchor, letters = assignment.plan, self._planned.anchor, self._letters
        if letters is not None:
            # Before the document is fixed, which records what is tolerated of that table, too.
            letters.prepare(None if plan.is_empty else self._rows.records(assignment))
            self._incidents.add(letters.take_incidents())
        document = CommitDocument(
            stream=self._spec.target.stream,
            run_id=self._spec.run_id,
            base_version=anchor.table_version,
            anchor_version=anchor.version,
            after=anchor.attempt,
            splits=plan.splits,
            state=plan.state,
            rows_before=self._table.count_rows() if anchor.table_rows is None else anchor.table_rows,
            overrides_start=self._reads.overriding is not None and not self._batches,
            dead_letter=None if letters is None else letters.route(),
            incidents=self._incidents.uncommitted,
            schemas=self._spec.decoder.schemas,
            mode=self._spec.target.mode,
        )
        takes_up = taken_up(anchor.state, plan.state)

        def write() -> _Landed:
            rows, watch = self._rows.rows(assignment, leave_out_rejected=letters is not None)
            with dead_spark_as_error():
                columns = self._table.check_schema((rows.landed if isinstance(rows, Changes) else rows).schema)
            before = () if self._columns is None else self._columns.changes
            # A repeat finds the same changes.
            self._columns = replace(columns, changes=tuple(dict.fromkeys((*before, *columns.changes))))
            with self._rows.watched(document.attempt, ReadProgress(plan.offset_span)):
                return assignment, document, TableWriter(self._table).commit(rows, document, takes_up), watch

        return write

    def _reported(
        self, assignment: SplitAssignment, document: CommitDocument, committed: Committed, watch: BatchObservation
    ) -> BatchResult:
        batch, tasks = assignment.plan, len(assignment.task_plan.tasks)
        observed = observed_by_write(watch, committed.rows)
        if observed.unknown == NOTHING_REPORTED and committed.rows == 0 and self._has_no_record(batch):
            observed = Observed(records=0, bytes=0, rejected=0)
        lag = sum(batch.lag_after.values())
        self._writer.tell(committed, observed, splits=len(batch.splits), tasks=tasks, lag=lag)
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
            read_and_write_seconds=self._writer.seconds - committed.confirm_seconds,
            incidents=document.incidents,
        )

    def _has_no_record(self, batch: ReadPlan) -> bool:
        """Whether there is no record in a batch's offsets, as compaction leaves them."""
        # If rows are merged by key, Spark then drops what observes them from its adaptive plan.
        try:
            return self._rows.records(self.context.assignment(batch)).isEmpty()
        except Exception:  # noqa: BLE001 - the batch is committed, and what can't be read stays unknown
            return False

    def _confirm(self, document: CommitDocument, committed: Committed) -> None:
        enumerator, target, splits = self._planned.enumerator, self._spec.target, document.splits

        def then(error: KafkaFlipError) -> str:
            if isinstance(error, EndBeforePositionError):
                return "Copy them first if you need what the log has lost. 2. Run again: it continues from there"
            skip = "Skip it only if you know that they come from the old log, which can't be read again. 2. "
            if target.key:
                return f"{skip}Read the new log into a new table: offsets decide which records of a key are newer"
            topics = error.topics if isinstance(error, TopicRecreatedError) else ()
            start = (
                OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 0 for topic in topics})
                if topics
                else "earliest"
            )
            return (
                f"{skip}Make the next run read the new log from the beginning: "
                f"{set_position(str(target), target.stream, to=str(start))}"
            )

        def ask() -> None:
            enumerator.check_same_logs(document.state, [split.topic_partition for split in splits])

        self._writer.confirm(ask, "a batch", then, splits, committed, document)

    def finish(self) -> IngestResult:
        """Everything is committed: values that can't be read are omitted without an error."""
        try:
            self._writer.finish(is_needed=not self.context.tolerated.isdisjoint(OTHER_OFFSETS))
            if self._letters is not None:
                self._letters.confirm()
        finally:
            self.close()
        anchor = self._planned.anchor
        if anchor.state is None:
            target = self._spec.target
            raise KafkaFlipError(f"the stream {target.stream!r} of {target} has no position after a run; this is a bug")
        letters = self._letters
        dead_letters_pending = letters is not None and self._or_else(
            True, "could not check for pending dead letters", letters.finish
        )
        if letters is not None:
            self._incidents.add(letters.take_incidents())
        table_rows = anchor.table_rows
        if table_rows is None:
            # Of this version: others may have added rows since.
            count = functools.partial(self._table.count_rows, anchor.table_version)
            table_rows = self._or_else(None, "could not count the table's rows", count)
        # Without an answer, the next run reads the table.
        ask = functools.partial(self._table.kept_until, anchor)
        kept_until = self._or_else(instants.now(), "could not read how long history is kept", ask)
        location = self._or_else(self._spec.target.uri, "could not read the table's location", self._table.location)
        name = self._or_else(None, "could not read the table's name", self._table.name_in_catalog)
        known = KnownPosition(
            stream=self._spec.target.stream,
            table=self._spec.target.identity,
            state=anchor.state,
            verified_at=instants.now(),
            table_version=anchor.table_version,
            table_rows=table_rows,
            record_bytes=self.context.record_bytes,
            kept_until=kept_until,
            dead_letters_pending=dead_letters_pending,
            anchor_version=anchor.version,
            log=location,
        )
        return IngestResult(
            plan=self._plan_of_the_run(),
            batches=tuple(self._batches),
            known=known if known.seen_in_log() is not None else replace(known, log=None),
            location=location,
            table_name=name,
            written=self._columns,
            reader_schemas=self._spec.decoder.reader_schemas,
            overrides_start=self._reads.overriding is not None,
            started_spark=True,
            group_commit_failures=self._group_commit_failures,
            dead_letters=0 if self._letters is None else self._letters.landed,
            dead_letter_table=None if self._letters is None else str(self._letters.target),
            incidents=self._incidents.all,
            unreported=self._unreported,
            plan_seconds=self._plan_seconds,
            spark_seconds=self._spark_seconds,
            spark_ui=self._spark_ui,
        )

    def close(self) -> None:
        self._or_else(None, "could not close the source", self._planner.close)
        self._spec.decoder.close()

    def _plan_of_the_run(self) -> ReadPlan:
        plan = self._planned.plan
        starts = dict(plan.starting_position)
        for batch in reversed(self._batches):
            for split in batch.plan.splits:
                tp = split.topic_partition
                if tp in plan.end_offsets and is_same_log(tp, batch.plan.state, plan.state):
                    starts[tp] = split.starting_offset
        discovered = tuple(sorted(self._planner.discovered & plan.end_offsets.keys()))
        return replace(plan, starting_position=starts, discovered=discovered)

    def _or_else(self, otherwise: _T, what: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - nothing here may affect what is committed
            self._spec.log.warning("%s; the run's commits are not affected: %s", what, error_summary(error))
            return otherwise

    def _notify(self, enumerator: KafkaSourceEnumerator) -> bool:
        """Notifies the consumer group of a commit; returns whether this failed, which does not affect the commit."""
        try:
            enumerator.notify_checkpoint_complete()
        except Exception as error:  # noqa: BLE001 - the batch is committed, even if reporting it fails
            self._spec.log.warning("the batch is committed, but committing to the consumer group failed: %s", error)
            return True
        return False
