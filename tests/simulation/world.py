"""The world of one seed: a cluster, tables and a clock, and sessions in which the product's runs find all of them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest

from dagster_kafka_flip.ingestion import dead_letter_table, rebuild, several_tables
from dagster_kafka_flip.ingestion.batch_rows import DeadLetterRows, RunRows, dead_letter_rows, run_rows
from dagster_kafka_flip.ingestion.keyed_stream import change_columns
from dagster_kafka_flip.ingestion.observation import Observed
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.several_tables import SharedRead
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import WindowPlan, Windows
from dagster_kafka_flip.table import delta_log, table_writer
from dagster_kafka_flip.table.document import CommitDocument, WindowsDocument
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.table_port import TablePort, table_port
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation import sim_merge
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.sim_log import KEYS, SimCluster, SimLog
from tests.simulation.sim_merge import ChangeRows, SimChanges, keyed_schema
from tests.simulation.sim_table import SCHEMA, Rows, SimPort, SimTable, SparkError

_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)

# How often nobody knows what a write has read.
_UNKNOWN = 0.3

# How often rows that are kept are still there: an executor may be lost.
_KEPT = 0.8

# A look at a history reads the same documents again and again.
_FROM_TEXT = {kind: functools.lru_cache(1000)(kind.from_text) for kind in (CommitDocument, WindowsDocument)}

CONNECTION = KafkaConnection(bootstrap_servers="simulated:9092")


class World:
    """All that is outside of the product.

    Attributes:
        rejects: Of so many records one can't be decoded; 0 if all can.
        leaves_out: Whether changes leave out what they don't change.
        schema: The columns of tables without a key.
    """

    def __init__(self, seed: int, *, has_lock: bool, left_out: frozenset[int] = frozenset()) -> None:
        self.scheduler = Scheduler(seed, left_out)
        self.scheduler.on_death = self._release
        self.log = SimLog(lambda: int(self.now.timestamp() * 1000))
        self.tables: dict[str, SimTable] = {}
        self.now = _EPOCH
        self.rejects = 0
        self.leaves_out = False
        self.schema = SCHEMA
        self._has_lock = has_lock

    def table(self, target: DeltaTarget) -> SimTable:
        if target.table not in self.tables:
            schema = keyed_schema(cast("Any", target.mode)) if target.key else self.schema
            self.tables[target.table] = SimTable(
                target.table, self.now_ms, self.log, has_lock=self._has_lock, schema=schema
            )
        return self.tables[target.table]

    def is_rejected(self, number: int) -> bool:
        """Whether a record can't be decoded."""
        return self.rejects > 0 and number % self.rejects == 0

    def key(self, number: int) -> int:
        """The key of a record; those of a topic partition are its own."""
        topic, partition, _, _ = self.log.places[number]
        return int(topic[1:]) * 1000 + partition * 10 + number % KEYS

    def is_deleted(self, number: int) -> bool:
        """Whether a record deletes its key."""
        return number > 0 and number % 5 == 0

    def is_left_out(self, number: int) -> bool:
        """Whether a record leaves out a value, which is that of the record before it."""
        before = self.log.before[number]
        is_change = before > 0 and not self.is_deleted(before) and not self.is_deleted(number)
        return self.leaves_out and is_change and number % 2 == 0

    def value(self, number: int) -> int:
        """The record whose value a record has."""
        return self.value(self.log.before[number]) if self.is_left_out(number) else number

    def now_ms(self) -> int:
        """The time, which goes on a little whenever somebody looks."""
        self.now += timedelta(milliseconds=1)
        return int(self.now.timestamp() * 1000)

    def _release(self, dead: Actor) -> None:
        """The operating system releases what a dead process held."""
        for table in self.tables.values():
            if table.holder is dead:
                table.holder = None

    def _sleep(self, seconds: float) -> None:
        def pass_by() -> None:
            self.now += timedelta(seconds=seconds)

        self.scheduler.call(f"waits for {seconds:.0f} s", pass_by)

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """The product's clock is this world's, and its log is silent."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instants, "now", lambda: self.now)
            patch.setattr(instants, "now_ms", self.now_ms)
            patch.setattr(instants, "sleep", self._sleep)
            patch.setattr(table_writer, "read", sim_merge.read)
            patch.setattr(table_writer, "merge", sim_merge.merge_into)
            patch.setattr(table_writer, "isolated_session", sim_merge.isolated_session)
            patch.setattr(RunSpec, "records", _records)
            patch.setattr(delta_log, "warned_of_silence", lambda *_: contextlib.nullcontext())
            patch.setattr(dead_letter_table, "observed_metrics", lambda read, _: read.counted())
            for kind, from_text in _FROM_TEXT.items():
                patch.setattr(kind, "from_text", from_text)
            patch.setattr(rebuild, "KafkaCluster", lambda *_: SimCluster(self.log, self.scheduler))
            patch.setattr(several_tables, "read", lambda _, spark, assignment: SimRead(spark.world, assignment))
            before = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
            try:
                yield
            finally:
                logging.disable(before)


class SimSource(KafkaSource):
    """A source in a world."""

    world: Any

    def _cluster(self, context: SplitEnumeratorContext) -> KafkaCluster:
        return cast("KafkaCluster", SimCluster(self.world.log, self.world.scheduler))


class SimSession:
    """A Spark session in a world."""

    sparkContext = None  # noqa: N815 - as Spark has it

    def __init__(self, world: World, conf: Mapping[str, str] | None = None) -> None:
        self.world = world
        self.conf = {"spark.default.parallelism": "2", **(conf or {})}


@table_port.register
def _(session: SimSession, target: DeltaTarget) -> TablePort:
    world = session.world
    return cast("TablePort", SimPort(world.table(target), target, world.scheduler))


@run_rows.register
def _(session: SimSession, spec: RunSpec) -> RunRows:
    return cast("RunRows", _SimRows(session, spec))


@dead_letter_rows.register
def _(session: SimSession, spec: RunSpec) -> DeadLetterRows:
    del spec
    return cast("DeadLetterRows", _SimLetters(session.world))


def _records(spec: RunSpec, session: Any, assignment: SplitAssignment) -> Any:
    is_shared = isinstance(spec.read, SharedRead)
    return spec.read(spec.source, session, assignment) if is_shared else SimRead(session.world, assignment)


class _SimRows:
    """The records of a batch are its rows."""

    def __init__(self, session: SimSession, spec: RunSpec) -> None:
        self._session, self._spec = session, spec
        self._world = session.world

    def schema(self, rules: Windows | None = None) -> Any:
        table = self._world.table(self._spec.target)
        return table.schema if rules is None else table.windows_schema

    def records(self, assignment: SplitAssignment) -> Any:
        return _records(self._spec, self._session, assignment)

    def rows(self, assignment: SplitAssignment, *, leave_out_rejected: bool) -> Any:
        assert leave_out_rejected == (self._world.rejects > 0)
        read = self.records(assignment)
        rows = read if assignment.plan.splits else Rows(self._world.log, read.schema)
        mode = self._spec.target.mode
        if not isinstance(mode, Append):
            changed: Any = ChangeRows(self._world, rows.evaluate)
            rows = SimChanges(changed, mode, change_columns(self._spec.decoder.columns), mode.key)
        return rows, read

    def rows_of_windows(self, assignment: SplitAssignment, plan: WindowPlan, _: Windows) -> Any:
        """A record is in the window of its time, between the window's offsets."""
        read, places = self.records(assignment), self._world.log.places

        def window(number: int) -> str | None:
            topic, partition, offset, time_ms = places[number]
            tp = TopicPartition(topic, partition)
            for planned in plan.windows:
                if planned.window.start_ms <= time_ms < planned.window.stop_ms:
                    is_between = planned.starts[tp] <= offset < planned.stops[tp]
                    # A single window is read exactly between its offsets.
                    return planned.window.key if is_between or len(plan.windows) == 1 else None
            return None

        def evaluate() -> list[tuple[int, str]]:
            return [(number, key) for number in read.evaluate() if (key := window(number)) is not None]

        return Rows(self._world.log, self._world.table(self._spec.target).windows_schema, evaluate), read

    def missing(
        self, rows: Rows, _: Any, assignment: SplitAssignment, plan: WindowPlan, rules: Windows
    ) -> tuple[int, Any]:
        read = self.records(assignment) if rules.repair else self.rows_of_windows(assignment, plan, rules)[0]
        topics, places = {tp.topic for tp in plan.stops}, self._world.log.places

        def found(some: Rows) -> set[tuple[str, int, int]]:
            numbers = (row[0] if isinstance(row, tuple) else row for row in some.evaluate())
            return {places[number][:3] for number in numbers if number > 0}

        there = found(read)
        gone = sorted(place for place in found(rows) - there if place[0] in topics)
        return len(gone), gone[0] if gone else None

    @contextlib.contextmanager
    def watched(self, *_: Any) -> Generator[None]:
        yield


