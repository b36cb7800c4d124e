"""The world of one seed: a cluster, tables and a clock, and sessions in which the product's runs find all of them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

from dagster_kafka_flip.ingestion import several_tables
from dagster_kafka_flip.ingestion.batch_rows import DeadLetterRows, RunRows, dead_letter_rows, run_rows
from dagster_kafka_flip.ingestion.keyed_stream import change_columns
from dagster_kafka_flip.ingestion.observation import Observed
from dagster_kafka_flip.ingestion.progress import ReadProgress
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.several_tables import SharedRead
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import WindowPlan, Windows
from dagster_kafka_flip.table import table_writer
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.table_port import TablePort, table_port
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation import sim_merge
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.sim_log import SimCluster, SimLog
from tests.simulation.sim_merge import KEYED_SCHEMA, ChangeRows, SimChanges
from tests.simulation.sim_table import SCHEMA, NoRows, SimPort, SimTable, SparkError

_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)

# How often nobody knows what a write has read.
_UNKNOWN = 0.3

# How often rows that are kept are still there: an executor may be lost.
_KEPT = 0.8

CONNECTION = KafkaConnection(bootstrap_servers="simulated:9092")


class World:
    """All that is outside of the product.

    Attributes:
        scheduler: Decides what happens when.
        log: The cluster.
        tables: The tables, by their identity.
        now: The time.
        rejects: Of so many records one can't be decoded; 0 if all can.
    """

    def __init__(self, seed: int, *, has_lock: bool, left_out: frozenset[int] = frozenset()) -> None:
        self.scheduler = Scheduler(seed, left_out)
        self.scheduler.on_death = self._release
        self.log = SimLog(lambda: int(self.now.timestamp() * 1000))
        self.tables: dict[str, SimTable] = {}
        self.now = _EPOCH
        self.rejects = 0
        self._has_lock = has_lock

    def table(self, target: DeltaTarget) -> SimTable:
        if target.table not in self.tables:
            self.tables[target.table] = SimTable(target.table, self.now_ms, self.log, has_lock=self._has_lock)
            if target.key:
                self.tables[target.table].schema = KEYED_SCHEMA
        return self.tables[target.table]

    def is_rejected(self, number: int) -> bool:
        """Whether a record can't be decoded."""
        return self.rejects > 0 and number % self.rejects == 0

    def key(self, number: int) -> int:
        """The key of a record; those of a topic partition are its own."""
        topic, partition, _, _ = self.log.places[number]
        return int(topic[1:]) * 1000 + partition * 10 + number % 3

    def is_deleted(self, number: int) -> bool:
        """Whether a record deletes its key."""
        return number > 0 and number % 5 == 0

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


class _SimRows:
    """The records of a batch are its rows."""

    def __init__(self, session: SimSession, spec: RunSpec) -> None:
        self._session, self._spec = session, spec
        self._world = session.world

    def schema(self, rules: Windows | None = None) -> Any:
        if rules is not None:
            return self._world.table(self._spec.target).windows_schema
        return KEYED_SCHEMA if self._spec.target.key else SCHEMA

    def records(self, assignment: SplitAssignment) -> Any:
        if isinstance(self._spec.read, SharedRead):
            return self._spec.read(self._spec.source, cast("Any", self._session), assignment)
        return SimRead(self._world, assignment)

    def rows(self, assignment: SplitAssignment, *, leave_out_rejected: bool) -> Any:
        assert leave_out_rejected == (self._world.rejects > 0)
        read = self.records(assignment)
        rows = read if assignment.plan.splits else NoRows()
        mode = self._spec.target.mode
        if not isinstance(mode, Append):
            changed: Any = ChangeRows(self._world, rows)
            rows = SimChanges(changed, mode, change_columns(self._spec.decoder.columns), mode.key)
        return rows, read

    def _inside(self, assignment: SplitAssignment, plan: WindowPlan) -> _InWindows:
        return _InWindows(
            self._world, self.records(assignment), plan, self._world.table(self._spec.target).windows_schema
        )

    def rows_of_windows(self, assignment: SplitAssignment, plan: WindowPlan, _: Windows) -> Any:
        read = self._inside(assignment, plan)
        return read, read

    def missing(
        self, rows: Any, named: Any, assignment: SplitAssignment, plan: WindowPlan, _: Windows
    ) -> tuple[int, Any]:
        del named
        read = {number for number, _ in self._inside(assignment, plan).evaluate()}
        topics = {tp.topic for tp in plan.stops}
        places = self._world.log.places
        places_of_read = {places[number][:3] for number in read}
        there = {places[number][:3] for number, _ in rows.evaluate() if number in places}
        gone = sorted(place for place in there - places_of_read if place[0] in topics)
        return len(gone), gone[0] if gone else None

    @contextlib.contextmanager
    def watched(self, attempt: str, progress: ReadProgress) -> Generator[None]:
        del attempt, progress
        yield


