"""ingest(): one bounded run of one stream, from the position to the stop. The use case, with no Dagster in it.

The order of steps is what makes it exactly once: the position is read from the table, the plan is fixed, and one Delta
commit carries the rows and the new position. Everything after that commit is telling.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.dead_letters import DeadLetters, DeadLetterTable, check_nothing_owed, dead_letters_of
from dagster_kafka_flip.errors import (
    ClusterUnreachableError,
    ConfigurationError,
    KafkaFlipError,
    TableError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.observation import BatchObservation, Observed
from dagster_kafka_flip.reader.columns import KafkaColumns
from dagster_kafka_flip.reader.read import no_records, read
from dagster_kafka_flip.session import parallelism
from dagster_kafka_flip.source.api import Boundedness, SplitEnumeratorContext
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.limits import Limits
from dagster_kafka_flip.table.delta_table import Committed, DeltaTable, ForeignConflictError
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.history import Anchor
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.source.api import Source, SplitAssignment, SplitEnumerator
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState

_logger = logging.getLogger(__name__)

# A plan is made anew this often after somebody else's change to the table came in between.
_MAX_PLANS = 4

DEFAULT_VERIFY_AFTER = timedelta(hours=24)


@dataclass(frozen=True)
class KnownPosition:
    """A copy of the position that is at hand without Spark, such as in Dagster's record of the last run.

    It is believed only when it says that there is nothing new.

    Attributes:
        stream: Id of the stream.
        table: The table, as its DeltaTarget prints it.
        state: Where the stream stood.
        verified_at: When that was last seen in the table itself.
        table_version: The table's version then.
        table_rows: The table's rows then, if they were known.
        record_bytes: Average size of the records that the run before read, keys and values, if it is known.
        kept_until: Until when the table's history surely holds the position: half of the log's retention after its
            commit. From then on the table is asked, and the position is committed anew.
        dead_letters_owed: Whether the dead-letter table did not say yet that nothing is owed to it.
    """

    stream: str
    table: str
    state: EnumeratorState
    verified_at: datetime
    table_version: int
    table_rows: int | None = None
    record_bytes: float | None = None
    kept_until: datetime | None = None
    dead_letters_owed: bool = False


@dataclass(frozen=True)
class BatchResult:
    """One commit of a run.

    Attributes:
        plan: What was planned.
        tasks: Number of tasks that read it.
        committed: What the table's history says.
        observed: What was observed while reading; None if Spark had nothing to tell.
        read_and_write_seconds: Time for reading, decoding, writing and Delta's commit.
        confirm_seconds: Time for making sure of the commit.
    """

    plan: ReadPlan
    tasks: int
    committed: Committed
    observed: Observed | None
    read_and_write_seconds: float
    confirm_seconds: float


@dataclass(frozen=True)
class IngestResult:
    """What a run did.

    Attributes:
        plan: The whole run's plan; its batches read it in turn.
        batches: One for each commit, none if there was nothing to do.
        known: The position reached, for the next run to know.
        location: The table's location, where it is known.
        columns: Names and types of the columns landed, where Spark was started.
        overrides_start: Whether this run was told to start elsewhere than at the position.
        started_spark: Whether a Spark session was asked for.
        group_commit_failures: How often the consumer group could not be told of a commit.
        dead_letters: Records that could not be decoded and were landed in the dead-letter table, those that an earlier
            run left owing included.
        dead_letter_table: That table; None if there is none.
        plan_seconds: Time for looking up the position and planning, without the start of Spark.
        spark_seconds: Time until a Spark session was there.
    """

    plan: ReadPlan
    batches: tuple[BatchResult, ...]
    known: KnownPosition
    location: str | None
    columns: tuple[tuple[str, str], ...] = ()
    overrides_start: bool = False
    started_spark: bool = False
    group_commit_failures: int = 0
    dead_letters: int = 0
    dead_letter_table: str | None = None
    plan_seconds: float = 0.0
    spark_seconds: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do, so that no commit was made."""
        return not self.batches

    @property
    def state(self) -> EnumeratorState:
        """Where the stream stands after the run."""
        return self.known.state

    @property
    def records(self) -> int | None:
        """Records read; None if Spark had nothing to tell."""
        seen = [batch.observed for batch in self.batches]
        return None if None in seen else sum(observed.records for observed in seen if observed is not None)

    @property
    def rows(self) -> int:
        """Rows committed."""
        return sum(batch.committed.rows for batch in self.batches)

    @property
    def lag_after(self) -> int:
        """Offsets between the position reached and the end offsets that were seen when planning."""
        position = self.state.position
        return sum(max(0, end - position[tp]) for tp, end in self.plan.end_offsets.items())


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
        known: A copy of the position; lets a run find out without Spark that there is nothing new.
        verify_after: How long such a copy is believed. Default 24 hours.
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
        context=SplitEnumeratorContext(record_bytes=None if known is None else known.record_bytes),
    )
    return run.idle(known, verify_after) or run.execute()