class SimRead(Rows):
    """A lazy read: the logs are asked when the rows are written."""

    def __init__(self, world: World, assignment: SplitAssignment) -> None:
        super().__init__(world.log, world.schema, self._read)
        self._world = world
        self._assignment = assignment
        self._records = self.rejected = 0
        self.is_read = False
        self._is_kept = False
        self._kept: list[int] | None = None
        # Which records are rows.
        self.is_wanted: Callable[[int], bool] = lambda number: not world.is_rejected(number)

    def persist(self) -> SimRead:
        self._is_kept = True
        return self

    def unpersist(self) -> None:
        self._is_kept, self._kept = False, None

    def _read(self) -> list[int]:
        if self._kept is not None and self._world.scheduler.random.random() < _KEPT:
            return [number for number in self._kept if self.is_wanted(number)]
        numbers: list[int] = []
        for split in self._assignment.plan.splits:
            ask = functools.partial(self._world.log.read, split)
            try:
                numbers += self._world.scheduler.call(f"reads {split}", ask, _read_failed)
            except LookupError as error:
                raise SparkError(str(error)) from None
        self._records = len(numbers)
        self.is_read = True
        self._kept = numbers if self._is_kept else None
        self.rejected = sum(map(self._world.is_rejected, numbers))
        return [number for number in numbers if self.is_wanted(number)]

    def get(self, _: float) -> Observed:
        if self._world.rejects and self._world.scheduler.random.random() < _UNKNOWN:
            return Observed.nothing("Spark has lost it")
        return Observed(records=self._records, bytes=self._records * 100, rejected=self.rejected)

    def counted(self) -> dict[str, int]:
        return {"rejected": self.rejected} if self.is_read else {}


class _SimLetters:
    """The rejected records are the dead letters."""

    def __init__(self, world: World) -> None:
        self._world = world

    def rules(self) -> dict[str, str]:
        return {}

    def schema(self) -> Any:
        return self._world.schema

    def rejected(self, assignment: SplitAssignment, *_: Any) -> Any:
        read = SimRead(self._world, assignment)
        read.is_wanted = self._world.is_rejected
        return read, read

    def missing(self, rows: Rows, there: Rows, *_: Any) -> Rows:
        """An offset and a time of a topic, known by its id, are one record."""
        log = self._world.log

        def place(number: int) -> tuple[Any, ...]:
            return log.homes[number], log.places[number][2:]

        def evaluate() -> list[int]:
            known = {place(number) for number in there.evaluate() if number > 0}
            return [number for number in rows.evaluate() if place(number) not in known]

        return Rows(log, rows.schema, evaluate)


def _read_failed() -> Exception:
    return SparkError("org.apache.kafka.common.errors.DisconnectException")


SILENT = logging.getLogger("simulation")
