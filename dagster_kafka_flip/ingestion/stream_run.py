"""StreamRun: one bounded run of one stream, from its position to the stop, in steps.

The order of steps is what makes it exactly once: the position is read from the table, the plan is fixed, and one Delta
commit carries the rows and the new position. Everything after that commit is telling.
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
    """A run that has not begun.

    Args:
        spec: The run.
        known: A copy of the position.
        starting_offsets: Start here instead of at the position; None to go on.
        reported: The table's version up to which commits were reported; None if nobody keeps a record of that.
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
    """Lands what a source holds by a run that is described already; see `ingest`.

    Args:
        spec: The run.
        known: A copy of the position.
        verify_after: How long such a copy is believed.
        starting_offsets: Start here instead of at the position; None to go on.
        reported: The table's version up to which commits were reported; None if nobody keeps a record of that.
    """
    run = stream_run(spec, known=known, starting_offsets=starting_offsets, reported=reported)
    return run.idle(known, verify_after) or run.execute()


def _record(known: KnownPosition | None, target: DeltaTarget) -> RecordedPosition | None:
    """What a copy of the position tells of it, if it is of this stream and table."""
    if known is None or not known.is_of(target) or known.anchor_version is None:
        return None
    return RecordedPosition(
        known.state, known.table_version, known.anchor_version, known.transaction_version, known.dead_letters_owed
    )


