"""ingest(): one bounded run of one stream, from its position to the stop. Independent of Dagster."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError, outcome
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import dead_letters_of
from dagster_kafka_flip.ingestion.keyed_stream import check_keyed, with_fitting_advice
from dagster_kafka_flip.ingestion.progress import measure_result
from dagster_kafka_flip.ingestion.result import IngestResult
from dagster_kafka_flip.ingestion.run_spec import RunSource, RunSpec, nothing_written
from dagster_kafka_flip.ingestion.tolerance import Incidents, tolerated_errors
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import measured_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.ingestion.open_stream import OpenStream
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import Position

_KINDS: dict[str, tuple[type, str]] = {
    "connection": (KafkaConnection, 'KafkaConnection(bootstrap_servers="host:9092")'),
    "known": (KnownPosition, "the `known` of an earlier run's result"),
    "limits": (Limits, "Limits(max_records_per_batch=1_000_000)"),
    "rules": (Windows, "Windows(max_lateness=timedelta(hours=1))"),
    "spark": (FunctionType, "lambda: session"),
    "starting_offsets": (OffsetsInitializer, "OffsetsInitializer.earliest()"),
    "transform": (FunctionType, "a function of a DataFrame"),
    "verify_after": (timedelta, "timedelta(hours=1)"),
}


def check_run_options(**options: Any) -> None:
    for option, value in options.items():
        kind, example = _KINDS[option]
        is_unset = value is None and option not in {"spark", "verify_after"}
        if not is_unset and not (kind is FunctionType and callable(value)):
            expect(option, value, kind, example)


_logger = logging.getLogger(__name__)

DEFAULT_VERIFY_AFTER = timedelta(hours=24)


@check_options(inside={"table": DeltaTarget, "limits": Limits})
def ingest(
    source: KafkaSource | str | Sequence[str],
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
    reported: int | None = None,
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> IngestResult:
    """Ingests a source from the stream's position to the source's stop into a Delta table, exactly once.

    Args:
        source: What to read: topics, from the earliest offset, or a KafkaSource.
        table: The table; a string is a DeltaTarget with defaults.
        spark: Returns a Spark session; only called if there is something to do.
        connection: Kafka connection, unless the source has one.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        transform: Function from a batch's records to the rows to write.
        dead_letter: Table for records that can't be decoded. Default: the format's `on_error` decides.
        limits: Limits of batches and runs. Default: everything new in one commit.
        starting_offsets: Start that overrides the position: records in between are read again or skipped.
        known: `known` of the last run's result: with it an idle run starts no Spark.
        verify_after: How long to trust it. Default: 24 hours.
        tolerate: Errors that don't fail the run, but are in the result's `incidents`. Default: none.
        run_id: Run id for the commits. Default: none.
        reported: The table's version up to which commits were reported, -1 for none: `unreported` of the result has
            later ones of earlier runs. Default: not checked.
        logger: Logger. Default: this module's.

    Returns:
        The run's result.

    Raises:
        KafkaFlipError: The run failed; see the classes in `dagster_kafka_flip.errors`.
    """
    check_run_options(
        verify_after=verify_after,
        connection=connection,
        limits=limits,
        spark=spark,
        transform=transform,
        starting_offsets=starting_offsets,
        known=known,
    )
    target = DeltaTarget.of(table)
    decoder = Decoder.of(key_format, value_format, columns)
    tolerated = tolerated_errors(tolerate)
    check_keyed(target, decoder, tolerated, has_transform=transform is not None)
    source = KafkaSource.of(source).connected(connection)
    spec = RunSpec(
        source=source,
        target=target,
        spark=spark,
        decoder=decoder,
        transform=transform,
        dead_letters=dead_letters_of(dead_letter, target, decoder),
        limits=limits or Limits(),
        tolerated=tolerated,
        run_id=run_id,
        log=logger or _logger,
    )
    return run_stream(
        spec, known=known, starting_offsets=starting_offsets, reported=reported, verify_after=verify_after
    )


def run_stream(
    spec: RunSpec,
    *,
    known: KnownPosition | None,
    verify_after: timedelta,
    starting_offsets: OffsetsInitializer | None = None,
    reported: int | None = None,
) -> IngestResult:
    run = StreamRun(spec, known, starting_offsets, reported)
    with measured_run(spec.metrics) as measured:
        with outcome(run.outcome):
            result = run.idle(verify_after)
            if result is None:
                run.discover()
                with contextlib.closing(run.open()) as stream:
                    while stream.assign():
                        stream.land()
                    result = stream.finish()
        measured.outcome = "idle" if result.is_idle else "committed"
        measure_result(spec, result)
    return result


class StreamRun:
    """One run of one stream; `ingest()` and `ingest_tables()` call its steps."""

    def __init__(
        self,
        spec: RunSpec,
        known: KnownPosition | None = None,
        starting_offsets: OffsetsInitializer | None = None,
        reported: int | None = None,
    ) -> None:
        record_bytes = None if known is None else known.record_bytes
        self.context = SplitEnumeratorContext(
            record_bytes=record_bytes,
            tolerated=spec.tolerated,
            log=spec.log,
            table=str(spec.target),
            stream=spec.target.stream,
        )
        self._spec = spec
        self._known = known
        self._reads = RunSource(spec.source)
        if starting_offsets is not None:
            self._reads.overriding = spec.source.with_overrides(starting_offsets=starting_offsets)
        self._reported = reported
        self._is_reachable = False
        self._incidents = Incidents(spec.log)
        self._stream: OpenStream | None = None

    def outcome(self) -> str:
        return nothing_written(0) if self._stream is None else self._stream.outcome()

    def idle(self, verify_after: timedelta) -> IngestResult | None:
        """The result of an idle run, if this is known without Spark; else None."""
        spec, known, source = self._spec, self._known, self._reads.source
        if (
            known is None
            or self._reads.overriding is not None
            or known.dead_letters_pending
            or not known.is_of(spec.target)
            or not _is_fresh(spec, known, verify_after)
        ):
            return None
        begun = time.monotonic()
        try:
            with with_fitting_advice(spec.target):
                plan = source.plan_once(self.context, known.state)
        except ClusterUnreachableError:
            raise
        except KafkaFlipError as error:
            # The copy may be outdated. The table decides, and raises the same error if it agrees.
            spec.log.info(
                "the last known position does not match the log (%s); reading the table", type(error).__name__
            )
            return None
        seconds = time.monotonic() - begun
        self._is_reachable = True
        confirmed = idle_position(spec, source, known, plan)
        if confirmed is None:
            return None
        self._incidents.add(plan.incidents)
        letters = spec.dead_letters
        return IngestResult(
            plan=plan,
            batches=(),
            known=confirmed,
            location=spec.target.uri,
            dead_letter_table=None if letters is None else str(letters.target(spec.target)),
            incidents=self._incidents.all,
            plan_seconds=seconds,
        )

    def discover(self) -> None:
        """Before Spark's start, so that a wrong address or topic fails within a second."""
        if not self._is_reachable:
            with contextlib.closing(self._reads.source.create_enumerator(self.context)) as enumerator:
                enumerator.discover()

    def open(self) -> OpenStream:
        """Reads the position from the table and plans from it; creates the table if needed."""
        # An idle run does without it, and ends in two thirds of the time.
        from dagster_kafka_flip.ingestion.open_stream import OpenStream

        known, target = self._known, self._spec.target
        record = known if known is not None and known.is_of(target) else None
        if known is not None and known.table != target.identity:
            self._spec.log.warning(
                "the last run landed in %s, this one lands in %s, which has a position of its own. If nobody changed "
                "the table, its path is relative, and the working directory is another one: write the full path",
                known.table,
                target.identity,
            )
        # The reader schemas before Spark's start, too.
        spec = self._spec.bound()
        with contextlib.ExitStack() as unless_open:
            unless_open.callback(spec.decoder.close)
            self._stream = OpenStream(spec, self._reads, self.context, record, self._incidents, self._reported)
            unless_open.pop_all()
        return self._stream

    def stop_at(self, stop: Position) -> None:
        self._reads.stop_at(stop)


