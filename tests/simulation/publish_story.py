"""Stories of publishing: two processes publish a table that grows, through lanes, transactions and a bad network."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from dagster_kafka_flip.errors import KafkaFlipError, SinkProgressError
from dagster_kafka_flip.sink import lane, progress_topic, publication, publish, table_versions
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.progress import Progress, Segment
from dagster_kafka_flip.sink.serializers import JsonSerializer
from dagster_kafka_flip.sink.table_rows import DELETE, INSERT, PREVIOUS, UPDATED, TableRow
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.local_log import TableDetails
from tests.simulation.scheduler import Actor, Chances, Killed
from tests.simulation.sim_broker import SimBroker, SimProducer, SimSinkCluster
from tests.simulation.sim_log import RECORD
from tests.simulation.story import Story
from tests.simulation.world import CONNECTION, World

_TOPIC = "published"
_KEYS = 5
_CALM = Chances()


class SimVersions:
    """A table's versions: the change of each key, as its value before and after."""

    def __init__(self, world: World) -> None:
        self._random = world.scheduler.random
        self.versions: list[dict[int, tuple[str | None, str | None]]] = [{}]
        self.marks = ["made"]
        self._numbers = 0

    def grow(self) -> str:
        """Somebody writes a version."""
        there, changes = self.rows(len(self.versions) - 1), dict[int, tuple[str | None, str | None]]()
        for key in self._random.sample(range(_KEYS), self._random.randint(0, 4)):
            self._numbers += 1
            before = there.get(key)
            after = None if before is not None and self._random.random() < 0.3 else f"{key}:{self._numbers}"
            changes[key] = before, after
        self._numbers += 1
        self.versions.append(changes)
        self.marks.append(f"attempt {self._numbers}")
        return f"version {len(self.versions) - 1}: {changes}"

    def replace(self) -> int:
        """An older copy takes the table's place, and gets other versions; returns the last version of both."""
        last = self._random.randrange(len(self.versions))
        del self.versions[last + 1 :], self.marks[last + 1 :]
        for _ in range(self._random.randint(0, 4)):
            self.grow()
        return last

    def rows(self, version: int) -> dict[int, str]:
        """The rows of a version."""
        found: dict[int, str | None] = {}
        for changes in self.versions[: version + 1]:
            found |= {key: after for key, (_, after) in changes.items()}
        return {key: value for key, value in found.items() if value is not None}

    def commits(self, *_: Any) -> Iterator[Commit]:
        """The history, newest first."""
        marks = list(enumerate(self.marks))
        return (Commit(version, "WRITE", {"mode": "Append"}, {}, mark, version) for version, mark in reversed(marks))

    def commits_between(self, first: int, last: int) -> list[Commit]:
        return [each for each in self.commits() if first <= each.version <= last]

    def read(self, segment: Segment, lanes: int) -> Iterator[TableRow]:
        """The rows of a segment, in the order of the product's query."""
        for version in range(segment.first, segment.last + 1):
            changes = self.versions[version]
            if segment.is_snapshot:
                changes = {key: (None, value) for key, value in self.rows(version).items()}
            for key, (before, after) in sorted(changes.items()):
                # An overwrite deletes what it inserts again.
                is_update = before is not None and after is not None and (key + version) % 2 == 0
                ranks: list[tuple[int, bytes | None]] = []
                if before is not None:
                    ranks.append((PREVIOUS if is_update else DELETE, None))
                if after is not None:
                    ranks.append((UPDATED if is_update else INSERT, after.encode()))
                for rank, value in ranks:
                    yield TableRow(version, rank, b"%d" % key, value, key % lanes, None, None, None, None)