@dataclass
class StreamRun:
    """One run of one stream, step by step; `ingest()` and `ingest_tables()` take the steps.

    Attributes:
        spec: What it reads, and where it lands that.
        source: What to read; it gets another stop where several tables are landed.
        overriding: The same, where this run starts elsewhere than at the position.
        context: What enumerators are told.
        record: A copy of the position, if it is of this stream and table.
        reported: The table's version up to which commits were reported; None if nobody keeps a record of that.
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
    # By their text: a plan that is made again meets the same ones.
    _incidents: dict[str, Incident] = field(default_factory=dict[str, "Incident"], init=False)
    _in_commits: int = field(default=0, init=False)

    def idle(self, known: KnownPosition | None, verify_after: timedelta) -> IngestResult | None:
        """The result of a run with nothing to do, if that can be told without Spark; else None."""
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
            # The copy may be out of date. The table has the last word, and will raise the same if it agrees.
            self.spec.log.info(
                "the last known position does not fit the log (%s); asking the table", type(error).__name__
            )
            return None
        self._reachable = True
        confirmed = self._confirmed(known) if _changes_nothing(plan, known.state) else None
        if confirmed is None:
            return None
        self.spec.log.info(
            "nothing new on %s, Spark is not started: %s",
            self.source,
            facts(topic_partitions=len(plan.end_offsets)),
        )
        return IngestResult(
            plan=plan,
            batches=(),
            known=confirmed,
            location=self.spec.target.uri,
            dead_letter_table=self._dead_letter_table(),
            incidents=self._met(plan.incidents),
            plan_seconds=clock.lap(),
        )

    def _is_fresh(self, known: KnownPosition, verify_after: timedelta) -> bool:
        """Whether a record of the position is young enough to be believed."""
        now = datetime.now(tz=timezone.utc)
        age = now - known.verified_at
        if age < timedelta(0):
            # A clock was wrong, then or now. It would be believed for as long as the clock was ahead.
            self.spec.log.warning(
                "the record of the position is dated %s, and now it is %s; asking the table",
                known.verified_at.isoformat(timespec="seconds"),
                now.isoformat(timespec="seconds"),
            )
            return False
        return age < verify_after and (known.kept_until is None or now < known.kept_until)

    def _confirmed(self, known: KnownPosition) -> KnownPosition | None:
        """The recorded position, as far as the table's log shows that it still stands; None if it shows otherwise.

        Where the log can't be seen without Spark, nobody knows how many rows there are now.
        """
        if known.log is None or known.anchor_version is None:
            return replace(known, table_rows=None)
        found = known.seen_in_log()
        if found is None:
            self.spec.log.info(
                "the log of %s does not show the recorded position plainly; asking the table", self.spec.target
            )
            return None
        version, rows = found
        return replace(known, table_version=version, table_rows=rows)

    def execute(self) -> IngestResult:
        """All the steps: plans with the position that the table holds, and commits batch after batch."""
        self.discover()
        self.open()
        try:
            while self.assign():
                self.land()
            return self.finish()
        finally:
            self._close()

    def discover(self) -> None:
        """Before Spark is started: a wrong address or topic is found out in a second, not in ten."""
        if not self._reachable:
            with contextlib.closing(self.source.create_enumerator(self.context)) as enumerator:
                enumerator.discover()

    def open(self) -> None:
        """Looks up in the table where the stream stands, and plans from there; makes the table if there is none."""
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
        """What was planned when the run was opened."""
        return self._plan

    @property
    def position(self) -> Position:
        """Where the stream stands once all that was assigned is committed."""
        state = self._looking.enumerator.snapshot_state()
        return {} if state is None else state.position

    @property
    def has_more(self) -> bool:
        """Whether there is something left to assign."""
        return (
            self._looking.enumerator.has_pending
            and self._is_worth_doing(self._looking)
            and len(self._batches) != self.spec.limits.max_batches
        )

    def stop_at(self, stop: Position) -> None:
        """What is planned from now on stops at these offsets; a topic partition without one is not read."""
        initializer = OffsetsInitializer.specific_offsets(stop)
        if isinstance(self.source, KafkaSource):
            self.source = self.source.with_overrides(stopping_offsets=initializer)
        if self.overriding is not None:
            self.overriding = self.overriding.with_overrides(stopping_offsets=initializer)

    def assign(self, until: Position | None = None) -> bool:
        """Fixes the next batch; whether there is one.

        Args:
            until: No further than to these offsets, as long as there is something before them. Default: as planned.
        """
        self._assigned = self._looking.enumerator.assign(self.spec.limits, until) if self.has_more else None
        return self._assigned is not None

    def land(self) -> None:
        """Lands the batch, if there is one.

        Where somebody else's change came in between, nothing is landed, and what follows is planned anew.
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
                self._met((incident_of(conflict, "The run planned anew from there."),))
            look.enumerator.add_splits_back(assignment.plan.splits)
            source = self.source if self._batches else self.overriding or self.source
            self._looking = self._look_again(look, source)
            return
        self._batches.append(done)
        self._met(done.incidents)
        if self._letters is not None:
            self._met(self._letters.take_incidents())
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
        """Makes sure that the batch just committed was read from the logs that it was planned for."""
        looking = self._looking
        batch = replace(looking.plan, splits=document.splits, state=document.state)
        self._confirmation.confirm(
            lambda: looking.enumerator.check_same_logs(batch),
            lambda error: _doubt(error, document, committed, self.spec.target),
            document,
            committed,
        )

    def finish(self) -> IngestResult:
        """What was done, and where the stream stands.

        Everything is committed by now: whatever can't be found out any more is left out, and fails nothing.
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
            msg = f"the stream {target.stream!r} of {target} has no position after a run; this is a defect"
            raise KafkaFlipError(msg)
        letters = self._letters
        dead_letters_owed = letters is not None and self._or_else(
            True, "whether dead letters are owed is not known", letters.finish
        )
        table_rows = anchor.table_rows
        if table_rows is None:
            table_rows = self._or_else(None, "the table's rows could not be counted", self._table.count_rows)
        # Without an answer, the next run asks the table.
        now = datetime.now(tz=timezone.utc)
        kept_until = self._or_else(now, "how long history is kept is not known", lambda: self._table.kept_until(anchor))
        location = self._or_else(self.spec.target.uri, "the table's location is not known", self._table.location)
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
            columns=self._landing.columns,
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
        self._or_else(None, "the source could not be closed", self._looking.enumerator.close)

    def _plan_of_the_run(self) -> ReadPlan:
        """How the logs stood when the run planned last, with where it began to read them.

        A run that planned anew read other offsets than it first wanted to, and maybe other logs of the same names.
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
        """What a function gives; something else where it fails, which the log tells."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - nothing of what is asked for here may undo what is committed
            self.spec.log.warning("%s, and what the run has committed stays: %s", what, telling_line(error))
            return otherwise

    def _met(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """Notes what is tolerated, and gives all that was in this run."""
        for incident in incidents:
            if incident.message not in self._incidents:
                self._incidents[incident.message] = incident
                self.spec.log.warning("tolerated %s: %s", incident.error, incident.message)
        return tuple(self._incidents.values())

    def _look(self, source: Source) -> _Look:
        """Where the stream stands, and what there is to read from there; makes the table if there is none."""
        anchor = self._settled_anchor()
        if anchor is None:
            # Planned before the table is made, so that a source that can't be read leaves nothing behind.
            enumerator, plan = self._begin_anew(source)
            anchor = self._settled(self._table.made(self._landing.schema()))
            if anchor.state is None:
                # A run of windows may have been faster in making it.
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
        """The first plan of a stream that has no position; one that had one leaves nothing out unless it is told to."""
        enumerator = source.create_enumerator(self.context)
        plan = enumerator.start()
        if self.record is not None and isinstance(source, KafkaSource):
            if source is not self.overriding:
                check_nothing_is_skipped(self.record.state, plan, source.starting_offsets, self.spec.target)
            self.spec.log.warning(
                "%s holds no position of the stream %r, and by the record of its last run it had one: the table was "
                "dropped, or made anew. A new stream starts at %s",
                self.spec.target,
                self.spec.target.stream,
                source.starting_offsets,
            )
        return enumerator, plan

    def _settled_anchor(self) -> Anchor | None:
        """Where the stream stands; what its last commit left owing of dead letters is settled first."""
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
        # The next commit says that it was tolerated, and where dead letters go from now on.
        return replace(anchor, incidents=(*anchor.incidents, *incidents))

    def _dead_letter_table(self) -> str | None:
        return None if self.spec.dead_letters is None else str(self.spec.dead_letters.target(self.spec.target))

    def _look_again(self, look: _Look, source: Source) -> _Look:
        """As `_look`; if the position has not moved, the enumerator goes on with what it was handed back."""
        anchor = self._settled_anchor()
        state = look.enumerator.snapshot_state()
        if anchor is None or anchor.state != look.anchor.state or state is None:
            look.enumerator.close()
            return self._look(source)
        if anchor.state is None:
            self._table.check_takes_streams()
        enumerator = look.enumerator
        if look.source is not source:
            # Planned before the stop was set that all tables have in common. Where it begins is fixed already.
            enumerator.close()
            enumerator = self.source.restore_enumerator(self.context, state)
        return self._tell(_Look(anchor, source, enumerator, enumerator.start()))

    def _tell(self, look: _Look) -> _Look:
        plan = look.plan
        self._met((*look.anchor.incidents, *plan.incidents))
        self._discovered.update(plan.discovered)
        self._table.check_overlap(look.anchor, plan)
        for tp, offsets in sorted(plan.held_back.items()):
            self.spec.log.info("%s: %d offsets are held back by an open transaction", tp, offsets)
        if plan.paused:
            self.spec.log.info(
                "%d topic partitions are ahead of the slowest by more than the maximum drift; %d of their offsets are "
                "left for a later run",
                len(plan.paused),
                sum(plan.paused.values()),
            )
        if plan.removed:
            self.spec.log.warning(
                "%s: no longer read, because they are gone or no longer asked for; their position is kept",
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
            "this run starts at %s instead of at the position: up to %d records are read again, up to %d are skipped",
            start,
            again,
            skipped,
        )

    def _notify(self, enumerator: SplitEnumerator) -> bool:
        """Tells the outside of a commit; whether that failed, which takes nothing away from the commit."""
        try:
            enumerator.notify_checkpoint_complete()
        except Exception as error:  # noqa: BLE001 - whatever fails in telling, the batch is committed
            self.spec.log.warning("the batch is committed; the consumer group could not be told: %s", error)
            return True
        return False

    def _is_worth_doing(self, look: _Look) -> bool:
        """Whether the plan reads anything, moves the position, or keeps it from being forgotten.

        A plan without splits is committed all the same where it fixes a position that the table does not hold yet: a
        stream that begins at "latest" must not begin later still the next time. And where Delta is about to forget the
        commit that holds the position, because nothing has arrived for long. And where something about the table was
        tolerated: the commit says so, and the next run need not tolerate it again. And where only a record still held
        the position.
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
            "the position's commit is older than half the log's retention of %s (since %s); it is committed anew",
            self.spec.target,
            kept_until.isoformat(timespec="seconds"),
        )
        return True


