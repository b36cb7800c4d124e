"""ingest_tables(): ingests one source into several tables with separate positions and shared reads.

A table that is behind first catches up with the next one; then they continue together. Each batch is one commit per
table, so a table that fails keeps its position, and the others continue.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError, outcome
from dagster_kafka_flip.ingestion.ingest import StreamRun
from dagster_kafka_flip.ingestion.progress import measure_result
from dagster_kafka_flip.ingestion.run_spec import nothing_written
from dagster_kafka_flip.reader.kafka_reader import read
from dagster_kafka_flip.telemetry.metrics import RunOutcome, measured_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.ingestion.open_stream import OpenStream
    from dagster_kafka_flip.ingestion.result import IngestResult
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.table.known_position import KnownPosition
    from dagster_kafka_flip.telemetry.repeatedly import Log


class SharedRead:
    """Like `reader.read`, but reads the same splits once while caching is on.

    Spark caches them in memory and on the executors' disks. If an executor is lost, its records are read again from the
    same offsets.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[KafkaPartitionSplit, ...], DataFrame] | None = None

    def __call__(self, source: KafkaSource, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
        if self._kept is None:
            return read(source, spark, assignment)
        splits = assignment.plan.splits
        if splits not in self._kept:
            self._kept[splits] = read(source, spark, assignment).persist()
        return self._kept[splits]

    def keep(self) -> None:
        self._kept = {}

    def release(self) -> None:
        for frame in (self._kept or {}).values():
            frame.unpersist()
        self._kept = None


@dataclass(frozen=True)
class TableRun:
    """The run of one of the tables, which all have the same source; see `ingest`."""

    spec: RunSpec
    known: KnownPosition | None = None
    reported: int | None = None


@dataclass(frozen=True)
class TablesResult:
    """Results of the completed runs and errors of the failed ones, whose earlier batches stay committed, by table."""

    results: Mapping[str, IngestResult]
    failures: Mapping[str, Exception]


def ingest_tables(
    tables: Mapping[str, TableRun],
    *,
    verify_after: timedelta,
    log: Log,
    starting_offsets: OffsetsInitializer | None = None,
) -> TablesResult:
    shared = SharedRead()
    runs = {
        name: StreamRun(
            replace(table.spec, log=_OfTable(table.spec.log, {"table": name}), read=shared),
            table.known,
            starting_offsets,
            table.reported,
        )
        for name, table in tables.items()
    }
    results: dict[str, IngestResult] = {}
    failures: dict[str, Exception] = {}
    with measured_runs({name: table.spec.metrics for name, table in tables.items()}) as outcomes:
        with outcome(nothing_written(0)):
            for name, run in runs.items():
                if (idle := run.idle(verify_after)) is not None:
                    results[name] = idle
            if busy := {name: run for name, run in runs.items() if name not in results}:
                next(iter(busy.values())).discover()
        if busy:
            with contextlib.closing(TablesInStep(busy, shared, log)) as in_step:
                in_step.open()
                in_step.land()
                results |= in_step.finish()
            failures = in_step.failures
        for name, result in results.items():
            outcomes[name].outcome = "idle" if result.is_idle else "committed"
            measure_result(tables[name].spec, result)
        for name, error in failures.items():
            outcomes[name] = RunOutcome.of(error)
    return TablesResult({name: results[name] for name in tables if name in results}, failures)


class _OfTable(logging.LoggerAdapter):  # pyright: ignore[reportMissingTypeArgument] - not subscriptable in 3.10
    """Prefixes each log line with the table's name."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"{(self.extra or {})['table']}: {msg}", kwargs


class TablesInStep:
    """Several runs in lockstep."""

    def __init__(self, runs: Mapping[str, StreamRun], shared: SharedRead, log: Log) -> None:
        self.failures: dict[str, Exception] = {}
        self._runs = dict(runs)
        self._streams: dict[str, OpenStream] = {}
        self._shared = shared
        self._log = log
        self._stop: Position = {}

    def open(self) -> None:
        """Reads each stream's position, and plans all of them to the first one's stop."""
        for name, run in self._runs.items():
            if self._stop:
                run.stop_at(self._stop)
            if self._step(name, lambda name=name, run=run: self._streams.update({name: run.open()})) and not self._stop:
                plan = self._streams[name].plan
                self._stop = {tp: plan.state.position[tp] for tp in plan.end_offsets}
                run.stop_at(self._stop)
        self._check_start()

    def _check_start(self) -> None:
        """Refuses one start for tables at different positions: the one that is ahead would land records again."""
        overridden = {name: at for name, stream in self._streams.items() if (at := stream.overridden) is not None}
        if overridden and self.failures:
            # Of these the position is unknown.
            raise next(iter(self.failures.values()))
        if any(at != next(iter(overridden.values())) for at in overridden.values()):
            raise ConfigurationError(
                f"start would move {', '.join(overridden)}, which are at different positions: records would land again "
                "in the one that is ahead, or be skipped in another",
                "Select one table",
                # The longer one, if one has landed dead letters that were pending.
                outcome=max((stream.outcome() for stream in self._streams.values()), key=len),
            )

    def land(self) -> None:
        while groups := self._groups():
            behind, until = groups[0], None
            if len(groups) > 1:
                # Catches up with the next table, which waits until then.
                mine, others = (self._position(self._streams[group[0]]) for group in groups[:2])
                until = {tp: max(offset, others[tp]) for tp, offset in mine.items()}
                self._log.info("%s: behind %s, catching up first", ", ".join(behind), ", ".join(groups[1]))
            self._land(behind, until)

    def finish(self) -> dict[str, IngestResult]:
        results: dict[str, IngestResult] = {}
        for name, stream in list(self._streams.items()):
            self._step(name, lambda name=name, stream=stream: results.update({name: stream.finish()}))
        return results

    def close(self) -> None:
        """Closes the connections of all streams, also after an interrupt."""
        for stream in self._streams.values():
            stream.close()

    def _groups(self) -> list[list[str]]:
        """Tables with unread records, grouped by equal offsets, from the furthest behind."""
        groups: dict[tuple[tuple[TopicPartition, int], ...], list[str]] = {}
        for name, stream in self._streams.items():
            if stream.has_more:
                groups.setdefault(tuple(sorted(self._position(stream).items())), []).append(name)
        return [groups[position] for position in sorted(groups, key=lambda at: sum(offset for _, offset in at))]

    def _position(self, stream: OpenStream) -> Position:
        position = stream.position
        return {tp: min(position.get(tp, stop), stop) for tp, stop in self._stop.items()}

    def _land(self, names: Sequence[str], until: Position | None) -> None:
        if len(names) > 1:
            self._shared.keep()
        first = self._streams[names[0]]
        try:
            for name in names:
                # Batch sizes depend on it, and only batches of equal size are identical.
                self._streams[name].context.record_bytes = first.context.record_bytes
                self._step(name, functools.partial(self._streams[name].assign, until))
            for name in names:
                if name in self._streams:
                    self._step(name, self._streams[name].land)
        finally:
            self._shared.release()

    def _step(self, name: str, step: Callable[[], object]) -> bool:
        """Runs a step of one table; an error only ends that table's run."""
        try:
            with outcome(self._runs[name].outcome):
                step()
        except Exception as error:  # noqa: BLE001 - a transform's own too
            # Raised after the others are done.
            self._log.warning("%s: ended with %s; the other tables continue", name, type(error).__name__)
            self.failures[name] = error
            if (stream := self._streams.pop(name, None)) is not None:
                stream.close()
            return False
        return True