def _overriding(source: Source, starting_offsets: OffsetsInitializer | None) -> KafkaSource | None:
    """The source that starts a run elsewhere than at the position, if one is to."""
    if isinstance(source, KafkaSource) and starting_offsets is not None:
        return source.with_overrides(starting_offsets=starting_offsets)
    return None


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
    _reachable: bool = field(default=False, init=False)
    _session: SparkSession = field(init=False)
    _table: DeltaTable = field(init=False)
    _letters: DeadLetterTable | None = field(default=None, init=False)
    _columns: tuple[tuple[str, str], ...] = field(default=(), init=False)

    def idle(self, known: KnownPosition | None, verify_after: timedelta) -> IngestResult | None:
        """The result of a run with nothing to do, if that can be told without Spark; else None."""
        if known is None or self.overriding is not None or known.dead_letters_owed:
            return None
        if known.stream != self.target.stream or known.table != str(self.target):
            return None
        now = datetime.now(tz=timezone.utc)
        if now - known.verified_at >= verify_after or (known.kept_until is not None and now >= known.kept_until):
            return None
        clock = _Clock()
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
            plan_seconds=clock.lap(),
        )

    def execute(self) -> IngestResult:
        """Plans with the position that the table holds, and commits batch after batch."""
        # Before Spark is started: a wrong address or topic is found out in a second, not in ten.
        if not self._reachable:
            with contextlib.closing(self.source.create_enumerator(self.context)) as enumerator:
                enumerator.discover()
        clock = _Clock()
        self._session = self.spark()
        spark_seconds = clock.lap()
        self.log.info("a Spark session is there after %.1f s", spark_seconds)
        self.context.current_parallelism = parallelism(self._session)
        self._table = DeltaTable(self._session, self.target)
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

        look = self._look(self.overriding or self.source)
        plan = look.plan
        plan_seconds = clock.lap()
        batches: list[BatchResult] = []
        conflicts = group_commit_failures = 0
        while self._is_worth_doing(look) and len(batches) != self.limits.max_batches:
            assignment = look.enumerator.assign(self.limits)
            if assignment is None:
                break
            try:
                done = self._commit(look.anchor, assignment, batches)
            except ForeignConflictError as conflict:
                conflicts += 1
                if conflicts == _MAX_PLANS:
                    msg = (
                        f"{conflicts} plans in a row met somebody else's change to {self.target}, the last one with "
                        f"{conflict}; nothing of the batch was written. Run again when the table is quiet"
                    )
                    raise WriteFailedError(msg) from conflict
                self.log.warning("somebody else changed %s meanwhile (%s); planning anew", self.target, conflict)
                look.enumerator.add_splits_back(assignment.plan.splits)
                look = self._look_again(look, self.source if batches else self.overriding or self.source)
                continue
            batches.append(done)
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
            )
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
            ),
            location=self._table.location(),
            columns=self._columns,
            overrides_start=self.overriding is not None,
            started_spark=True,
            group_commit_failures=group_commit_failures,
            dead_letters=0 if self._letters is None else self._letters.landed,
            dead_letter_table=self._dead_letter_table(),
            plan_seconds=plan_seconds,
            spark_seconds=spark_seconds,
        )

    def _look(self, source: Source) -> _Look:
        """Where the stream stands, and what there is to read from there; makes the table if there is none."""
        anchor = self._settled_anchor()
        if anchor is None:
            # Planned before the table is made, so that a source that can't be read leaves nothing behind.
            enumerator = source.create_enumerator(self.context)
            plan = enumerator.start()
            self._table.create(self._decoded(no_records(self._session)).schema)
            anchor = self._settled_anchor()
            if anchor is None:
                msg = f"the table {self.target} was made, and is not there; was it dropped meanwhile? Run again"
                raise TableError(msg)
            if anchor.state is None:
                return self._tell(_Look(anchor, enumerator, plan))
        if anchor.state is None:
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
        commit that holds the position, because nothing has arrived for long.
        """
        if look.anchor.state is None or not _changes_nothing(look.plan, look.anchor.state):
            return True
        kept_until = self._table.kept_until(look.anchor)
        if kept_until is None or datetime.now(tz=timezone.utc) < kept_until:
            return False
        self.log.info(
            "the position's commit is older than half the log's retention of %s (since %s); it is committed anew",
            self.target,
            kept_until.isoformat(timespec="seconds"),
        )
        return True

    def _commit(self, anchor: Anchor, assignment: SplitAssignment, before: Sequence[BatchResult]) -> BatchResult:
        batch = assignment.plan
        previous = before[-1].observed if before else None
        tasks = len(assignment.task_plan.tasks)
        if self._letters is not None:
            self._letters.prepare(None if batch.is_empty else self._records(assignment))
        watch = BatchObservation(batch.splits)
        rows = self._decoded(self._records(assignment), watch)
        self._columns = self._table.check_schema(rows.schema)
        document = CommitDocument(
            stream=self.target.stream,
            attempt=uuid.uuid4().hex,
            run_id=self.run_id,
            base_version=anchor.table_version,
            anchor_version=anchor.version,
            splits=batch.splits,
            state=batch.state,
            rows_before=self._table.count_rows() if anchor.table_rows is None else anchor.table_rows,
            overrides_start=self.overriding is not None and not before,
            observed=None if previous is None else previous.to_json(),
            dead_letter=None if self._letters is None else self._letters.route(),
        )
        clock = _Clock()
        try:
            committed = self._table.commit(rows, document)
        except WriteFailedError as error:
            if is_rejection(error):
                raise rejected_records(self._records(assignment), self.decoder) from None
            raise
        seconds = clock.lap()
        observed = watch.get(patience=0.5 if committed.rows == 0 else 10.0)
        self.log.info(
            "committed version %d of %s: %d rows from %d splits, read by %d tasks in %.1f s",
            committed.version,
            self.target,
            committed.rows,
            len(batch.splits),
            tasks,
            seconds,
        )
        routed = document.routed(committed.version)
        if self._letters is not None and routed is not None:
            self._letters.settle(routed, observed)
        return BatchResult(
            plan=batch,
            tasks=tasks,
            committed=committed,
            observed=observed,
            read_and_write_seconds=seconds - committed.confirm_seconds,
            confirm_seconds=committed.confirm_seconds,
        )

    def _records(self, assignment: SplitAssignment) -> DataFrame:
        if assignment.plan.is_empty:
            return no_records(self._session)
        return read(self.source, self._session, assignment)

    def _decoded(self, records: DataFrame, watch: BatchObservation | None = None) -> DataFrame:
        staged = self.decoder.stage(records)
        if watch is not None:
            staged = watch.watch(staged, self.decoder.problem())
        rows = self.decoder.finish(staged, leave_out_rejected=self.dead_letters is not None)
        if self.transform is None:
            return rows
        transformed = self.transform(rows)
        if not hasattr(transformed, "writeTo"):
            msg = f"the transform has to return a DataFrame, and returned {type(transformed).__name__}"
            raise ConfigurationError(msg)
        if not transformed.columns:
            msg = "the transform returned a DataFrame without columns; keep at least one"
            raise ConfigurationError(msg)
        return transformed


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


class _Clock:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last call."""
        last, self._last = self._last, time.monotonic()
        return self._last - last


def _changes_nothing(plan: ReadPlan, state: EnumeratorState) -> bool:
    return plan.is_empty and dict(plan.state.position) == dict(state.position)
