"""ingest(): one bounded run of one stream, from the position to the stop. The use case, with no Dagster in it.

The order of steps is what makes it exactly once: the position is read from the table, the plan is fixed, and one Delta
commit carries the rows and the new position. Everything after that commit is telling.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.clock import Clock
from dagster_kafka_flip.dead_letters import DeadLetters, DeadLetterTable, check_nothing_owed, dead_letters_of
from dagster_kafka_flip.errors import (
    ClusterUnreachableError,
    ConcurrentIngestionError,
    ConfigurationError,
    KafkaFlipError,
    TableError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.landing import Landing
from dagster_kafka_flip.reader.columns import KafkaColumns
from dagster_kafka_flip.result import BatchResult, IngestResult, KnownPosition
from dagster_kafka_flip.session import parallelism
from dagster_kafka_flip.source.api import Boundedness, SplitEnumeratorContext
from dagster_kafka_flip.source.incident import Incident, incident_of
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.limits import Limits
from dagster_kafka_flip.table.delta_table import DeltaTable, ForeignConflictError, RecordedPosition
from dagster_kafka_flip.table.history import Anchor
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.tolerance import tolerated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.source.api import Source, SplitEnumerator
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState

_logger = logging.getLogger(__name__)

# A plan is made anew this often after somebody else's change to the table came in between.
_MAX_PLANS = 4

DEFAULT_VERIFY_AFTER = timedelta(hours=24)


def ingest(
    source: Source,
    table: DeltaTarget | str,
    *,
    spark: Callable[[], SparkSession],
    connection: KafkaConnection | None = None,
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    dead_letter: DeadLetters | str | None = None,
    limits: Limits | None = None,
    starting_offsets: OffsetsInitializer | None = None,
    known: KnownPosition | None = None,
    verify_after: timedelta = DEFAULT_VERIFY_AFTER,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    run_id: str = "",
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> IngestResult:
    """Lands what a source holds, from the stream's position to the source's stop, in a Delta table, exactly once.

    Args:
        source: What to read: a KafkaSource, or any bounded source whose reader is registered.
        table: Where to; a text stands for a DeltaTarget of that table.
        spark: Gives a Spark session; called only if there is something to do.
        connection: Where Kafka is, unless the source says so. Only for a KafkaSource.
        key_format: How to read keys. Default: RawFormat.
        value_format: How to read values. Default: RawFormat.
        columns: Which of the record's own fields are kept. Default: all but the value.
        transform: From the batch's records to the rows to land, both lazy.
        dead_letter: Where records go that can't be decoded; a text stands for DeadLetters of that table. Default: they
            stop the run, or are kept, as their format says.
        limits: How much to do at once. Default: everything in one commit.
        starting_offsets: For this run alone, start here instead of at the position: records in between are read again
            or skipped. Only for a KafkaSource.
        known: A copy of the position; lets a run find out without Spark that there is nothing new, and stands in where
            the table's history has lost the position.
        verify_after: How long such a copy is believed. Default 24 hours.
        tolerate: Errors that don't end the run: it goes on and says so in the result's `incidents`. Default: none.
        run_id: Kept in the commit. Default: none.
        logger: Where to tell each step. Default: this module's.

    Returns:
        What was done.

    Raises:
        KafkaFlipError: Whatever is in the way; its classes are in `dagster_kafka_flip.errors`.
    """
    if source.boundedness is not Boundedness.BOUNDED:
        msg = f"the source of {source} never ends, and a batch has to; give it a stop"
        raise ConfigurationError(msg)
    if isinstance(source, KafkaSource):
        source = source.connected(connection)
    elif connection is not None or starting_offsets is not None:
        msg = f"connection and starting_offsets are for a KafkaSource, and {type(source).__name__} is none"
        raise ConfigurationError(msg)
    target = DeltaTarget(table=table) if isinstance(table, str) else table
    run = _Run(
        source=source,
        overriding=_overriding(source, starting_offsets),
        target=target,
        spark=spark,
        decoder=Decoder(key_format or RawFormat(), value_format or RawFormat(), columns or KafkaColumns()),
        transform=transform,
        dead_letters=dead_letters_of(dead_letter, target, key_format, value_format),
        limits=limits or Limits(),
        run_id=run_id,
        log=logger or _logger,
        context=SplitEnumeratorContext(
            record_bytes=None if known is None else known.record_bytes, tolerated=tolerated_errors(tolerate)
        ),
        record=_record(known, target),
    )
    return run.idle(known, verify_after) or run.execute()


def _overriding(source: Source, starting_offsets: OffsetsInitializer | None) -> KafkaSource | None:
    """The source that starts a run elsewhere than at the position, if one is to."""
    if isinstance(source, KafkaSource) and starting_offsets is not None:
        return source.with_overrides(starting_offsets=starting_offsets)
    return None


def _record(known: KnownPosition | None, target: DeltaTarget) -> RecordedPosition | None:
    """What a copy of the position tells of it, if it is of this stream and table."""
    if known is None or known.stream != target.stream or known.table != str(target) or known.anchor_version is None:
        return None
    return RecordedPosition(
        known.state, known.table_version, known.anchor_version, known.transaction_version, known.dead_letters_owed
    )


@dataclass
class _Run:
    source: Source
    overriding: KafkaSource | None
    target: DeltaTarget
    spark: Callable[[], SparkSession]
    decoder: Decoder
    transform: Callable[[DataFrame], DataFrame] | None
    dead_letters: DeadLetters | None
    limits: Limits
    run_id: str
    log: logging.Logger | logging.LoggerAdapter[Any]
    context: SplitEnumeratorContext
    record: RecordedPosition | None
    _reachable: bool = field(default=False, init=False)
    _session: SparkSession = field(init=False)
    _table: DeltaTable = field(init=False)
    _letters: DeadLetterTable | None = field(default=None, init=False)
    _landing: Landing = field(init=False)
    # By their text: a plan that is made again meets the same ones.
    _incidents: dict[str, Incident] = field(default_factory=dict[str, "Incident"], init=False)

    def idle(self, known: KnownPosition | None, verify_after: timedelta) -> IngestResult | None:
        """The result of a run with nothing to do, if that can be told without Spark; else None."""
        if known is None or self.overriding is not None or known.dead_letters_owed:
            return None
        if known.stream != self.target.stream or known.table != str(self.target):
            return None
        now = datetime.now(tz=timezone.utc)
        if now - known.verified_at >= verify_after or (known.kept_until is not None and now >= known.kept_until):
            return None
        clock = Clock()
        try:
            with contextlib.closing(self.source.restore_enumerator(self.context, known.state)) as enumerator:
                plan = enumerator.start()
        except ClusterUnreachableError:
            raise
        except KafkaFlipError as error:
            # The copy may be out of date. The table has the last word, and will raise the same if it agrees.
            self.log.info("the last known position does not fit the log (%s); asking the table", type(error).__name__)
            return None
        self._reachable = True
        if not _changes_nothing(plan, known.state):
            return None
        self.log.info(
            "nothing new on %s: %d topic partitions stand at their stop; Spark is not started",
            self.source,
            len(plan.end_offsets),
        )
        return IngestResult(
            plan=plan,
            batches=(),
            known=known,
            location=self.target.uri,
            dead_letter_table=self._dead_letter_table(),
            incidents=self._met(plan.incidents),
            plan_seconds=clock.lap(),
        )

    def execute(self) -> IngestResult:
        """Plans with the position that the table holds, and commits batch after batch."""
        # Before Spark is started: a wrong address or topic is found out in a second, not in ten.
        if not self._reachable:
            with contextlib.closing(self.source.create_enumerator(self.context)) as enumerator:
                enumerator.discover()
        clock = Clock()
        self._session = self.spark()
        spark_seconds = clock.lap()
        self.log.info("a Spark session is there after %.1f s", spark_seconds)
        self.context.current_parallelism = parallelism(self._session)
        self._table = DeltaTable(self._session, self.target, self.context.tolerated, self.record)
        if self.dead_letters is not None:
            self._letters = DeadLetterTable(
                spark=self._session,
                letters=self.dead_letters,
                source=self.source,
                context=self.context,
                decoder=self.decoder,
                main=self._table,
                main_target=self.target,
                run_id=self.run_id,
                log=self.log,
            )

        self._landing = Landing(
            spark=self._session,
            source=self.source,
            context=self.context,
            table=self._table,
            target=self.target,
            decoder=self.decoder,
            transform=self.transform,
            letters=self._letters,
            run_id=self.run_id,
            log=self.log,
        )
        look = self._look(self.overriding or self.source)
        plan = look.plan
        plan_seconds = clock.lap()
        batches: list[BatchResult] = []
        look, group_commit_failures = self._land(look, batches)
        look.enumerator.close()
        anchor = look.anchor
        if anchor.state is None:
            msg = f"the stream {self.target.stream!r} of {self.target} has no position after a run; this is a defect"
            raise KafkaFlipError(msg)
        dead_letters_owed = self._letters is not None and self._letters.finish()
        return IngestResult(
            plan=plan,
            batches=tuple(batches),
            known=KnownPosition(
                stream=self.target.stream,
                table=str(self.target),
                state=anchor.state,
                verified_at=datetime.now(tz=timezone.utc),
                table_version=anchor.table_version,
                table_rows=self._table.count_rows() if anchor.table_rows is None else anchor.table_rows,
                record_bytes=self.context.record_bytes,
                kept_until=self._table.kept_until(anchor),
                dead_letters_owed=dead_letters_owed,
                anchor_version=anchor.version,
                transaction_version=anchor.transaction_version,
            ),
            location=self._table.location(),
            columns=self._landing.columns,
            overrides_start=self.overriding is not None,
            started_spark=True,
            group_commit_failures=group_commit_failures,
            dead_letters=0 if self._letters is None else self._letters.landed,
            dead_letter_table=self._dead_letter_table(),
            incidents=tuple(self._incidents.values()),
            plan_seconds=plan_seconds,
            spark_seconds=spark_seconds,
        )

    def _land(self, look: _Look, batches: list[BatchResult]) -> tuple[_Look, int]:
        """Lands what was planned, batch after batch.

        Args:
            look: Where the stream stands.
            batches: Takes up each that is committed.

        Returns:
            Where the stream stands then, and how often the consumer group could not be told.
        """
        conflicts = group_commit_failures = in_commits = 0
        while self._is_worth_doing(look) and len(batches) != self.limits.max_batches:
            assignment = look.enumerator.assign(self.limits)
            if assignment is None:
                break
            try:
                done = self._landing.land(
                    look.anchor,
                    assignment,
                    previous=batches[-1].observed if batches else None,
                    overrides_start=self.overriding is not None and not batches,
                    incidents=tuple(self._incidents.values())[in_commits:],
                )
            except (ForeignConflictError, *self.context.tolerated) as conflict:
                conflicts += 1
                self._tell_conflict(conflicts, conflict)
                look.enumerator.add_splits_back(assignment.plan.splits)
                look = self._look_again(look, self.source if batches else self.overriding or self.source)
                continue
            batches.append(done)
            in_commits = len(self._incidents)
            group_commit_failures += self._notify(look.enumerator)
            if done.observed is not None and done.observed.records:
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
        return look, group_commit_failures

    def _tell_conflict(self, conflicts: int, conflict: KafkaFlipError) -> None:
        if conflicts == _MAX_PLANS:
            msg = (
                f"{conflicts} plans in a row met somebody else's change to {self.target}, the last one with "
                f"{conflict}; nothing of the batch was written. Run again when the table is quiet"
            )
            raise WriteFailedError(msg) from conflict
        if isinstance(conflict, ConcurrentIngestionError):
            self._met((incident_of(conflict, "The run planned anew from there."),))
        elif isinstance(conflict, ForeignConflictError):
            self.log.warning("somebody else changed %s meanwhile (%s); planning anew", self.target, conflict)
        else:
            self.log.warning("the batch can't be read as it was planned; planning anew: %s", conflict)

    def _met(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """Notes what is tolerated, and gives all that was in this run."""
        for incident in incidents:
            if incident.message not in self._incidents:
                self._incidents[incident.message] = incident
                self.log.warning("tolerated %s: %s", incident.error, incident.message)
        return tuple(self._incidents.values())

    def _look(self, source: Source) -> _Look:
        """Where the stream stands, and what there is to read from there; makes the table if there is none."""
        anchor = self._settled_anchor()
        if anchor is None:
            # Planned before the table is made, so that a source that can't be read leaves nothing behind.
            enumerator = source.create_enumerator(self.context)
            plan = enumerator.start()
            self._table.create(self._landing.schema())
            anchor = self._settled_anchor()
            if anchor is None:
                msg = f"the table {self.target} was made, and is not there; was it dropped meanwhile? Run again"
                raise TableError(msg)
            if anchor.state is None:
                return self._tell(_Look(anchor, enumerator, plan))
        if anchor.state is None:
            self._table.check_takes_streams()
            enumerator = source.create_enumerator(self.context)
        else:
            enumerator = source.restore_enumerator(self.context, anchor.state)
        look = self._tell(_Look(anchor, enumerator, enumerator.start()))
        if self.overriding is not None and source is self.overriding and anchor.state is not None:
            self._tell_override(self.overriding.starting_offsets, anchor.state, look.plan)
        return look

    def _settled_anchor(self) -> Anchor | None:
        """Where the stream stands; what its last commit left owing of dead letters is settled first."""
        anchor = self._table.anchor()
        routed = None if anchor is None else anchor.routed
        if routed is not None and self._letters is not None:
            self._letters.settle_debt(routed)
        elif routed is not None:
            check_nothing_owed(self._session, routed, self._table, self.target, self.log)
        return anchor

    def _dead_letter_table(self) -> str | None:
        return None if self.dead_letters is None else str(self.dead_letters.target(self.target))

    def _look_again(self, look: _Look, source: Source) -> _Look:
        """As `_look`; if the position has not moved, the enumerator goes on with what it was handed back."""
        anchor = self._settled_anchor()
        if anchor is None or anchor.state != look.anchor.state:
            look.enumerator.close()
            return self._look(source)
        return self._tell(_Look(anchor, look.enumerator, look.enumerator.start()))

    def _tell(self, look: _Look) -> _Look:
        plan = look.plan
        self._met((*look.anchor.incidents, *plan.incidents))
        self._table.check_overlap(look.anchor, plan)
        for tp, offsets in sorted(plan.held_back.items()):
            self.log.info("%s: %d offsets are held back by an open transaction", tp, offsets)
        if plan.paused:
            self.log.info(
                "%d topic partitions are ahead of the slowest by more than the maximum drift; %d of their offsets are "
                "left for a later run",
                len(plan.paused),
                sum(plan.paused.values()),
            )
        if plan.removed:
            self.log.warning(
                "%s: no longer read, because they are gone or no longer asked for; their position is kept",
                ", ".join(map(str, plan.removed)),
            )
        self.log.info(
            "planned %d splits of %s with %d offsets; lag %d",
            len(plan.splits),
            self.source,
            plan.offset_span,
            sum(plan.lag_before.values()),
        )
        return look

    def _tell_override(self, start: OffsetsInitializer, state: EnumeratorState, plan: ReadPlan) -> None:
        moved = {tp: plan.starting_position[tp] - state.position[tp] for tp in plan.end_offsets if tp in state.position}
        again = -sum(offsets for offsets in moved.values() if offsets < 0)
        skipped = sum(offsets for offsets in moved.values() if offsets > 0)
        self.log.warning(
            "this run starts at %s instead of at the position: up to %d records are read again, up to %d are skipped",
            start,
            again,
            skipped,
        )

    def _notify(self, enumerator: SplitEnumerator) -> bool:
        """Tells the outside of a commit; whether that failed, which takes nothing away from the commit."""
        try:
            enumerator.notify_checkpoint_complete()
        except KafkaFlipError as error:
            self.log.warning("the batch is committed; the consumer group could not be told: %s", error)
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
        self.log.info(
            "the position's commit is older than half the log's retention of %s (since %s); it is committed anew",
            self.target,
            kept_until.isoformat(timespec="seconds"),
        )
        return True


@dataclass
class _Look:
    """Where the stream stands, and what there is to read from there.

    Attributes:
        anchor: Where it stands; moves on with each commit.
        enumerator: Started from there.
        plan: What the enumerator planned.
    """

    anchor: Anchor
    enumerator: SplitEnumerator
    plan: ReadPlan


def _changes_nothing(plan: ReadPlan, state: EnumeratorState) -> bool:
    return (
        plan.is_empty
        and dict(plan.state.position) == dict(state.position)
        and plan.state.cluster_id == state.cluster_id
        and dict(plan.state.topic_ids) == dict(state.topic_ids)
    )
