"""StreamRun: one bounded run of one stream, from its position to the stop, in steps.

The order of steps makes it exactly once: read the position from the table, fix the plan, and write the rows and the new
position in one Delta commit. Everything after the commit only reports.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import (
    ClusterUnreachableError,
    ConcurrentIngestionError,
    KafkaFlipError,
    TopicRecreatedError,
)
from dagster_kafka_flip.ingestion.conflicts import Conflicts
from dagster_kafka_flip.ingestion.dead_letter_debts import check_nothing_owed
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.log_confirmation import LogConfirmation
from dagster_kafka_flip.ingestion.new_stream import check_nothing_is_skipped
from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult, KnownPosition, Unreported
from dagster_kafka_flip.ingestion.spark_start import start_spark
from dagster_kafka_flip.ingestion.stopwatch import Clock
from dagster_kafka_flip.ingestion.stream_batch import Landing
from dagster_kafka_flip.ingestion.unreported import find_unreported
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.incident import Incident, found, incident_of
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.log_line import facts
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.delta_table import DeltaTable, ForeignConflictError
from dagster_kafka_flip.table.history import Anchor
from dagster_kafka_flip.table.local_log import standing_at
from dagster_kafka_flip.table.recorded_position import RecordedPosition
from dagster_kafka_flip.table.schema import comments, names_and_types
from dagster_kafka_flip.table.spark_error import telling_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitAssignment, SplitEnumerator
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.table.written import Committed

_SHOWN_SPLITS = 5

_T = TypeVar("_T")


def stream_run(
    spec: RunSpec[Source],
    *,
    known: KnownPosition | None,
    starting_offsets: OffsetsInitializer | None = None,
    reported: int | None = None,
) -> StreamRun:
    """Creates a run that has not begun.

    Args:
        spec: The run.
        known: A copy of the position.
        starting_offsets: Start that overrides the position; None to continue.
        reported: The table's version up to which commits were reported; None if not tracked.
    """
    overriding = None
    if isinstance(spec.source, KafkaSource) and starting_offsets is not None:
        overriding = spec.source.with_overrides(starting_offsets=starting_offsets)
    record_bytes = None if known is None else known.record_bytes
    return StreamRun(
        spec=spec,
        source=spec.source,
        overriding=overriding,
        context=SplitEnumeratorContext(record_bytes=record_bytes, tolerated=spec.tolerated),
        record=_record(known, spec.target),
        reported=reported,
    )


def run_stream(
    spec: RunSpec[Source],
    *,
    known: KnownPosition | None,
    verify_after: timedelta,
    starting_offsets: OffsetsInitializer | None = None,
    reported: int | None = None,
) -> IngestResult:
    """Ingests a source for an existing run spec; see `ingest`.

    Args:
        spec: The run.
        known: A copy of the position.
        verify_after: How long to trust this copy.
        starting_offsets: Start that overrides the position; None to continue.
        reported: The table's version up to which commits were reported; None if not tracked.
    """
    run = stream_run(spec, known=known, starting_offsets=starting_offsets, reported=reported)
    return run.idle(known, verify_after) or run.execute()


def _record(known: KnownPosition | None, target: DeltaTarget) -> RecordedPosition | None:
    """The position in a record, if it belongs to this stream and table."""
    if known is None or not known.is_of(target) or known.anchor_version is None:
        return None
    return RecordedPosition(
        known.state, known.table_version, known.anchor_version, known.transaction_version, known.dead_letters_owed
    )


@dataclass
class StreamRun:
    """One run of one stream; `ingest()` and `ingest_tables()` call its steps.

    Attributes:
        spec: The run spec.
        source: The source; several tables get a common stop.
        overriding: The source with an overridden start, if any.
        context: Context of the run.
        record: A copy of the position, if it belongs to this stream and table.
        reported: The table's version up to which commits were reported; None if not tracked.
    """

    spec: RunSpec[Source]
    source: Source
    overriding: KafkaSource | None
    context: SplitEnumeratorContext
    record: RecordedPosition | None
    reported: int | None = None
    _reachable: bool = field(default=False, init=False)
    _session: SparkSession = field(init=False)
    _table: DeltaTable = field(init=False)
    _letters: DeadLetterTable | None = field(default=None, init=False)
    _landing: Landing = field(init=False)
    _looking: _Look = field(init=False)
    _assigned: SplitAssignment | None = field(default=None, init=False)
    _plan: ReadPlan = field(init=False)
    _unreported: Unreported | None = field(default=None, init=False)
    _discovered: set[TopicPartition] = field(default_factory=set["TopicPartition"], init=False)
    _plan_seconds: float = field(default=0.0, init=False)
    _spark_seconds: float = field(default=0.0, init=False)
    _spark_ui: str | None = field(default=None, init=False)
    _batches: list[BatchResult] = field(default_factory=list["BatchResult"], init=False)
    _conflicts: Conflicts = field(init=False)
    _confirmation: LogConfirmation = field(init=False)
    _group_commit_failures: int = field(default=0, init=False)
    # Compared by text: a repeated plan finds the same ones again.
    _incidents: dict[str, Incident] = field(default_factory=dict[str, "Incident"], init=False)
    _in_commits: int = field(default=0, init=False)

    def idle(self, known: KnownPosition | None, verify_after: timedelta) -> IngestResult | None:
        """The result of an idle run, if this is known without Spark; else None."""
        if known is None or self.overriding is not None or known.dead_letters_owed:
            return None
        if not known.is_of(self.spec.target):
            return None
        if not self._is_fresh(known, verify_after):
            return None
        clock = Clock()
        try:
            with contextlib.closing(self.source.restore_enumerator(self.context, known.state)) as enumerator:
                plan = enumerator.start()
        except ClusterUnreachableError:
            raise
        except KafkaFlipError as error:
            # The copy may be outdated. The table decides, and raises the same error if it agrees.
            self.spec.log.info(
                "the last known position does not match the log (%s); reading the table", type(error).__name__
            )
            return None
        self._reachable = True
        confirmed = self._confirmed(known) if _changes_nothing(plan, known.state) else None
        if confirmed is None:
            return None
        self.spec.log.info(
            "nothing new on %s, not starting Spark: %s",
            self.source,
            facts(topic_partitions=len(plan.end_offsets)),
        )
        return IngestResult(
            plan=plan,
            batches=(),
            known=confirmed,
            location=self.spec.target.uri,
            dead_letter_table=self._dead_letter_table(),
            incidents=self._record_tolerated(plan.incidents),
            plan_seconds=clock.lap(),
        )

    def _is_fresh(self, known: KnownPosition, verify_after: timedelta) -> bool:
        """Whether a recorded position is recent enough to be trusted."""
        now = datetime.now(tz=timezone.utc)
        age = now - known.verified_at
        if age < timedelta(0):
            # A clock was wrong. Otherwise the record would be trusted as long as that clock was ahead.
            self.spec.log.warning(
                "the record of the position has the time %s, but the time is %s; reading the table",
                known.verified_at.isoformat(timespec="seconds"),
                now.isoformat(timespec="seconds"),
            )
            return False
        return age < verify_after and (known.kept_until is None or now < known.kept_until)

    def _confirmed(self, known: KnownPosition) -> KnownPosition | None:
        """The recorded position, if the table's log confirms it; None if it does not.

        If the log is not accessible without Spark, the current row count is unknown.
        """
        if known.log is None or known.anchor_version is None:
            return replace(known, table_rows=None)
        found = known.seen_in_log()
        if found is None:
            self.spec.log.info(
                "the log of %s does not confirm the recorded position; reading the table", self.spec.target
            )
            return None
        version, rows = found
        return replace(known, table_version=version, table_rows=rows)

    def execute(self) -> IngestResult:
        """Runs all steps: plans from the table's position, and commits batch by batch."""
        self.discover()
        self.open()
        try:
            while self.assign():
                self.land()
            return self.finish()
        finally:
            self._close()

    def discover(self) -> None:
        """Before Spark's start, so that a wrong address or topic fails within a second."""
        if not self._reachable:
            with contextlib.closing(self.source.create_enumerator(self.context)) as enumerator:
                enumerator.discover()

    def open(self) -> None:
        """Reads the position from the table and plans from it; creates the table if needed."""
        # Before Spark's start, too.
        self.spec = self.spec.bound()
        self._session, self._spark_seconds, self._spark_ui = start_spark(self.spec, self.context)
        clock = Clock()
        self._table = DeltaTable(self._session, self.spec.target, self.context.tolerated, self.record)
        if self.spec.dead_letters is not None:
            self._letters = DeadLetterTable(self.spec, self._session, self.context, self._table, self.spec.dead_letters)
        self._landing = Landing(self.spec, self._session, self.context, self._table, self._letters)
        self.spec.log.info("looking up the position of the stream %r in %s", self.spec.target.stream, self.spec.target)
        self._confirmation = LogConfirmation(self.spec.log, self._table, self.spec.run_id)
        self._conflicts = Conflicts(self.spec.target, self.spec.log)
        self._looking = self._look(self.overriding or self.source)
        if self.reported is not None:
            self._unreported = find_unreported(
                self._table, self.spec.target, self._looking.anchor, self.reported, self.spec.log
            )
        self._plan = self._looking.plan
        self._plan_seconds = clock.lap()

    @property
    def plan(self) -> ReadPlan:
        """The first plan of the run."""
        return self._plan

    @property
    def position(self) -> Position:
        """The stream's state once all assigned splits are committed."""
        state = self._looking.enumerator.snapshot_state()
        return {} if state is None else state.position

    @property
    def has_more(self) -> bool:
        """Whether the plan has unassigned splits."""
        return (
            self._looking.enumerator.has_pending
            and self._is_worth_doing(self._looking)
            and len(self._batches) != self.spec.limits.max_batches
        )

    def stop_at(self, stop: Position) -> None:
        """Sets the stop offsets of later plans; topic partitions without one are not read."""
        initializer = OffsetsInitializer.specific_offsets(stop)
        if isinstance(self.source, KafkaSource):
            self.source = self.source.with_overrides(stopping_offsets=initializer)
        if self.overriding is not None:
            self.overriding = self.overriding.with_overrides(stopping_offsets=initializer)

    def assign(self, until: Position | None = None) -> bool:
        """Assigns the next batch; returns whether there is one.

        Args:
            until: Offsets at which the batch stops if there is anything to read before them. Default: none.
        """
        self._assigned = self._looking.enumerator.assign(self.spec.limits, until) if self.has_more else None
        return self._assigned is not None

    def land(self) -> None:
        """Writes the batch, if there is one.

        After a conflict with another writer, nothing is written and the rest is planned again.
        """
        look, assignment = self._looking, self._assigned
        if assignment is None:
            return
        self._confirmation.ask_again()
        try:
            done = self._landing.land(
                look.anchor,
                assignment,
                overrides_start=self.overriding is not None and not self._batches,
                incidents=tuple(self._incidents.values())[self._in_commits :],
                confirm=self._confirm,
            )
        except (ForeignConflictError, *self.context.tolerated) as conflict:
            self._conflicts.met(conflict, "the batch")
            if isinstance(conflict, ConcurrentIngestionError):
                self._record_tolerated((incident_of(conflict, "The run planned again from there."),))
            look.enumerator.add_splits_back(assignment.plan.splits)
            source = self.source if self._batches else self.overriding or self.source
            self._looking = self._look_again(look, source)
            return
        self._batches.append(done)
        self._record_tolerated(done.incidents)
        if self._letters is not None:
            self._record_tolerated(self._letters.take_incidents())
        self._conflicts.over()
        self._in_commits = len(self._incidents)
        self._group_commit_failures += self._notify(look.enumerator)
        if done.observed.records and done.observed.bytes is not None:
            self.context.record_bytes = done.observed.bytes / done.observed.records
        look.anchor = Anchor(
            table_version=done.committed.version,
            version=done.committed.version,
            state=assignment.plan.state,
            table_rows=done.committed.table_rows,
            other_streams=look.anchor.other_streams,
            committed_ms=int(time.time() * 1000),
            transaction_version=look.anchor.version,
        )

    def _confirm(self, document: CommitDocument, committed: Committed) -> None:
        """Checks that the committed batch was read from the planned logs."""
        looking = self._looking
        batch = replace(looking.plan, splits=document.splits, state=document.state)
        self._confirmation.confirm(
            lambda: looking.enumerator.check_same_logs(batch),
            lambda error: _doubt(error, document, committed, self.spec.target),
            document,
            committed,
        )

    def finish(self) -> IngestResult:
        """Returns the result and the new position.

        Everything is committed: values that can't be read are omitted without an error.
        """
        try:
            self._confirmation.finish()
            if self._letters is not None:
                self._letters.confirm()
        finally:
            self._close()
        anchor = self._looking.anchor
        if anchor.state is None:
            target = self.spec.target
            msg = f"the stream {target.stream!r} of {target} has no position after a run; this is a bug"
            raise KafkaFlipError(msg)
        letters = self._letters
        dead_letters_owed = letters is not None and self._or_else(
            True, "could not check for pending dead letters", letters.finish
        )
        table_rows = anchor.table_rows
        if table_rows is None:
            table_rows = self._or_else(None, "could not count the table's rows", self._table.count_rows)
        # Without an answer, the next run reads the table.
        now = datetime.now(tz=timezone.utc)
        kept_until = self._or_else(
            now, "could not read how long history is kept", lambda: self._table.kept_until(anchor)
        )
        location = self._or_else(self.spec.target.uri, "could not read the table's location", self._table.location)
        is_seen = location is not None and (
            standing_at(location, self.spec.target.stream, anchor.state, anchor.version, anchor.table_version, None)
            is not None
        )
        return IngestResult(
            plan=self._plan_of_the_run(),
            batches=tuple(self._batches),
            known=KnownPosition(
                stream=self.spec.target.stream,
                table=self.spec.target.identity,
                state=anchor.state,
                verified_at=datetime.now(tz=timezone.utc),
                table_version=anchor.table_version,
                table_rows=table_rows,
                record_bytes=self.context.record_bytes,
                kept_until=kept_until,
                dead_letters_owed=dead_letters_owed,
                anchor_version=anchor.version,
                transaction_version=anchor.transaction_version,
                log=location if is_seen else None,
            ),
            location=location,
            columns=names_and_types(self._landing.columns),
            comments=comments(self._landing.columns),
            reader_schemas=self.spec.decoder.reader_schemas,
            overrides_start=self.overriding is not None,
            started_spark=True,
            group_commit_failures=self._group_commit_failures,
            dead_letters=0 if self._letters is None else self._letters.landed,
            dead_letter_table=self._dead_letter_table(),
            incidents=tuple(self._incidents.values()),
            unreported=self._unreported,
            plan_seconds=self._plan_seconds,
            spark_seconds=self._spark_seconds,
            spark_ui=self._spark_ui,
        )

    def _close(self) -> None:
        self._or_else(None, "could not close the source", self._looking.enumerator.close)
        self.spec.decoder.close()

    def _plan_of_the_run(self) -> ReadPlan:
        """The logs as of the last planning, with the run's first start offsets.

        After planning again, a run reads other offsets than first planned, and maybe other logs with the same names.
        """
        plan = self._looking.plan
        starts = dict(plan.starting_position)
        for batch in reversed(self._batches):
            for split in batch.plan.splits:
                tp = split.topic_partition
                if tp in plan.end_offsets and is_same_log(tp, batch.plan.state, plan.state):
                    starts[tp] = split.starting_offset
        discovered = tuple(sorted(self._discovered & plan.end_offsets.keys()))
        return replace(plan, starting_position=starts, discovered=discovered)

    def _or_else(self, otherwise: _T, what: str, ask: Callable[[], _T]) -> _T:
        """Returns a function's result, or a default if it fails; logs the failure."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - nothing of what is asked for here may undo what is committed
            self.spec.log.warning("%s; the run's commits are not affected: %s", what, telling_line(error))
            return otherwise

    def _record_tolerated(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """Records a tolerated error, and returns all of this run."""
        for incident in incidents:
            if incident.message not in self._incidents:
                self._incidents[incident.message] = incident
                self.spec.log.warning("tolerated %s: %s", incident.error, incident.message)
        return tuple(self._incidents.values())

    def _look(self, source: Source) -> _Look:
        """Reads the position and plans from it; creates the table if needed."""
        anchor = self._settled_anchor()
        if anchor is None:
            # Plans before creating the table, so that an unreadable source leaves no table behind.
            enumerator, plan = self._begin_anew(source)
            anchor = self._settled(self._table.made(self._landing.schema()))
            if anchor.state is None:
                # A run of windows may have created it meanwhile.
                self._table.check_takes_streams()
                return self._tell(_Look(anchor, source, enumerator, plan))
        if anchor.state is None:
            self._table.check_takes_streams()
            enumerator, plan = self._begin_anew(source)
        else:
            enumerator = source.restore_enumerator(self.context, anchor.state)
            plan = enumerator.start()
        look = self._tell(_Look(anchor, source, enumerator, plan))
        if self.overriding is not None and source is self.overriding and anchor.state is not None:
            self._tell_override(self.overriding.starting_offsets, anchor.state, look.plan)
        return look

    def _begin_anew(self, source: Source) -> tuple[SplitEnumerator, ReadPlan]:
        """First plan of a stream without a position; checks that a former stream's records are not skipped."""
        enumerator = source.create_enumerator(self.context)
        plan = enumerator.start()
        if self.record is not None and isinstance(source, KafkaSource):
            if source is not self.overriding:
                check_nothing_is_skipped(self.record.state, plan, source.starting_offsets, self.spec.target)
            self.spec.log.warning(
                "%s holds no position of the stream %r, but the record of its last run had one: the table was dropped "
                "or recreated. A new stream starts at %s",
                self.spec.target,
                self.spec.target.stream,
                source.starting_offsets,
            )
        return enumerator, plan

    def _settled_anchor(self) -> Anchor | None:
        """Reads the position; first settles the last commit's pending dead letters."""
        anchor = self._table.anchor()
        return None if anchor is None else self._settled(anchor)

    def _settled(self, anchor: Anchor) -> Anchor:
        if anchor.routed is None:
            return anchor
        if self._letters is not None:
            self._letters.settle_debt(anchor.routed)
            incidents = self._letters.take_incidents()
        else:
            incidents = check_nothing_owed(
                self._session, anchor.routed, self._table, self.spec.target, self.context.tolerated
            )
        # The next commit records that this was tolerated, and the new dead-letter table.
        return replace(anchor, incidents=(*anchor.incidents, *incidents))

    def _dead_letter_table(self) -> str | None:
        return None if self.spec.dead_letters is None else str(self.spec.dead_letters.target(self.spec.target))

    def _look_again(self, look: _Look, source: Source) -> _Look:
        """Like `_look`; if the position has not changed, the enumerator continues with the returned splits."""
        anchor = self._settled_anchor()
        state = look.enumerator.snapshot_state()
        if anchor is None or anchor.state != look.anchor.state or state is None:
            look.enumerator.close()
            return self._look(source)
        if anchor.state is None:
            self._table.check_takes_streams()
        enumerator = look.enumerator
        if look.source is not source:
            # Planned before the common stop of all tables was set. Its start is already fixed.
            enumerator.close()
            enumerator = self.source.restore_enumerator(self.context, state)
        return self._tell(_Look(anchor, source, enumerator, enumerator.start()))

    def _tell(self, look: _Look) -> _Look:
        plan = look.plan
        self._record_tolerated((*look.anchor.incidents, *plan.incidents))
        if look.anchor.document is not None and not plan.is_empty:
            self.spec.decoder.recall(look.anchor.document.schemas)
        self._discovered.update(plan.discovered)
        self._table.check_overlap(look.anchor, plan)
        for tp, offsets in sorted(plan.held_back.items()):
            self.spec.log.info("%s: an open transaction holds back %d offsets", tp, offsets)
        if plan.paused:
            self.spec.log.info(
                "%d topic partitions are ahead of the slowest by more than the maximum drift; %d of their offsets are "
                "left for a later run",
                len(plan.paused),
                sum(plan.paused.values()),
            )
        if plan.removed:
            self.spec.log.warning(
                "%s: no longer read, because they no longer exist or the source no longer lists them; their position "
                "is kept",
                ", ".join(map(str, plan.removed)),
            )
        self.spec.log.info(
            "planned %d split%s of %s: %s",
            len(plan.splits),
            "" if len(plan.splits) == 1 else "s",
            self.source,
            facts(offsets=plan.offset_span, lag=sum(plan.lag_before.values()), topic_partitions=len(plan.end_offsets)),
        )
        return look

    def _tell_override(self, start: OffsetsInitializer, state: EnumeratorState, plan: ReadPlan) -> None:
        moved = {tp: plan.starting_position[tp] - state.position[tp] for tp in plan.end_offsets if tp in state.position}
        again = -sum(offsets for offsets in moved.values() if offsets < 0)
        skipped = sum(offsets for offsets in moved.values() if offsets > 0)
        self.spec.log.warning(
            "this run starts at %s instead of the position: it reads up to %d records again and skips up to %d",
            start,
            again,
            skipped,
        )

    def _notify(self, enumerator: SplitEnumerator) -> bool:
        """Notifies the consumer group of a commit; returns whether this failed, which does not affect the commit."""
        try:
            enumerator.notify_checkpoint_complete()
        except Exception as error:  # noqa: BLE001 - whatever fails in telling, the batch is committed
            self.spec.log.warning("the batch is committed, but committing to the consumer group failed: %s", error)
            return True
        return False

    def _is_worth_doing(self, look: _Look) -> bool:
        """Whether a plan needs a commit: it reads records, moves the position, or renews it.

        A plan without splits is also committed in these cases: the table has no position yet (a stream that starts at
        "latest" must not start later next time); Delta will soon remove the commit with the position, because nothing
        has arrived for long; an error about the table was tolerated (the next run need not tolerate it again); or only
        a record still had the position.
        """
        anchor = look.anchor
        if (
            anchor.state is None
            or anchor.incidents
            or anchor.is_recorded
            or not _changes_nothing(look.plan, anchor.state)
        ):
            return True
        kept_until = self._table.kept_until(anchor)
        if kept_until is None or datetime.now(tz=timezone.utc) < kept_until:
            return False
        self.spec.log.info(
            "the position's commit is older than half the log's retention of %s (since %s); committing it again",
            self.spec.target,
            kept_until.isoformat(timespec="seconds"),
        )
        return True


