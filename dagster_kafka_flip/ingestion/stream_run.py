"""StreamRun: one bounded run of one stream, from its position to the stop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dagster_kafka_flip.ingestion.idle_run import idle_position, plan_without_spark
from dagster_kafka_flip.ingestion.incidents import Incidents
from dagster_kafka_flip.ingestion.keyed_stream import with_fitting_advice
from dagster_kafka_flip.ingestion.result import IngestResult
from dagster_kafka_flip.ingestion.run_metrics import measure_result
from dagster_kafka_flip.ingestion.run_source import RunSource
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.telemetry.metrics import measured_run

if TYPE_CHECKING:
    from datetime import timedelta

    from dagster_kafka_flip.ingestion.open_stream import OpenStream
    from dagster_kafka_flip.ingestion.result import KnownPosition
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.split import Position


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
    run = StreamRun(spec, known, starting_offsets, reported)
    with measured_run(spec.metrics) as measured:
        result = run.idle(verify_after) or run.execute()
        measured.outcome = "idle" if result.is_idle else "committed"
        measure_result(spec, result)
    return result


class StreamRun:
    """One run of one stream; `ingest()` and `ingest_tables()` call its steps.

    Args:
        spec: The run spec.
        known: A copy of the position; None if there is none.
        starting_offsets: Start that overrides the position; None to continue.
        reported: The table's version up to which commits were reported; None if not tracked.

    Attributes:
        context: Context of the run.
    """

    def __init__(
        self,
        spec: RunSpec[Source],
        known: KnownPosition | None = None,
        starting_offsets: OffsetsInitializer | None = None,
        reported: int | None = None,
    ) -> None:
        record_bytes = None if known is None else known.record_bytes
        self.context = SplitEnumeratorContext(record_bytes=record_bytes, tolerated=spec.tolerated, log=spec.log)
        self._spec = spec
        self._known = known
        self._reads = RunSource.of(spec.source, starting_offsets)
        self._reported = reported
        self._is_reachable = False
        self._incidents = Incidents(spec.log)

    def idle(self, verify_after: timedelta) -> IngestResult | None:
        """The result of an idle run, if this is known without Spark; else None.

        Args:
            verify_after: How long to trust the copy of the position.
        """
        if self._known is None or self._reads.overriding is not None:
            return None
        source = self._reads.source
        with with_fitting_advice(self._spec.target):
            planned = plan_without_spark(self._spec, source, self.context, self._known, verify_after)
        if planned is None:
            return None
        self._is_reachable = True
        plan, seconds = planned
        confirmed = idle_position(self._spec, source, self._known, plan)
        if confirmed is None:
            return None
        self._incidents.add(plan.incidents)
        return IngestResult(
            plan=plan,
            batches=(),
            known=confirmed,
            location=self._spec.target.uri,
            dead_letter_table=self._dead_letter_table(),
            incidents=self._incidents.all,
            plan_seconds=seconds,
        )

    def execute(self) -> IngestResult:
        """Runs all steps: plans from the table's position, and commits batch by batch."""
        self.discover()
        stream = self.open()
        try:
            while stream.assign():
                stream.land()
            return stream.finish()
        finally:
            stream.close()

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
        return OpenStream(self._spec.bound(), self._reads, self.context, record, self._incidents, self._reported)

    def stop_at(self, stop: Position) -> None:
        """Sets the stop offsets of later plans; topic partitions without one are not read."""
        self._reads.stop_at(stop)

    def _dead_letter_table(self) -> str | None:
        letters = self._spec.dead_letters
        return None if letters is None else str(letters.target(self._spec.target))
