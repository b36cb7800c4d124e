"""rewrite_windows(): replaces the table's rows of time windows with the topic's records.

It is idempotent: the same windows give the same rows, and no other rows change. So it needs no position, and no fence
besides Delta's own conflict detection.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError, outcome
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.batch_rows import check_keeps, run_rows
from dagster_kafka_flip.ingestion.batch_writer import Batch, BatchWriter
from dagster_kafka_flip.ingestion.dead_letter_settlement import UNREADABLE
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.ingestion.ingest import check_run_options
from dagster_kafka_flip.ingestion.keyed_stream import check_without_windows
from dagster_kafka_flip.ingestion.observation import Observed, observed_by_write
from dagster_kafka_flip.ingestion.progress import ReadProgress, measure_incidents
from dagster_kafka_flip.ingestion.result import WindowsResult
from dagster_kafka_flip.ingestion.rows_to_replace import ReplacedRows, RowsToReplace
from dagster_kafka_flip.ingestion.run_spec import RunSpec, nothing_written, start_spark
from dagster_kafka_flip.ingestion.tolerance import log_tolerated, tolerated_errors
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.runtime.session_settings import SESSION_ZONE
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.settings.names import counted, first_few
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows, carried, check_keys, contiguous_groups
from dagster_kafka_flip.table.delta_table import still_there
from dagster_kafka_flip.table.document import WindowsDocument
from dagster_kafka_flip.table.layout import NULL_AS_PARTITION
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.table.window_rows import LandedLogs, records_predicate, time_predicate
from dagster_kafka_flip.table.windowed_table import RepairedTable, WindowedTable
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import measured_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.observation import BatchObservation
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.window import WindowPlan
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.schema import TableColumns
    from dagster_kafka_flip.table.windowed_table import WindowsState

_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00"})
_logger = logging.getLogger(__name__)


@check_options(inside={"table": DeltaTarget, "limits": Limits})
def rewrite_windows(
    source: KafkaSource | str | Sequence[str],
    table: DeltaTarget | str,
    windows: Iterable[Window],
    *,
    spark: Callable[[], SparkSession],
    rules: Windows | None = None,
    definition: str = "",
    connection: KafkaConnection | None = None,
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    topics: Sequence[str] | None = None,
    limits: Limits | None = None,
    dead_letter: DeadLetters | str | None = None,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    run_id: str = "",
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> Iterator[WindowsResult]:
    """Writes time windows: replaces exactly their rows. Repeated calls give the same rows.

    Args:
        source: The source; its start and stop are not used.
        table: The table; a string is a DeltaTarget with defaults.
        windows: The windows; consecutive ones share a commit.
        spark: Returns a Spark session; called after the topics were found.
        rules: Which records a window has. Default: by the record's timestamp, up to one hour late.
        definition: What defines the windows, such as a cron schedule and a time zone. The table rejects others.
        connection: Kafka connection, unless the source has one.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        transform: Function from a batch's records to the rows to write. Must keep the window column.
        topics: The source's topics whose rows are replaced. Default: all.
        limits: Limits of a commit; a window is never split. Default: everything.
        dead_letter: With `Windows(repair=True)`: table for the stream's rejected records. Default: the table in the
            stream's last commit.
        tolerate: Errors that don't fail the run. Default: none.
        run_id: Run id for the commits. Default: none.
        logger: Logger. Default: this module's.

    Returns:
        An iterator with one result per commit. If you stop iterating, no more windows are written.

    Raises:
        ConfigurationError: An option is invalid. Raised by the call, not by the first iteration.
        KafkaFlipError: The run failed; earlier commits stay.
    """
    rules = rules or Windows()
    check_run_options(rules=rules, connection=connection, limits=limits, spark=spark, transform=transform)
    expect("windows", windows, Iterable, '[Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")]')
    windows = list(windows)
    for window in windows:
        expect("windows", window, Window, 'Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")')
    target = DeltaTarget.of(table)
    decoder = Decoder.of(key_format, value_format, columns)
    spec = RunSpec(
        source=KafkaSource.of(source).connected(connection),
        target=target,
        spark=spark,
        decoder=decoder,
        transform=transform,
        dead_letters=dead_letters_of(dead_letter, target, decoder),
        limits=limits or Limits(),
        tolerated=tolerated_errors(tolerate),
        run_id=run_id,
        log=logger or _logger,
    )
    return run_windows(spec, windows, rules, definition=definition, topics=topics)


def run_windows(
    spec: RunSpec,
    windows: Iterable[Window],
    rules: Windows,
    *,
    definition: str = "",
    topics: Sequence[str] | None = None,
    commits: int = 0,
) -> Iterator[WindowsResult]:
    """Writes time windows for an existing run spec, after some commits of the same run; see `rewrite_windows`."""
    if spec.dead_letters is not None and not rules.repair:
        msg = "dead_letter is for streams and repairs of their tables, not for tables written in windows"
        raise ConfigurationError(msg)
    check_without_windows(spec.target)
    _check_columns(spec.decoder.columns, rules, with_topics=topics is not None)
    if topics is not None:
        spec = replace(spec, source=spec.source.only(topics))
    groups = contiguous_groups(windows)
    _check_can_be_found(groups)
    return WindowRun(spec, rules, definition, None if topics is None else tuple(topics), commits).results(groups)


def _check_can_be_found(groups: Iterable[tuple[Window, ...]]) -> None:
    """Checks that a run finds the rows of each window by its key, also where the table is partitioned by it."""
    for window in itertools.chain.from_iterable(groups):
        if window.key in NULL_AS_PARTITION:
            raise ConfigurationError(
                f"the window [{window.start}, {window.stop}) has the key {window.key!r}, which Delta stores as null in "
                "a partition column: a later run would not find its rows, and land them twice",
                "Give it another key",
            )
        # Delta makes SQL of the condition again, in which no escape is left.
        if "${" in window.key:
            raise ConfigurationError(
                f"the window [{window.start}, {window.stop}) has the key {window.key!r}, in which Spark would take ${{ "
                "for the start of a variable, also in the condition of the rows to replace",
                "Give it another key, such as by another format of the partitions (fmt)",
            )


def _check_columns(columns: KafkaColumns, rules: Windows, *, with_topics: bool) -> None:
    needed = {"topic", "partition", "offset"} if rules.repair else {"topic"} if with_topics else set[str]()
    missing = sorted(needed - set(columns.fields))
    if missing:
        what = "a repair needs them to find a record's rows" if rules.repair else "it is needed to find a topic's rows"
        raise ConfigurationError(f"KafkaColumns excludes {', '.join(missing)}; {what}, so keep it")


@dataclass
class _Batch:
    plan: WindowPlan
    assignment: SplitAssignment
    before: WindowsState
    scoped: ReplacedRows
    letters: DeadLetterTable | None
    plan_seconds: float
    location: str
    table_name: str | None
    watch: BatchObservation | None = None
    columns: TableColumns | None = None
    done: Committed | None = None


@dataclass
class WindowRun:
    """Writes windows.

    The rows of the topics are replaced; if these are None, those of all topics of the source.
    """

    _spec: RunSpec
    _rules: Windows
    _definition: str
    _topics: tuple[str, ...] | None
    _commits: int
    _dead_letters: int | None = 0
    _told_letters: int | None = 0

    def __post_init__(self) -> None:
        self._target = self._spec.target
        self._context = SplitEnumeratorContext(tolerated=self._spec.tolerated, log=self._spec.log)

    def results(self, groups: Iterable[tuple[Window, ...]]) -> Iterator[WindowsResult]:
        """Writes groups of adjacent windows, as many in a commit as may be."""
        with measured_run(self._spec.metrics), contextlib.ExitStack() as open_until_the_end:
            with outcome(self._outcome):
                spark_seconds = self._open(open_until_the_end)
            for group in groups:
                pending = group
                while pending:
                    with outcome(self._outcome):
                        result = replace(self._land(pending), spark_seconds=spark_seconds)
                    spark_seconds = 0.0
                    yield result
                    pending = pending[len(result.plan.windows) :]
            self._writer.finish()

    def _open(self, open_until_the_end: contextlib.ExitStack) -> float:
        enumerator = self._spec.source.window_enumerator(self._rules, self._context)
        self._enumerator = open_until_the_end.enter_context(contextlib.closing(enumerator))
        # Before Spark's start, so that a wrong address or topic fails within a second.
        self._enumerator.discover()
        self._spec = self._spec.bound()
        open_until_the_end.enter_context(contextlib.closing(self._spec.decoder))
        self._session, spark_seconds, self._spark_ui = start_spark(self._spec, self._context)
        self._table = (
            RepairedTable(self._session, self._target, self._context.tolerated)
            if self._rules.repair
            else WindowedTable(self._session, self._target, self._definition + self._defined_by())
        )
        self._rows = run_rows(self._session, self._spec)
        self._to_replace = RowsToReplace(self._spec, self._context, self._table, self._rules, self._topics)
        self._writer = BatchWriter(self._spec, self._context, self._target)
        return spark_seconds

    def _defined_by(self) -> str:
        """What tells a record's window, where it is not Kafka's timestamp: a time without an offset is of a zone."""
        if self._rules.event_time is None:
            return ""
        zone = self._session.conf.get(SESSION_ZONE)
        return f" by {self._rules.event_time}" + ("" if zone is None or zone in _UTC else f" in {zone}")

    def _outcome(self) -> str:
        return nothing_written(self._commits, self._dead_letters, self._told_letters)

    def _land(self, windows: tuple[Window, ...]) -> WindowsResult:
        # If a log has lost planned records meanwhile, another plan finds out what to do.
        batch = self._writer.write(lambda _: self._batch(windows), UNREADABLE)
        if batch is None:
            msg = f"there was no plan for the windows of {self._target}; this is a bug"
            raise KafkaFlipError(msg)
        if batch.done is not None:
            self._commits += 1
            self._told_letters = self._dead_letters
        self._confirm(batch)
        return self._result(batch)

    def _batch(self, windows: tuple[Window, ...]) -> Batch[_Batch]:
        begun = time.monotonic()
        before, plan = self._plan(windows)
        plan = self._first_part(plan)
        plan_seconds = time.monotonic() - begun
        scoped, plan = self._to_replace.of(before, plan)
        for incident in plan.incidents:
            log_tolerated(self._spec.log, incident)
        first, last = plan.windows[0].window, plan.windows[-1].window
        log_with_fields(
            self._spec.log,
            "planned %s from %s to %s",
            counted(len(plan.windows), "window"),
            first.start,
            last.stop,
            splits=len(plan.splits),
            offsets=plan.offset_span,
            seconds=plan_seconds,
        )
        assignment, delta = self._context.assignment(plan), self._table.delta
        # Before the commit: if Spark dies after it, the result must not suffer.
        location, name = delta.location(), delta.name_in_catalog()
        batch = _Batch(plan, assignment, before, scoped, self._letters(before), plan_seconds, location, name)
        return Batch(
            f"the windows {first} to {last}",
            lambda: self._attempt(batch),
            lambda: self._rows.records(assignment),
            plan.splits,
            plan.state,
            moves_on=False,
            takes_letters=self._rules.repair,
        )

    def _plan(self, windows: tuple[Window, ...]) -> tuple[WindowsState, WindowPlan]:
        before = self._table.state()
        if before is None:
            # Plans before creating the table, so that an unreadable source leaves no table behind.
            first = self._enumerator.plan(windows)
            self._spec.decoder.renew()
            landed = LandedLogs().landing(first.state, first.stops, self._target.stream, instants.now_ms())
            self._table.create(self._rows.schema(self._rules), landed)
            before = still_there(self._table.state(), self._target)
        if before.foreign:
            self._spec.log.warning(
                "other writers appended rows to %s since the last windows were written (versions %s); a window that "
                "is written again replaces such rows",
                self._target,
                first_few(sorted(before.foreign)),
            )
        check_keys(windows, before.windows, str(self._target))
        plan = self._enumerator.plan(windows, known=before.known, cut_at=before.position)
        if plan.splits:
            self._spec.decoder.renew()
            self._spec.decoder.recall(before.schemas)
        return before, plan

    def _first_part(self, plan: WindowPlan) -> WindowPlan:
        limit = self._spec.limits.max_records_per_batch
        first = plan.first_part(limit)
        if limit is not None and first.offset_span > limit:
            self._spec.log.warning(
                "the window %s spans %d offsets, more than max_records_per_batch=%d; windows are not split, so the "
                "commit exceeds the limit",
                first.windows[0].window,
                first.offset_span,
                limit,
            )
        return first

    def _letters(self, before: WindowsState) -> DeadLetterTable | None:
        """The route of a repair's rejected records: the stream's route."""
        table, letters = self._table, self._spec.dead_letters
        if not isinstance(table, RepairedTable):
            return None
        formats = (self._spec.decoder.key_format, self._spec.decoder.value_format)
        if letters is None and before.routed is not None and all(one.on_error == "fail" for one in formats):
            route = before.routed.route
            letters = DeadLetters(table=route.table, stream=route.stream, single_writer=self._spec.target.single_writer)
        if letters is None:
            return None
        return DeadLetterTable(self._spec, self._session, self._context, table.delta, letters)

    def _attempt(self, batch: _Batch) -> Callable[[], _Batch]:
        attempt = uuid.uuid4().hex
        if batch.letters is not None and batch.plan.splits:
            # Before the rows are replaced: a record that was decoded then and is rejected now is never missing.
            self._land_letters(batch.letters, batch, attempt)
            self._dead_letters = total((self._dead_letters, batch.letters.landed))
            batch.plan = replace(batch.plan, incidents=(*batch.plan.incidents, *batch.letters.take_incidents()))
        return functools.partial(self._write, batch, attempt)

    def _write(self, batch: _Batch, attempt: str) -> _Batch:
        plan, scope, predicate = batch.plan, batch.scoped.scope, batch.scoped.predicate
        # A repair of a range that the stream has not reached has nothing to replace.
        if self._rules.repair and not plan.splits:
            return batch

        with self._rows.watched(compared := f"{attempt}-compared", ReadProgress(plan.offset_span)):
            losses = TableWriter(self._table.delta).read(
                lambda: self._to_replace.lost(plan, batch.scoped, self._rows, batch.assignment), compared
            )
        if scope is None:
            found, batch.watch = self._rows.rows(batch.assignment, leave_out_rejected=batch.letters is not None)
        else:
            found, batch.watch = self._rows.rows_of_windows(batch.assignment, plan, self._rules)
        # Changes are of tables with a key, which are not written in windows.
        rows = cast("DataFrame", found)
        with dead_spark_as_error():
            if scope is None:
                check_keeps(rows, list(self._to_replace.repaired_columns().values()))
                rows = self._to_replace.repaired(rows, plan, predicate)
            else:
                check_keeps(rows, self._to_replace.needed_columns(scope))
            batch.columns = self._table.delta.check_schema(rows.schema)
        if scope is not None:
            until_ms = batch.before.until_ms or instants.now_ms()
            landed = batch.before.landed.landing(plan.state, plan.stops, self._target.stream, until_ms, plan.made_again)
            self._table.keep(landed, batch.before)
        plan = replace(plan, incidents=(*plan.incidents, *losses))
        with self._rows.watched(attempt, ReadProgress(plan.offset_span)):
            batch.done = self._table.rewrite(rows, self._document(batch, plan, attempt), predicate, plan.stops.keys())
        batch.plan = plan
        return batch

    def _document(self, batch: _Batch, plan: WindowPlan, attempt: str) -> WindowsDocument:
        before, scope = batch.before, batch.scoped.scope
        replaced = None if scope is None or scope.topics is None else tuple(scope.topics)
        return WindowsDocument(
            attempt=attempt,
            run_id=self._spec.run_id,
            base_version=before.base_version,
            windows=tuple(planned.window for planned in plan.windows),
            splits=plan.splits,
            state=plan.state if self._rules.repair else carried(before.known, plan),
            topics=self._topics if self._rules.repair else replaced,
            repairs=self._table.repairs,
            incidents=plan.incidents,
            until_ms=None if self._rules.repair else max(before.until_ms or 0, plan.windows[-1].window.stop_ms),
            schemas=self._spec.decoder.schemas,
        )

    def _land_letters(self, letters: DeadLetterTable, batch: _Batch, attempt: str) -> None:
        """Writes the rejected records of a repair that are not among the stream's dead letters yet."""
        before, plan = batch.before, batch.plan
        windows = [planned.window for planned in plan.windows]
        columns = self._to_replace.repaired_columns()

        def select(rejected: DataFrame) -> DataFrame:
            if self._rules.event_time is None:
                return rejected.where(time_predicate(windows, "kafka_timestamp"))
            # The event time of a rejected record is unknown. Records whose rows stay are not in these windows.
            is_elsewhere = f"NOT coalesce({time_predicate(windows, columns['time'])}, false)"
            kept = self._table.delta.rows().where(f"{is_elsewhere} AND ({records_predicate(plan.splits, columns)})")
            names = ("topic", "partition", "offset")
            same = [rejected[f"kafka_{name}"] == kept[quoted(columns[name])] for name in names]
            return rejected.join(kept, same, "left_anti")

        state = plan.state if before.position is None else replace(plan.state, position=before.position)
        letters.land_missing(before.base_version, attempt, batch.assignment, state, before.routed, select)

    def _confirm(self, batch: _Batch) -> None:
        plan, done, target = batch.plan, batch.done, self._target
        windows = f"the windows from {plan.windows[0].window.start} to {plan.windows[-1].window.stop}"

        def then(error: KafkaFlipError) -> str:
            again = (
                f"Set the stream's position first ({set_position(str(target), target.stream)}), and repair the range "
                "then"
                if self._rules.repair
                else "To replace their rows with the new log's records, write the windows again and tolerate "
                f"{type(error).__name__}"
            )
            return again if done is None else f"It brings back those before, and undoes later windows. 2. {again}"

        def ask() -> None:
            self._enumerator.check_same_logs(plan.state, plan.stops)

        self._writer.confirm(ask, windows, then, plan.splits, done)

    def _result(self, batch: _Batch) -> WindowsResult:
        done, tasks = batch.done, len(batch.assignment.task_plan.tasks)
        observed = Observed(records=0, bytes=0, rejected=0)
        if batch.plan.splits and batch.watch is not None:
            observed = observed_by_write(batch.watch, None if done is None else done.rows)
        windows = len(batch.plan.windows)
        self._writer.tell(done, observed, windows=windows, splits=len(batch.plan.splits), tasks=tasks)
        measure_incidents(self._spec, batch.plan.incidents)
        rows = rows_by_topic = None
        scope = batch.scoped.scope
        if scope is not None:
            counts = self._table.rows_by_window(
                [planned.window for planned in batch.plan.windows],
                done,
                self._rules.column,
                None if self._topics is None else self._spec.decoder.columns.name("topic"),
                is_whole=scope.topics is None,
            )
            if counts is not None:
                rows_by_topic = {(key, topic): count for (key, topic), count in counts.items() if topic is not None}
                rows = {}
                for (key, _), count in counts.items():
                    rows[key] = rows.get(key, 0) + count
        return WindowsResult(
            plan=batch.plan,
            tasks=tasks,
            committed=done,
            observed=observed,
            rows=rows,
            rows_by_topic=rows_by_topic if self._topics is not None else None,
            location=batch.location,
            table_name=batch.table_name,
            written=batch.columns,
            reader_schemas=self._spec.decoder.reader_schemas,
            plan_seconds=batch.plan_seconds,
            read_and_write_seconds=self._writer.seconds - (0.0 if done is None else done.confirm_seconds),
            spark_ui=self._spark_ui,
            kept=() if scope is None else tuple(sorted(scope.kept)),
            can_miss=bool(batch.plan.splits) and scope is not None,
        )
