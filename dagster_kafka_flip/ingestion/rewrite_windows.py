"""rewrite_windows(): replaces the table's rows of time windows with the topic's records.

It is idempotent: the same windows give the same rows, and no other rows change. So it needs no position, and no fence
besides Delta's own conflict detection.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError, outcome
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.ingestion.ingest import check_run_options
from dagster_kafka_flip.ingestion.keyed_stream import check_without_windows
from dagster_kafka_flip.ingestion.run_spec import Clock, RunSpec, nothing_written, start_spark
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.ingestion.window_batch import PlannedLogsGoneError, WindowLanding
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows, check_keys, contiguous_groups
from dagster_kafka_flip.table.delta_table import still_there
from dagster_kafka_flip.table.layout import NULL_AS_PARTITION
from dagster_kafka_flip.table.retries import Conflicts
from dagster_kafka_flip.table.table_port import ForeignConflictError
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.table.windowed_table import RepairedTable, WindowedTable
from dagster_kafka_flip.telemetry.metrics import measured_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.result import WindowsResult
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.window import WindowPlan
    from dagster_kafka_flip.source.window_enumerator import WindowEnumerator
    from dagster_kafka_flip.table.windowed_table import WindowsLook

_logger = logging.getLogger(__name__)


@check_options(inside={"table": DeltaTarget, "limits": Limits})
def rewrite_windows(
    source: KafkaSource,
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
        rules: The rules that assign records to windows. Default: by the record's timestamp, up to one hour late.
        definition: The window definition, such as a cron schedule and a time zone. The table stores it and rejects
            windows of another.
        connection: Kafka connection, unless the source has one.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        transform: Function from a batch's records to the rows to write, both lazy DataFrames. Must keep the window
            column.
        topics: The source's topics whose rows are replaced. Default: all.
        limits: Limits of a commit; a window is never split. Default: everything.
        dead_letter: With `Windows(repair=True)`: table for the stream's rejected records. Default: the table in the
            stream's last commit.
        tolerate: Errors that don't fail the run. Default: none.
        run_id: Run id for the commits. Default: none.
        logger: Logger for each step. Default: this module's.

    Returns:
        An iterator with one result per commit. If you stop iterating, no more windows are written.

    Raises:
        ConfigurationError: An option is invalid. Raised by the call, not by the first iteration.
        KafkaFlipError: The run failed; earlier commits stay.
    """
    rules = rules or Windows()
    expect("source", source, KafkaSource, 'KafkaSource(topics=("orders",))')
    expect("rules", rules, Windows, "Windows(max_lateness=timedelta(hours=1))")
    check_run_options(connection=connection, limits=limits, spark=spark, transform=transform)
    expect("windows", windows, Iterable, '[Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")]')
    windows = list(windows)
    for window in windows:
        expect("windows", window, Window, 'Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")')
    target = DeltaTarget.of(table)
    decoder = Decoder.of(key_format, value_format, columns)
    spec = RunSpec(
        source=source.connected(connection),
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
    return _Run(spec, groups, rules, definition, None if topics is None else tuple(topics), commits).results()


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
class _Run:
    spec: RunSpec
    groups: list[tuple[Window, ...]]
    rules: Windows
    definition: str
    topics: tuple[str, ...] | None
    commits: int
    context: SplitEnumeratorContext = field(init=False)
    _session: SparkSession = field(init=False)
    _table: WindowedTable = field(init=False)
    _enumerator: WindowEnumerator = field(init=False)
    _landing: WindowLanding = field(init=False)

    def results(self) -> Iterator[WindowsResult]:
        """Writes all groups, batch by batch."""
        self.context = SplitEnumeratorContext(tolerated=self.spec.tolerated, log=self.spec.log)
        with (
            measured_run(self.spec.metrics),
            contextlib.closing(self.spec.source.window_enumerator(self.rules, self.context)) as self._enumerator,
        ):
            yield from self._results()

    def _results(self) -> Iterator[WindowsResult]:
        with outcome(nothing_written(self.commits)):
            # Before Spark's start, so that a wrong address or topic fails within a second.
            self._enumerator.discover()
            self.spec = self.spec.bound()
        with contextlib.closing(self.spec.decoder):
            yield from self._landed()

    def _landed(self) -> Iterator[WindowsResult]:
        with outcome(nothing_written(self.commits)):
            session, spark_seconds, _ = start_spark(self.spec, self.context)
        self._session = session
        if self.rules.repair:
            self._table = RepairedTable(session, self.spec.target, self.context.tolerated)
        else:
            self._table = WindowedTable(session, self.spec.target, self.definition)
        self._landing = WindowLanding(
            self.spec,
            session,
            self.context,
            enumerator=self._enumerator,
            table=self._table,
            rules=self.rules,
            topics=self.topics,
        )
        for group in self.groups:
            pending = group
            while pending:
                with outcome(self._outcome):
                    result = replace(self._land_some(pending), spark_seconds=spark_seconds)
                spark_seconds = 0.0
                yield result
                pending = pending[len(result.plan.windows) :]
        self._landing.finish()

    def _outcome(self) -> str:
        """What the run has written so far."""
        return nothing_written(self.commits + self._landing.commits, self._landing.dead_letters)

    def _land_some(self, windows: tuple[Window, ...]) -> WindowsResult:
        """Writes the windows of one commit; plans again after a conflict, or if a log lost planned records."""
        conflicts = Conflicts(self.spec.target, self.spec.log)
        while True:
            clock = Clock()
            look, plan = self._plan(windows)
            batch = self._first_batch(plan)
            try:
                return self._landing.land(look, batch, clock.lap(), self._letters(look))
            except (ForeignConflictError, PlannedLogsGoneError) as conflict:
                conflicts.met(conflict, f"the windows {batch.windows[0].window} to {batch.windows[-1].window}")

    def _letters(self, look: WindowsLook) -> DeadLetterTable | None:
        """The route of a repair's rejected records: the stream's route."""
        table, letters = self._table, self.spec.dead_letters
        if not isinstance(table, RepairedTable):
            return None
        formats = (self.spec.decoder.key_format, self.spec.decoder.value_format)
        if letters is None and look.routed is not None and all(one.on_error == "fail" for one in formats):
            route = look.routed.route
            letters = DeadLetters(table=route.table, stream=route.stream, single_writer=self.spec.target.single_writer)
        if letters is None:
            return None
        return DeadLetterTable(self.spec, self._session, self.context, table.delta, letters)

    def _plan(self, windows: tuple[Window, ...]) -> tuple[WindowsLook, WindowPlan]:
        look = self._table.look()
        if look is None:
            # Plans before creating the table, so that an unreadable source leaves no table behind.
            first = self._enumerator.plan(windows)
            self.spec.decoder.renew()
            self._landing.create(first)
            look = still_there(self._table.look(), self.spec.target)
        if look.foreign:
            self.spec.log.warning(
                "other writers appended rows to %s since the last windows were written (versions %s); a window that "
                "is written again replaces such rows",
                self.spec.target,
                first_few(sorted(look.foreign)),
            )
        check_keys(windows, look.windows, str(self.spec.target))
        plan = self._enumerator.plan(windows, known=look.known, cut_at=look.position)
        if plan.splits:
            self.spec.decoder.renew()
            self.spec.decoder.recall(look.schemas)
        return look, plan

    def _first_batch(self, plan: WindowPlan) -> WindowPlan:
        limit = self.spec.limits.max_records_per_batch
        first = plan.first_part(limit)
        if limit is not None and first.offset_span > limit:
            self.spec.log.warning(
                "the window %s spans %d offsets, more than max_records_per_batch=%d; windows are not split, so the "
                "commit exceeds the limit",
                first.windows[0].window,
                first.offset_span,
                limit,
            )
        return first