def _is_fresh(spec: RunSpec, known: KnownPosition, verify_after: timedelta) -> bool:
    now = instants.now()
    age = now - known.verified_at
    if age < timedelta(0):
        # A clock was wrong. Otherwise the record would be trusted as long as that clock was ahead.
        spec.log.warning(
            "the recorded position was verified in the future, at %s; this machine's clock says %s; reading the table",
            known.verified_at.isoformat(timespec="seconds"),
            now.isoformat(timespec="seconds"),
        )
        return False
    return age < verify_after and (known.kept_until is None or now < known.kept_until)


def idle_position(spec: RunSpec, source: KafkaSource, known: KnownPosition, plan: ReadPlan) -> KnownPosition | None:
    """None if there is something to do, or the table's log contradicts the copy; unread, it tells no rows."""
    if not plan.changes_nothing(known.state):
        return None
    # The plan has compared the leaders' epochs, so that the next run need not.
    state = replace(known.state, leader_epochs=plan.state.leader_epochs)
    confirmed = replace(known, state=state, table_rows=None)
    if known.log is not None and known.anchor_version is not None:
        seen = known.seen_in_log()
        if seen is None:
            spec.log.info("the log of %s does not confirm the recorded position; reading the table", spec.target)
            return None
        version, rows = seen
        confirmed = replace(confirmed, table_version=version, table_rows=rows)
    log_with_fields(spec.log, "nothing new on %s, not starting Spark", source, topic_partitions=len(plan.end_offsets))
    return confirmed