@dataclass
class _Look:
    """The stream's position and the plan from it.

    Attributes:
        anchor: The position; advances with each commit.
        source: The enumerator's source; a later stop replaces it.
        enumerator: The enumerator, started from the anchor.
        plan: The enumerator's plan.
    """

    anchor: Anchor
    source: Source
    enumerator: SplitEnumerator
    plan: ReadPlan


def _doubt(error: KafkaFlipError, document: CommitDocument, committed: Committed, target: DeltaTarget) -> str:
    """Message about a commit whose rows may come from two logs."""
    recreated = isinstance(error, TopicRecreatedError)
    topics = error.topics if isinstance(error, TopicRecreatedError) else ()
    splits = [split for split in document.splits if not recreated or split.topic_partition.topic in topics]
    ranges = ", ".join(str(split) for split in splits[:_SHOWN_SPLITS])
    more = "" if len(splits) <= _SHOWN_SPLITS else f" and {len(splits) - _SHOWN_SPLITS} more"
    start = (
        str(OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 0 for topic in topics}))
        if recreated
        else "earliest"
    )
    return (
        f"{found(error)} This happened while version {committed.version} of {target} was read and written. Its rows "
        f"of {ranges}{more} may come from either log. The commit stays; nothing more was read, and all runs of the "
        f"stream stop until you decide. 1. RESTORE TABLE {target.identifier} TO VERSION AS OF {committed.version - 1} "
        "removes the rows of that commit. Skip it only if you know that they come from the old log, which can't be "
        "read again. 2. Make the next run read the new log from the beginning: "
        f"{set_position(str(target), target.stream, to=start)}"
    )


def _changes_nothing(plan: ReadPlan, state: EnumeratorState) -> bool:
    return (
        plan.is_empty
        and dict(plan.state.position) == dict(state.position)
        and plan.state.cluster_id == state.cluster_id
        and dict(plan.state.topic_ids) == dict(state.topic_ids)
    )
