"""StreamRun: one bounded run of one stream, from its position to the stop."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError, outcome
from dagster_kafka_flip.ingestion.keyed_stream import with_fitting_advice
from dagster_kafka_flip.ingestion.progress import measure_result
from dagster_kafka_flip.ingestion.result import IngestResult
from dagster_kafka_flip.ingestion.run_spec import RunSource, nothing_written
from dagster_kafka_flip.ingestion.tolerance import Incidents
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import measured_run

if TYPE_CHECKING:
    from dagster_kafka_flip.ingestion.open_stream import OpenStream
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.table.known_position import KnownPosition


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
        record = None if known is None else known.recorded(target)
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