class PublishStory(Story):
    """The story of one seed."""

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        self.world = World(seed, has_lock=True, left_out=left_out)
        self.random = self.world.scheduler.random
        self.broker = SimBroker(self.world.scheduler)
        self.table = SimVersions(self.world)
        self.sink = KafkaSink(
            topic=_TOPIC,
            transactional_id_prefix="sink",
            key=JsonSerializer(columns=("id",)),
            lanes=self.random.choice((1, 2, 3)),
        )
        self.source = DeltaSource(table="/simulated", start=self.random.choice(("snapshot", 0, 1)))
        self.limits = Limits(max_records_per_batch=self.random.choice((None, 1, 2, 5)))
        self._is_local = self.random.random() < 0.5
        self._known: dict[int, tuple[int, int]] = {}
        self.broker.log.create(_TOPIC, self.random.choice((1, 2)))

    @property
    def schedule(self) -> list[str]:
        return self.world.scheduler.schedule

    def play(self) -> None:
        scheduler = self.world.scheduler
        scheduler.events = [
            ("writes", self.table.grow),
            ("a coordinator completes what it prepared", self.broker.complete_one),
            ("a coordinator aborts", self.broker.time_out),
            ("a held request arrives:", self.broker.let_through),
            ("a held request arrives:", self.broker.let_through),
        ]
        with self._entered():
            for _ in range(self.random.randint(1, 4)):
                self.table.grow()
            for _ in range(self.random.randint(1, 3)):
                fails = [self.random.choice((0.0, 0.03, 0.1)) for _ in range(2)]
                scheduler.chances = Chances(0.2, 0.1, fails[0], fails[1], 0.01, 0.01)
                scheduler.run([Actor(name, self._work) for name in ("A", "B")])
                self._check()
            scheduler.chances, scheduler.events = _CALM, []
            last = self.table.replace() if self.random.random() < 0.2 else None
            scheduler.run([Actor("C", lambda: self._finish(last))])

    def _work(self) -> None:
        """A process that publishes until it dies, or has enough."""
        with contextlib.suppress(Killed):
            for _ in range(3):
                with contextlib.suppress(KafkaFlipError):
                    self._publish()

    def _publish(self) -> Any:
        try:
            result = publish.publish(
                self.source,
                self.sink,
                spark=cast("Any", SimpleNamespace),
                connection=CONNECTION,
                limits=self.limits,
                known=dict(self._known),
            )
        except KafkaFlipError as error:
            self.world.scheduler.note(f"{type(error).__name__}: {error}")
            raise
        self.world.scheduler.note(f"published up to version {result.last_version}")
        self._known = result.known
        return result

    def _finish(self, common: int | None) -> None:
        """Once nothing happens any more, a run publishes the rest; then, whatever arrives late, nothing is left."""
        while self.broker.complete_one():
            """What is prepared is committed."""
        lanes = [last for _, last in self._lanes() if (last.version, last.rows) > (last.origin.before, 0)]
        reached = max((last.version for last in lanes), default=-1)
        try:
            self._publish()
        except SinkProgressError:
            # Of a version that was published in part, the copy may have other rows.
            if common is None:
                raise
            return
        is_whole = common is None or reached <= common
        assert is_whole, f"publishes a table of which versions up to {common} are left, though {reached} was published"
        while (late := self.broker.complete_one() or self.broker.let_through()) is not None:
            self.world.scheduler.note(f"at last {late}")
        self._check(is_over=True)
        assert self._publish().batches == 0
        self._check(is_over=True)

    def _lanes(self) -> list[tuple[Progress, Progress]]:
        """The first and the last progress that is committed of each lane."""
        found = [entries for topic, entries in self._committed() if topic != _TOPIC and entries]
        ends = [[Progress.from_bytes(entries[end].value, "its log") for end in (0, -1)] for entries in found]
        return [(first, last) for first, last in ends]

    def _check(self, *, is_over: bool = False) -> None:
        """What readers of committed records see is what the table's versions were, in their order."""
        seen: defaultdict[int, list[str | None]] = defaultdict(list)
        for entry in (entry for topic, entries in self._committed() if topic == _TOPIC for entry in entries):
            seen[int(entry.key)].append(None if entry.value is None else entry.value.decode())
        for key in range(_KEYS):
            wanted = self._wanted(key)
            there = seen[key] if is_over else wanted[: len(seen[key])]
            is_right = seen[key] == there and (not is_over or seen[key] == wanted)
            assert is_right, f"key {key}: readers see {seen[key]}, of {wanted}"

    def _wanted(self, key: int) -> list[str | None]:
        if not (lanes := self._lanes()):
            return []
        version, is_snapshot = lanes[0][0].origin.version, lanes[0][0].origin.snapshot
        # A copy that took the table's place may not have the version yet.
        has_all = is_snapshot and version < len(self.table.versions)
        value = self.table.rows(version).get(key) if has_all else None
        later = self.table.versions[version + 1 :]
        return [*([value] if value else []), *(changes[key][1] for changes in later if key in changes)]

    def _committed(self) -> Iterator[tuple[str, list[Any]]]:
        """The committed records of each topic partition."""
        for topic, partitions in self.broker.log.topics.items():
            for partition in partitions:
                yield topic, [entry for entry in partition.entries if entry.kind == RECORD]

    @contextlib.contextmanager
    def _entered(self) -> Generator[None]:
        scheduler, table = self.world.scheduler, self.table
        details = TableDetails("table-id", (), {"delta.enableChangeDataFeed": "true"})

        def local_version(_: Any) -> tuple[int, str] | None:
            return (len(table.versions) - 1, details.id) if self._is_local else None

        def now() -> float:
            return self.world.now.timestamp()

        with self.world.entered(), pytest.MonkeyPatch.context() as patch:
            for_lanes = {"Producer": lambda config, **_: SimProducer(self.world, self.broker, config)}
            clients = SimpleNamespace(KafkaException=KafkaException, KafkaError=KafkaError, **for_lanes)
            patch.setattr(lane, "confluent_kafka", clients)
            patch.setattr(lane, "time", SimpleNamespace(monotonic=now))
            patch.setattr(lane, "said_while_waiting", lambda *_: contextlib.nullcontext())
            patch.setattr(progress_topic, "_MARKER_SECONDS", 0)
            patch.setattr(publication, "SegmentRows", _rows)
            patch.setattr(publication, "RowStream", lambda _, segment, __: self._stream(segment))
            patch.setattr(publish, "KafkaCluster", lambda *_, **__: SimSinkCluster(self.broker.log, scheduler))
            patch.setattr(publish, "local_version", local_version)
            patch.setattr(publish, "commits_between", lambda _, first, last: table.commits_between(first, last))
            of_spark = [(publish, name) for name in ("check_alive", "watch_executors", "keep_interrupts")]
            for owner, name in (*of_spark, (table_versions, "check_settings"), (table_versions, "check_place")):
                patch.setattr(owner, name, lambda *_, **__: None)
            log = SimpleNamespace(commits=table.commits, details=lambda: details)
            patch.setattr(table_versions, "TableLog", lambda *_: log)
            patch.setattr(table_versions, "local_version", local_version)
            yield

    @contextlib.contextmanager
    def _stream(self, segment: Segment) -> Generator[Any]:
        """The rows of a segment as they come."""
        scheduler = self.world.scheduler

        def chunks(_: float) -> Iterator[list[TableRow]]:
            for row in scheduler.call(f"reads {segment}", lambda: list(self.table.read(segment, self.sink.lanes))):
                yield scheduler.call("takes a row", partial(list, [row]))

        yield SimpleNamespace(chunks=chunks)


def _rows(*given: Any) -> SimpleNamespace:
    """The rows of a segment, which stand for its query."""
    return SimpleNamespace(rows=given[3], frames=(b"", b""), columns=("id", "v"), types="{}", schema_ids=(None, None))
