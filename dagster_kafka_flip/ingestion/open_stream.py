"""OpenStream: a stream whose position is read and whose splits are planned; lands them batch by batch.

The order of steps makes it exactly once: read the position from the table, fix the plan, and write the rows and the new
position in one Delta commit. Everything after the commit only reports.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import ConcurrentIngestionError, KafkaFlipError
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.ingestion.log_confirmation import LogConfirmation, doubtful_commit
from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult, Unreported
from dagster_kafka_flip.ingestion.run_spec import Clock, nothing_written, start_spark
from dagster_kafka_flip.ingestion.stream_batch import Landing
from dagster_kafka_flip.ingestion.stream_plan import StreamPlanner
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.incident import incident_of, total
from dagster_kafka_flip.table.anchor import Anchor
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.history import commits_that_count, documented
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.local_log import version_if_still_valid
from dagster_kafka_flip.table.retries import Conflicts
from dagster_kafka_flip.table.schema import comments, names_and_types
from dagster_kafka_flip.table.spark_error import error_summary
from dagster_kafka_flip.table.table_port import ForeignConflictError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

    from dagster_kafka_flip.ingestion.run_spec import RunSource, RunSpec
    from dagster_kafka_flip.ingestion.tolerance import Incidents
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.table.commit import Commit, Committed
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget

_T = TypeVar("_T")


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
        session, self._spark_seconds, self._spark_ui = start_spark(spec, context)
        clock = Clock()
        self._table = DeltaTable(session, spec.target, context.tolerated, record)
        self._letters = None
        if spec.dead_letters is not None:
            self._letters = DeadLetterTable(spec, session, context, self._table, spec.dead_letters)
        self._landing = Landing(spec, session, context, self._table, self._letters)
        self._confirmation = LogConfirmation(spec.log, self._table, spec.run_id)
        self._conflicts = Conflicts(spec.target, spec.log)
        self._reported = reported
        self._batches: list[BatchResult] = []
        self._planner = StreamPlanner(
            spec, session, context, self._table, self._landing.schema, self._letters, record, reads, incidents
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
                self._check_other_log()
        except BaseException:
            self.close()
            raise
        self.plan = self._planned.plan
        self._plan_seconds = clock.lap()
        self._assigned: SplitAssignment | None = None
        self._group_commit_failures = 0

    def _check_other_log(self) -> None:
        """Refuses another log if the last commit may already have its records: tolerated, they would land twice.

        The log may have changed between plan and read of that commit, and its run died before it asked.
        """
        planned, last, reported = self._planned, self._planned.anchor, self._reported
        # After a RESTORE there is no transaction version: the last commit may be gone.
        if reported is None or last.document is None or last.transaction_version is None or last.document.reason:
            return
        told = {batch.committed.version for batch in self._batches[-1:]}
        # Versions start again at 0 if the table was recreated.
        if last.version in told or last.version <= reported <= last.table_version:
            return
        met = {incident.error for incident in planned.plan.incidents}
        others = {error for error in OTHER_OFFSETS if error.__name__ in met}
        if others:
            self._spec.log.warning(
                "%s not tolerated: no run reported version %d of %s, which may have records of the other log",
                ", ".join(sorted(error.__name__ for error in others)),
                last.version,
                self._spec.target,
            )
            self._planned = self._planner.plan_without(others, planned)

    def _continue_earlier_try(self) -> bool:
        """Drops the overridden start if an earlier try of this run has committed from it: it would land rows twice."""
        if self._reads.overriding is None or not self._spec.tries:
            return False
        for commit, document in documented(self._table.history() or (), self._spec.target.stream):
            if document.overrides_start and document.run_id in self._spec.tries:
                self._reads.continue_from_position()
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
        """What the run has written so far."""
        return nothing_written(self._landing.commits, 0 if self._letters is None else self._letters.landed)

    @property
    def position(self) -> Position:
        """The stream's state once all assigned splits are committed."""
        state = self._planned.enumerator.snapshot_state()
        return {} if state is None else state.position

    @property
    def has_more(self) -> bool:
        """Whether the plan has unassigned splits."""
        return (
            self._planned.enumerator.has_pending
            and self._planner.needs_commit(self._planned)
            and len(self._batches) != self._spec.limits.max_batches
        )

    def assign(self, until: Position | None = None) -> bool:
        """Assigns the next batch; returns whether there is one."""
        self._assigned = self._planned.enumerator.assign(self._spec.limits, until) if self.has_more else None
        return self._assigned is not None

    def land(self) -> None:
        """Writes the batch, if there is one.

        After a conflict with another writer, nothing is written and the rest is planned again.
        """
        planned, assignment = self._planned, self._assigned
        if assignment is None:
            return
        self._confirmation.ask_again()
        try:
            done = self._landing.land(
                planned.anchor,
                assignment,
                overrides_start=self._reads.overriding is not None and not self._batches,
                incidents=self._incidents.uncommitted,
                confirm=self._confirm,
            )
        except (ForeignConflictError, *self.context.tolerated) as conflict:
            self._conflicts.met(conflict, "the batch")
            if isinstance(conflict, ConcurrentIngestionError):
                self._incidents.add((incident_of(conflict, "The run planned again from there."),))
            # What wrote for an earlier try may only now have ended.
            if not self._batches and self._continue_earlier_try():
                self._planned = self._planner.plan(self._reads.source)
            else:
                planned.enumerator.add_splits_back(assignment.plan.splits)
                source = self._reads.source if self._batches else self._reads.first
                self._planned = self._planner.plan_again(planned, source)
            self._check_other_log()
            return
        self._batches.append(done)
        self._incidents.add(done.incidents)
        self._incidents.commit()
        if self._letters is not None:
            # Met after the commit: the next one records them.
            self._incidents.add(self._letters.take_incidents())
        self._conflicts.over()
        self._group_commit_failures += self._notify(planned.enumerator)
        if done.observed.records and done.observed.bytes is not None:
            self.context.record_bytes = done.observed.bytes / done.observed.records
        planned.anchor = Anchor(
            table_version=done.committed.version,
            version=done.committed.version,
            state=assignment.plan.state,
            table_rows=done.committed.table_rows,
            other_streams=planned.anchor.other_streams,
            committed_ms=instants.now_ms(),
            transaction_version=planned.anchor.version,
            attempt=done.committed.attempt,
        )

    def _confirm(self, document: CommitDocument, committed: Committed) -> None:
        """Checks that the committed batch was read from the planned logs."""
        planned = self._planned
        batch = replace(planned.plan, splits=document.splits, state=document.state)
        self._confirmation.confirm(
            lambda: planned.enumerator.check_same_logs(batch),
            lambda error: doubtful_commit(error, document, committed, self._spec.target),
            document,
            committed,
        )

    def finish(self) -> IngestResult:
        """Returns the result and the new position.

        Everything is committed: values that can't be read are omitted without an error.
        """
        try:
            self._confirmation.finish(is_needed=not self.context.tolerated.isdisjoint(OTHER_OFFSETS))
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
            table_rows = self._or_else(
                None,
                "could not count the table's rows",
                lambda: self._table.count_rows(anchor.table_version),
            )
        # Without an answer, the next run reads the table.
        now = instants.now()
        kept_until = self._or_else(
            now, "could not read how long history is kept", lambda: self._table.kept_until(anchor)
        )
        location = self._or_else(self._spec.target.uri, "could not read the table's location", self._table.location)
        name = self._or_else(None, "could not read the table's name", self._table.name_in_catalog)
        is_seen = location is not None and (
            version_if_still_valid(
                location, self._spec.target.stream, anchor.state, anchor.version, anchor.table_version, None
            )
            is not None
        )
        return IngestResult(
            plan=self._plan_of_the_run(),
            batches=tuple(self._batches),
            known=KnownPosition(
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
                transaction_version=anchor.transaction_version,
                log=location if is_seen else None,
            ),
            location=location,
            table_name=name,
            columns=names_and_types(self._landing.columns),
            comments=comments(self._landing.columns),
            column_changes=() if self._landing.columns is None else self._landing.columns.changes,
            columns_not_written=() if self._landing.columns is None else self._landing.columns.not_written,
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
        """Closes the connections to Kafka and to schema registries."""
        self._or_else(None, "could not close the source", self._planner.close)
        self._spec.decoder.close()

    def _plan_of_the_run(self) -> ReadPlan:
        """The last plan, with the run's first start offsets of the same logs."""
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
        """Returns a function's result, or a default if it fails; logs the failure."""
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


def find_unreported(
    table: DeltaTable,
    target: DeltaTarget,
    anchor: Anchor,
    reported: int,
    log: logging.Logger | logging.LoggerAdapter[Any],
) -> Unreported | None:
    """Returns the stream's commits after the last reported one; None if there are none."""
    # Versions start again at 0 if the table was recreated.
    reported = reported if reported <= anchor.table_version else -1
    if anchor.state is None or anchor.version <= reported:
        return None
    found = unreported_commits(table.newest_commits(), target.stream, reported)
    if found is not None:
        # The origin is unknown: a copied table, or an asset with another name, looks like a killed run.
        one = found.commits == 1
        log.warning(
            "no earlier run reported %s of %s: the run %s died after %s, the asset was renamed, or something else "
            "writes to the stream. This run reports %s%s",
            f"1 commit (version {found.to_version})"
            if one
            else f"{found.commits} commits (versions {found.from_version} to {found.to_version})",
            target,
            ", ".join(found.runs) or "of an unknown id",
            "it" if one else "them",
            "it" if one else "them",
            "".join(f"\ntolerated {incident.error}: {incident.message}" for incident in found.incidents),
        )
    return found


def unreported_commits(commits: Iterable[Commit], stream: str, reported: int) -> Unreported | None:
    """Summarizes the stream's commits after the last reported one; None if there are none."""
    # A run lands the records of a commit that a RESTORE has undone again, and reports them itself.
    fresh = itertools.takewhile(lambda commit: commit.version > reported, commits_that_count(commits))
    # Excludes manual moves, whose result the user has already seen.
    own = [(commit, document) for commit, document in documented(fresh, stream) if document.reason is None]
    if not own:
        return None
    return Unreported(
        commits=len(own),
        rows=total(commit.rows_written for commit, _ in own),
        from_version=own[-1][0].version,
        to_version=own[0][0].version,
        incidents=tuple(incident for _, document in reversed(own) for incident in document.incidents),
        runs=tuple(dict.fromkeys(document.run_id for _, document in reversed(own) if document.run_id)),
    )
