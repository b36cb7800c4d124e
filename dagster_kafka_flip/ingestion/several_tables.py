"""ingest_tables(): one source lands in several tables, each with a position of its own; what they share is read once.

A table that is behind catches up with the next one first, and from there they go on step. Each batch is one commit
in each table, so that a table for which something fails stays where it is, and the others go on.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.shared_read import SharedRead
from dagster_kafka_flip.ingestion.stream_run import stream_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from dagster_kafka_flip.ingestion.result import IngestResult, KnownPosition
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.ingestion.stream_run import StreamRun
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.split import Position, TopicPartition


@dataclass(frozen=True)
class TableRun:
    """The run of one of the tables.

    Attributes:
        spec: What is read, the same for all, and where it is landed.
        known: A copy of the position.
        reported: The table's version up to which commits were reported; None if nobody keeps a record of that.
    """

    spec: RunSpec[KafkaSource]
    known: KnownPosition | None = None
    reported: int | None = None


@dataclass(frozen=True)
class TablesResult:
    """What was done.

    Attributes:
        results: By table; those that got to the end.
        failures: By table; what was in the way. Its batches up to there are committed.
    """

    results: Mapping[str, IngestResult]
    failures: Mapping[str, Exception]


def ingest_tables(
    tables: Mapping[str, TableRun],
    *,
    verify_after: timedelta,
    log: logging.Logger | logging.LoggerAdapter[Any],
    starting_offsets: OffsetsInitializer | None = None,
) -> TablesResult:
    """Lands what a source holds in several tables, each from its own position to the same stop, exactly once.

    Args:
        tables: The runs, by a name of the table.
        verify_after: How long a copy of a position is believed.
        log: Where to report what concerns all of them.
        starting_offsets: For this run alone, start here instead of at the positions.

    Raises:
        KafkaFlipError: There is nothing that could be read at all. What fails for one table is in the result.
    """
    shared = SharedRead()
    runs = {
        name: stream_run(
            replace(table.spec, log=_OfTable(table.spec.log, {"table": name}), read=shared),
            known=table.known,
            starting_offsets=starting_offsets,
            reported=table.reported,
        )
        for name, table in tables.items()
    }
    results: dict[str, IngestResult] = {}
    for name, run in runs.items():
        if (idle := run.idle(tables[name].known, verify_after)) is not None:
            results[name] = idle
    busy = {name: run for name, run in runs.items() if name not in results}
    if not busy:
        return TablesResult(results, {})
    next(iter(busy.values())).discover()
    together = TablesInStep(busy, shared, log)
    together.open()
    together.land()
    results |= together.finish()
    return TablesResult({name: results[name] for name in tables if name in results}, together.failures)


class _OfTable(logging.LoggerAdapter):  # pyright: ignore[reportMissingTypeArgument] - not subscriptable in 3.10
    """Begins each line with the table that it is about."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"{(self.extra or {})['table']}: {msg}", kwargs


class TablesInStep:
    """Several runs in step.

    Args:
        runs: By the names of their tables.
        shared: What they all read with.
        log: Where to tell each step.

    Attributes:
        failures: What ended single runs.
    """

    def __init__(
        self, runs: Mapping[str, StreamRun], shared: SharedRead, log: logging.Logger | logging.LoggerAdapter[Any]
    ) -> None:
        self.failures: dict[str, Exception] = {}
        self._runs = dict(runs)
        self._shared = shared
        self._log = log
        self._stop: Position = {}

    def open(self) -> None:
        """Finds out where each stream stands, and plans all of them to the stop of the first."""
        for name, run in list(self._runs.items()):
            if self._stop:
                run.stop_at(self._stop)
            if self._step(name, run.open) and not self._stop:
                self._stop = {tp: run.plan.state.position[tp] for tp in run.plan.end_offsets}
                run.stop_at(self._stop)

    def land(self) -> None:
        """Lands all that was planned, the furthest behind first."""
        while groups := self._groups():
            behind, until = groups[0], None
            if len(groups) > 1:
                # Whoever is next is caught up with, and waits until then.
                mine, others = (self._position(self._runs[group[0]]) for group in groups[:2])
                until = {tp: max(offset, others[tp]) for tp, offset in mine.items()}
                self._log.info("%s: behind %s, and catching up first", ", ".join(behind), ", ".join(groups[1]))
            self._land(behind, until)

    def finish(self) -> dict[str, IngestResult]:
        """What was done, by table."""
        results: dict[str, IngestResult] = {}
        for name, run in list(self._runs.items()):
            self._step(name, lambda name=name, run=run: results.update({name: run.finish()}))
        return results

    def _groups(self) -> list[list[str]]:
        """The tables that have something to land, those that stand at the same offsets together, from behind."""
        groups: dict[tuple[tuple[TopicPartition, int], ...], list[str]] = {}
        for name, run in self._runs.items():
            if run.has_more:
                groups.setdefault(tuple(sorted(self._position(run).items())), []).append(name)
        return [groups[position] for position in sorted(groups, key=lambda at: sum(offset for _, offset in at))]

    def _position(self, run: StreamRun) -> Position:
        position = run.position
        return {tp: min(position.get(tp, stop), stop) for tp, stop in self._stop.items()}

    def _land(self, names: Sequence[str], until: Position | None) -> None:
        """Lands the next batch in each of some tables that stand at the same offsets."""
        if len(names) > 1:
            self._shared.keep()
        first = self._runs[names[0]]
        try:
            for name in names:
                # A batch's size goes by it, and only batches of the same size are the same.
                self._runs[name].context.record_bytes = first.context.record_bytes
                self._step(name, functools.partial(self._runs[name].assign, until))
            for name in names:
                if name in self._runs:
                    self._step(name, self._runs[name].land)
        finally:
            self._shared.release()

    def _step(self, name: str, step: Callable[[], object]) -> bool:
        """Takes a step of one table's run; what fails ends that run, and not the others."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a transform's own too
            # It is raised when the others are done.
            self._log.warning("%s: ended with %s; the other tables go on", name, type(error).__name__)
            self.failures[name] = error
            del self._runs[name]
            return False
        return True