class SimRead:
    """A lazy read: the logs are asked when the rows are written."""

    schema = SCHEMA
    columns = SCHEMA.names

    def __init__(self, world: World, assignment: SplitAssignment) -> None:
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

    def evaluate(self) -> list[int]:
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

    def get(self, patience: float) -> Observed:
        del patience
        if self._world.rejects and self._world.scheduler.random.random() < _UNKNOWN:
            return Observed.nothing("Spark has lost it")
        return Observed(records=self._records, bytes=self._records * 100, rejected=self.rejected)

    def isEmpty(self) -> bool:  # noqa: N802 - as Spark has it
        return not self.evaluate()


class _SimLetters:
    """The rejected records are the dead letters."""

    def __init__(self, world: World) -> None:
        self._world = world

    def rules(self) -> dict[str, str]:
        return {}

    def schema(self) -> Any:
        return SCHEMA

    def rejected(self, assignment: SplitAssignment, *_: Any) -> Any:
        read = SimRead(self._world, assignment)
        read.is_wanted = self._world.is_rejected
        return read, _Rejected(read)

    def missing(self, rows: Any, there: Any, splits: Any, table_id: str) -> Any:
        del splits, table_id
        return _Missing(self._world, rows, there)


class _Rejected:
    """The observation of rejected records."""

    def __init__(self, read: SimRead) -> None:
        self._read = read

    @property
    def get(self) -> dict[str, int]:
        return {"rejected": self._read.rejected} if self._read.is_read else {}


class _Missing:
    """Rows that a table does not have: an offset and a time of a topic, known by its id, are one record."""

    schema = SCHEMA
    columns = SCHEMA.names

    def __init__(self, world: World, rows: SimRead, there: Any) -> None:
        self._world, self._rows, self._there = world, rows, there

    def _place(self, number: int) -> tuple[Any, ...]:
        return self._world.log.homes[number], self._world.log.places[number][2:]

    def evaluate(self) -> list[int]:
        there = {self._place(number) for number in self._there.evaluate() if number > 0}
        return [number for number in self._rows.evaluate() if self._place(number) not in there]


class _InWindows:
    """A lazy read of windows: a record is in the window of its time, between the window's offsets."""

    def __init__(self, world: World, read: SimRead, plan: WindowPlan, schema: StructType) -> None:
        self.schema, self.columns = schema, schema.names
        self._world = world
        self._read = read
        self._plan = plan

    def evaluate(self) -> list[tuple[int, str]]:
        return [(number, key) for number in self._read.evaluate() if (key := self._window(number)) is not None]

    def _window(self, number: int) -> str | None:
        topic, partition, offset, time_ms = self._world.log.places[number]
        tp = TopicPartition(topic, partition)
        for planned in self._plan.windows:
            if planned.window.start_ms <= time_ms < planned.window.stop_ms:
                is_between = planned.starts[tp] <= offset < planned.stops[tp]
                # A single window is read exactly between its offsets.
                return planned.window.key if is_between or len(self._plan.windows) == 1 else None
        return None

    def get(self, patience: float) -> Observed:
        return self._read.get(patience)


def _read_failed() -> Exception:
    return SparkError("org.apache.kafka.common.errors.DisconnectException")


SILENT = logging.getLogger("simulation")