@dataclass
class _Look:
    """Where the stream stands, and what there is to read from there.

    Attributes:
        anchor: Where it stands; moves on with each commit.
        source: What the enumerator was made from; a stop that is set later makes it another.
        enumerator: Started from there.
        plan: What the enumerator planned.
    """

    anchor: Anchor
    source: Source
    enumerator: SplitEnumerator
    plan: ReadPlan


def _doubt(error: KafkaFlipError, document: CommitDocument, committed: Committed, target: DeltaTarget) -> str:
    """What an operator has to know and do about a commit whose rows may be of two logs."""
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
        f"{found(error)} That happened while version {committed.version} of {target} was read and written. Its rows of "
        f"{ranges}{more} may be of either log, and nothing tells which. The commit stays; nothing more was read, "
        f"and no run of the stream goes on before you decide. 1. RESTORE TABLE {target.identifier} TO VERSION AS OF "
        f"{committed.version - 1} takes the rows of that commit out. Leave it out only if you know that they are of "
        "the old log, which can't be read again. 2. Have the next run read the new log from its start: "
        f"{set_position(str(target), target.stream, to=start)}"
    )


def _changes_nothing(plan: ReadPlan, state: EnumeratorState) -> bool:
    return (
        plan.is_empty
        and dict(plan.state.position) == dict(state.position)
        and plan.state.cluster_id == state.cluster_id
        and dict(plan.state.topic_ids) == dict(state.topic_ids)
    )
