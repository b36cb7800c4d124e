"""In which order several tables land what one source holds, and what of it they share; without Kafka and Spark."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, cast

import pytest

from dagster_kafka_flip.errors import ConfigurationError, TableError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.ingest import StreamRun
from dagster_kafka_flip.ingestion.run_spec import RunSource, RunSpec
from dagster_kafka_flip.ingestion.several_tables import TableRun, TablesInStep, TablesResult, ingest_tables
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor
from tests.simulation.world import CONNECTION, SILENT, SimSession, SimSource, World
from tests.source.log_model import ClusterModel, LogModel
from tests.source.plans import make_plan


class PlannedEnumerator(KafkaSourceEnumerator):
    """Hands out ranges that are known beforehand."""

    def __init__(self, ranges: dict[int, tuple[int, int]]) -> None:
        super().__init__(KafkaSource(topics=("t",)), cast("Any", None), SplitEnumeratorContext())
        self._ranges = ranges

    def plan(self, state, refused=()):
        return make_plan(self._ranges)


class NotedRun:
    """What TablesInStep knows of a StreamRun and its OpenStream; lands by noting what it would read."""

    overridden = None

    def __init__(self, starts: dict[int, int], stops: dict[int, int], limits: Limits, reads: list[Any]) -> None:
        self.context = SplitEnumeratorContext()
        self.splits: list[Any] = []
        self._ranges = {number: (start, stops[number]) for number, start in starts.items()}
        self._enumerator = PlannedEnumerator(self._ranges)
        self._limits = limits
        self._reads = reads
        self._assignment: Any = None

    def stop_at(self, stop):
        # The stops are the same from the beginning.
        assert {tp.partition: offset for tp, offset in stop.items() if tp.partition != 99} == {
            number: stop for number, (_, stop) in self._ranges.items()
        }

    def outcome(self):
        return "Nothing was written"

    def open(self):
        self.plan = self._enumerator.start()
        return self

    @property
    def position(self):
        state = self._enumerator.snapshot_state()
        assert state is not None
        return state.position

    @property
    def has_more(self):
        return self._enumerator.has_pending

    def assign(self, until=None):
        self._assignment = self._enumerator.assign(self._limits, until)
        return self._assignment is not None

    def land(self):
        self.splits.extend(self._assignment.plan.splits)
        self._reads.append(tuple(self._assignment.plan.splits))

    def finish(self):
        return None

    def close(self):
        pass


class Sharing:
    """Notes which reads are of a batch that several tables land."""

    def __init__(self, reads: list[Any]) -> None:
        self.together: list[list[Any]] = []
        self._reads = reads
        self._from: int | None = None

    def keep(self):
        self._from = len(self._reads)

    def release(self):
        if self._from is not None:
            self.together.append(self._reads[self._from :])
        self._from = None


def test_tables_that_are_behind_catch_up_and_continue_with_the_next():
    reads: list[Any] = []
    sharing: Any = Sharing(reads)
    runs = {
        name: NotedRun({0: start}, {0: 100}, Limits(), reads)
        for name, start in {"new": 0, "ahead": 90, "behind": 40}.items()
    }
    in_step = TablesInStep(runs, sharing, logging.getLogger(__name__))  # pyright: ignore[reportArgumentType]
    in_step.open()
    in_step.land()
    spans = [[(split.starting_offset, split.stopping_offset) for split in splits] for splits in reads]
    assert spans == [[(0, 40)], [(40, 90)], [(40, 90)], [(90, 100)], [(90, 100)], [(90, 100)]]
    assert [len(shared) for shared in sharing.together] == [2, 3]


def test_the_stop_of_the_first_table_may_be_before_the_position_of_another_unless_a_user_set_it():
    tp = TopicPartition("t", 0)
    state = EnumeratorState({tp: 5}, "cluster", {"t": "topic-id"})
    for stop, is_refused in ((OffsetsInitializer.latest(), False), (OffsetsInitializer.timestamp(4), True)):
        source = KafkaSource(topics=("t",), stopping_offsets=stop)
        reads = RunSource(source, source.with_overrides(starting_offsets=OffsetsInitializer.earliest()))
        reads.stop_at({tp: 3})
        cluster: Any = ClusterModel({tp: LogModel([1, 2, 3, 4, 5, 6])})
        enumerator = KafkaSourceEnumerator(reads.first, cluster, SplitEnumeratorContext(), state)
        if is_refused:
            with pytest.raises(ConfigurationError, match=r"offset 3, before the position 5.* without a key, set mode"):
                enumerator.start()
        else:
            assert enumerator.start().state.position == {tp: 3}


class Landed:
    """Several tables of one simulated topic; a run is of those that are named."""

    def __init__(self) -> None:
        self.world = World(0, has_lock=True)
        self.world.log.create("t", 1)
        self._source = SimSource(topics=("t",), connection=CONNECTION, world=self.world)
        self._runs = 0

    def produce(self, records: int) -> None:
        self.world.log.append(self.world.log.topics["t"][0], [self.world.now_ms()] * records)

    def land(self, *names: str, start: int | None = None, tries: frozenset[str] = frozenset()) -> TablesResult:
        session = cast("Any", SimSession(self.world))
        self._runs += 1
        runs = {
            name: TableRun(
                RunSpec(
                    source=self._source,
                    target=DeltaTarget(table=f"simulated.{name}"),
                    spark=lambda: session,
                    decoder=Decoder.of(None, None, None),
                    limits=Limits(),
                    run_id=f"run {self._runs}",
                    tries=tries,
                    log=SILENT,
                )
            )
            for name in names
        }
        offsets = None if start is None else OffsetsInitializer.specific_offsets({TopicPartition("t", 0): start})
        found: list[TablesResult] = []

        def work() -> None:
            found.append(ingest_tables(runs, verify_after=timedelta(), log=SILENT, starting_offsets=offsets))

        with self.world.entered():
            self.world.scheduler.run([Actor("run", work)])
        return found[0]

    def rows(self, name: str) -> int:
        return len(self.world.table(DeltaTarget(table=f"simulated.{name}")).rows)


def test_one_start_is_not_for_tables_at_different_positions():
    tables = Landed()
    tables.produce(4)
    tables.land("behind")
    tables.produce(4)
    tables.land("ahead")
    for names in (("behind", "ahead"), ("ahead", "new")):
        with pytest.raises(ConfigurationError) as refused:
            tables.land(*names, start=2)
        assert str(refused.value) == (
            f"start would move {', '.join(names)}, which are at different positions: records would land again in the "
            "one that is ahead, or be skipped in another. Nothing was written. Select one table"
        )
    assert (tables.rows("behind"), tables.rows("ahead"), tables.rows("new")) == (4, 8, 0)
    # One of them alone, both at one position, and both new.
    assert not tables.land("behind", start=6).failures
    assert not tables.land("behind", "ahead", start=7).failures
    assert not tables.land("new", "newer", start=3).failures
    assert [tables.rows(name) for name in ("behind", "ahead", "new", "newer")] == [7, 9, 5, 5]


def test_a_retry_moves_only_the_tables_that_the_start_has_not_moved_yet():
    tables = Landed()
    tables.produce(4)
    tables.land("one", "other")
    # As after a run that was killed between its commits.
    tables.land("one", start=2)
    assert not tables.land("one", "other", start=2, tries=frozenset({"run 2"})).failures
    assert (tables.rows("one"), tables.rows("other")) == (6, 6)


def test_a_start_waits_until_the_positions_of_all_its_tables_are_known(monkeypatch):
    tables = Landed()
    tables.produce(4)
    tables.land("one", "other")
    opened = StreamRun.open

    def unreachable(self):
        if self.context.table == "simulated.one":
            raise TableError("the store is unreachable", "Run again")
        return opened(self)

    monkeypatch.setattr(StreamRun, "open", unreachable)
    with pytest.raises(TableError, match="the store is unreachable"):
        tables.land("one", "other", start=2)
    assert (tables.rows("one"), tables.rows("other")) == (4, 4)
