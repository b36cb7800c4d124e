"""Stories: what a seed lets happen, and whether all is as it must be in the end."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, cast

from dagster_kafka_flip import errors
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.ingestion.result import IngestResult
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor, Chances, Killed, StuckError
from tests.simulation.sim_log import ABORTED, OPEN, RECORD, Partition
from tests.simulation.sim_table import SimTable, Version
from tests.simulation.world import CONNECTION, SILENT, SimSession, SimSource, World

Ended: TypeAlias = IngestResult | KafkaFlipError

_MOST_TURNS = 30
# What a user reads in a message, and does.
RESTORE_TO = re.compile(r"RESTORE (?:the table|it|TABLE \S+) (?:to version|TO VERSION AS OF) (\d+)")
_START = re.compile(r"start set to (offsets:\{.*?\}\}|earliest|latest)")
_SET = re.compile(r"dagster-kafka-flip (position set .*? --reason <why>)")
_FIRST_CHECK = "first check whether"
_PYTHONS = re.compile(r"\b(Assertion|Attribute|Index|Key|Operational|Type|Value)Error\b")
_MAY_BE_DOUBLED = "these are then doubled"
_READS_AGAIN = "reads again what the table has"
_TOLERABLE = (
    errors.RetentionOvertookPositionError,
    errors.EndBeforePositionError,
    errors.TopicRecreatedError,
    errors.ConcurrentIngestionError,
    errors.ForeignRowsError,
)


@dataclass
class Stream:
    """One stream of the story, and what its users know of it."""

    source: SimSource
    target: DeltaTarget
    limits: Limits
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    letters: DeadLetters | None = None
    known: KnownPosition | None = None
    reports: list[str] = field(default_factory=list[str])
    may_double: bool = False
    # Whether a run has to look whether the last one wrote what it should not: it was killed, or failed.
    is_in_doubt: bool = True
    has_chosen_start: bool = False
    has_given_up: bool = False

    def __str__(self) -> str:
        return f"the stream {self.target.stream} of {self.target.table}"


def turns(who: object) -> Iterator[int]:
    """As many turns as anything may need."""
    yield from range(_MOST_TURNS)
    msg = f"{who} does not come to rest"
    raise AssertionError(msg)


class Story:
    """The story of one seed, without some of what it has."""

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        self.world = World(seed, has_lock=seed % 3 != 0, left_out=left_out)
        self.random = self.world.scheduler.random
        self._seed = seed
        self.session = SimSession(self.world)
        self.streams: list[Stream] = []
        self._topics = [f"t{number}" for number in range(self.random.choice((1, 1, 2)))]
        self._runs = 0
        # How many runs are on their way.
        self._open = 0
        self._has_faults = False

    @property
    def schedule(self) -> list[str]:
        return self.world.scheduler.schedule

    def play(self) -> None:
        """Tells the story, and checks its end."""
        with self.world.entered():
            for topic in self._topics:
                self.world.log.create(topic, self.random.randint(1, 3))
            self._begin()
            self._make_streams()
            self._make_events()
            self.world.scheduler.run(self._actors())
            self._come_to_rest()
            self._end()
            self._check()

    def _begin(self) -> None:
        """What was there before the first run."""
        for _ in range(self.random.randint(0, 9)):
            self._produce()

    # --- who takes part ---------------------------------------------------------------------------------------------

    def _make_streams(self) -> None:
        draw = self.random
        kind = draw.choice(("one", "one", "two", "apart", "overlap"))
        topics = [(topic,) for topic in self._topics]
        names = [("a", "main", topics[0] if kind != "one" else tuple(self._topics))]
        if kind == "two" and len(topics) > 1:
            names.append(("a", "other", topics[1]))
        elif kind == "apart":
            names.append(("b", "main", tuple(self._topics)))
        elif kind == "overlap":
            names.append(("a", "other", tuple(self._topics)))
        for table, stream, read in names:
            start = draw.choice(
                (
                    OffsetsInitializer.earliest(),
                    OffsetsInitializer.earliest(),
                    OffsetsInitializer.latest(),
                    OffsetsInitializer.timestamp(self.world.now_ms() - draw.randint(-1000, 4000)),
                )
            )
            source = self._source(read, start)
            # Not drawn, so that the stories of all others stay as they are.
            if self._seed % 10 == 3:
                source = source.changed(max_drift=timedelta(milliseconds=20))
            elif self._seed % 10 == 7:
                committed = OffsetsInitializer.committed_offsets("earliest")
                source = source.changed(group_id="the group", commit_offsets=True, starting_offsets=committed)
            self.streams.append(
                Stream(
                    source,
                    DeltaTarget(table=f"simulated.{table}", stream=stream),
                    Limits(
                        max_records_per_batch=draw.choice((None, 1, 2, 5)), max_batches=draw.choice((None, None, 1, 2))
                    ),
                    frozenset(error for error in _TOLERABLE if draw.random() < 0.1),
                )
            )

    def _source(self, topics: Iterable[str], start: OffsetsInitializer) -> SimSource:
        return SimSource(topics=tuple(topics), connection=CONNECTION, starting_offsets=start, world=self.world)

    def _actors(self) -> list[Actor]:
        """Two processes may run the same stream."""
        cast = [(stream, number) for stream in self.streams for number in range(self.random.choice((1, 1, 2)))]
        return [self._actor(stream, number) for stream, number in cast]

    def _actor(self, stream: Stream, number: int) -> Actor:
        name = f"{stream.target.stream}@{stream.target.table[-1]}{'' if number == 0 else ' (second process)'}"
        return self._lives(name, self.random.randint(1, 4), lambda: self._try(stream))

    def _lives(self, name: str, runs: int, run: Callable[[], object]) -> Actor:
        """Runs one after another, of which each may die: the next one is another process."""

        def work() -> None:
            for _ in range(runs):
                try:
                    run()
                except (KafkaFlipError, Killed) as error:  # noqa: PERF203 - each run has its own end
                    if isinstance(error, Killed) and not actor.is_dead:
                        raise
                    actor.is_dead = False

        actor = Actor(name, work)
        return actor

    def _try(self, stream: Stream) -> None:
        self._one_try([stream], stop=self._stop(stream))

    def _one_try(
        self,
        streams: Sequence[Stream],
        start: OffsetsInitializer | None = None,
        stop: OffsetsInitializer | None = None,
    ) -> None:
        for stream, ended in zip(streams, self._run(streams, start, stop), strict=True):
            if isinstance(ended, KafkaFlipError):
                self._met(stream, ended)

    def _stop(self, stream: Stream) -> OffsetsInitializer | None:
        if self.random.random() < 0.8:
            return None
        if self.random.random() < 0.5:
            return OffsetsInitializer.timestamp(self.world.now_ms())
        topic = (stream.source.topics or ("",))[0]
        return OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): self.random.randint(0, 12)})

    @contextlib.contextmanager
    def _running(self, what: str) -> Generator[int]:
        self._runs += 1
        self.world.scheduler.note(f"run {self._runs} {what}")
        self._open += 1
        try:
            yield self._runs
        finally:
            self._open -= 1

    def _run(
        self, streams: Sequence[Stream], start: OffsetsInitializer | None = None, stop: OffsetsInitializer | None = None
    ) -> list[Ended]:
        """One run of one stream, or of several in step."""
        note, source = self.world.scheduler.note, streams[0].source
        if stop is not None:
            with contextlib.suppress(KafkaFlipError):
                source = source.with_overrides(stopping_offsets=stop)
        doubts = [stream.is_in_doubt for stream in streams]
        mixed = [self._mixed(stream, None) if stream.target.table in self.world.tables else None for stream in streams]
        for stream in streams:
            stream.is_in_doubt = True
        with self._running("begins" + (f" at {start}" if start else "") + (f", to {stop}" if stop else "")) as number:
            found = self._launch(streams, source, start)
        for stream, ended, was_in_doubt, had_mixed in zip(streams, found, doubts, mixed, strict=True):
            if isinstance(ended, Exception):
                # This one stopped before it wrote.
                stream.is_in_doubt = was_in_doubt or _FIRST_CHECK not in str(ended)
                continue
            note(f"run {number} ends with {len(ended.batches)} batches")
            stream.may_double = stream.may_double or (
                had_mixed is not None and any(_MAY_BE_DOUBLED in incident.message for incident in ended.incidents)
            )
            stream.is_in_doubt = self._has_faults
            stream.known = ended.known
            stream.reports += [incident.error for incident in ended.incidents]
        return found

    def _launch(self, streams: Sequence[Stream], source: KafkaSource, start: OffsetsInitializer | None) -> list[Ended]:
        stream, session = streams[0], cast("Any", self.session)
        try:
            result = ingest(
                source,
                stream.target,
                spark=lambda: session,
                dead_letter=stream.letters,
                limits=stream.limits,
                starting_offsets=start,
                known=stream.known,
                tolerate=stream.tolerated,
                run_id=f"run {self._runs}",
                reported=self.random.choice((None, -1)),
                logger=SILENT,
            )
        except KafkaFlipError as error:
            return [error]
        return [result]

    def _met(self, stream: Stream, error: KafkaFlipError) -> None:
        self.world.scheduler.note(f"{type(error).__name__}: {str(error)[:200]}")
        stream.reports.append(type(error).__name__)
        assert not _PYTHONS.search(str(error)), f"a bug: {error}"
        assert "both belong to the stream" not in str(error), f"the fence of {stream} did not hold: {error}"

    # --- what happens -----------------------------------------------------------------------------------------------

    def _events(self) -> list[tuple[str, Callable[[], str | None]]]:
        return [
            ("produces", self._produce),
            ("produces", self._produce),
            ("produces in a transaction", self._produce_in_transaction),
            ("retention deletes", self._retain),
            ("elects a leader of", self._elect),
            ("elects a leader that lacks records of", self._elect_uncleanly),
            ("adds a partition to", self._add_partition),
            ("creates again", self._recreate),
            ("others insert", self._others(self._insert)),
            ("others delete", self._others(self._delete)),
            ("others empty", self._others(self._empty)),
            ("others optimize", self._others(SimTable.optimize)),
            ("others set a property", self._others(SimTable.set_property)),
            ("others restore", self._others(self._restore)),
            ("history expires", self._others(self._expire)),
            ("drops", self._others(self._drop)),
            ("a server ends a write that was lost", self._write_late),
            ("time passes", self._pass_time),
        ]

    def _make_events(self) -> None:
        draw, events = self.random, self._events()
        # Each seed has some of them, so that rare ones get their room.
        self.world.scheduler.events = [each for number, each in enumerate(events) if number < 2 or draw.random() < 0.35]
        faults = draw.choice((0.0, 0.002, 0.01, 0.03))
        self._has_faults = faults > 0
        self.world.scheduler.chances = Chances(
            switch=draw.choice((0.05, 0.3, 0.7)),
            event=draw.choice((0.02, 0.06, 0.15)),
            fails_before=faults,
            fails_after=faults,
            dies_before=faults / 2,
            dies_after=faults / 2,
        )

    def _partition(self) -> tuple[str, Partition]:
        topic = self.random.choice(self._topics)
        number = self.random.randrange(len(self.world.log.topics[topic]))
        return f"{topic}-{number}", self.world.log.topics[topic][number]

    def _times(self) -> list[int]:
        return [self.world.now_ms() - self.random.choice((0, 0, 0, 50)) for _ in range(self.random.randint(1, 3))]

    def _produce(self) -> str:
        name, partition = self._partition()
        self.world.log.append(partition, times := self._times())
        return f"{len(times)} records to {name}"

    def _produce_in_transaction(self) -> str:
        name, partition = self._partition()
        if any(entry.kind == OPEN for entry in partition.entries):
            kind = self.random.choice((RECORD, ABORTED))
            self.world.log.end_transaction(partition, self.world.now_ms(), kind)
            return f"the end of one in {name}: {kind}"
        self.world.log.append(partition, self._times(), OPEN)
        return f"to {name}"

    def _retain(self) -> str:
        name, partition = self._partition()
        self.world.log.retain(partition, self.random.randint(partition.begin, partition.stable_end))
        return f"{name} up to {partition.begin}"

    def _elect(self) -> str:
        name, partition = self._partition()
        self.world.log.elect(partition, partition.end)
        return name

    def _elect_uncleanly(self) -> str:
        name, partition = self._partition()
        self.world.log.elect(partition, self.random.randint(partition.begin, partition.end))
        return f"{name} from {partition.end} on"

    def _add_partition(self) -> str:
        topic = self.random.choice(self._topics)
        self.world.log.add_partitions(topic, 1)
        return topic

    def _recreate(self) -> str:
        topic = self.random.choice(self._topics)
        partitions = len(self.world.log.topics[topic])
        self.world.log.delete(topic)
        self.world.log.create(topic, max(1, partitions - self.random.randint(0, 1)))
        return topic

    def _table(self) -> SimTable | None:
        there = [table for table in self.world.tables.values() if table.versions]
        return self.random.choice(there) if there else None

    def _others(self, change: Callable[[SimTable], object]) -> Callable[[], str | None]:
        """What somebody else does to a table that is there."""

        def happen() -> str | None:
            if (table := self._table()) is None:
                return None
            before = table.rows
            change(table)
            rows = sorted(map(str, set(before).symmetric_difference(table.rows)))
            return f"{table.name} (version {len(table.versions) - 1}, {rows or 'no rows'})"

        return happen

    def _insert(self, table: SimTable) -> None:
        table.insert(-len(table.versions))

    def _delete(self, table: SimTable) -> None:
        if table.rows:
            table.deleted.add(row := self.random.choice(table.rows))
            table.commit("DELETE", {"predicate": '["(number = 1)"]'}, [each for each in table.rows if each != row])

    def _empty(self, table: SimTable) -> None:
        if table.rows:
            table.empty()

    def _restore(self, table: SimTable) -> None:
        table.restore(self.random.randint(table.oldest, len(table.versions) - 1))

    def _expire(self, table: SimTable) -> None:
        # Delta keeps a month of it: enough time to do what a message says. And no run takes that long.
        told = {report for stream in self.streams for report in stream.reports}
        if self._open or told & {"TableChangedError", "TableReplacedError", "LogChangedError"}:
            return
        self.world.now += timedelta(days=31)
        if self.random.random() < 0.5:
            # Maintenance is all that has happened lately.
            table.optimize()
            table.oldest = len(table.versions) - 1
        else:
            table.oldest = self.random.randint(table.oldest, len(table.versions) - 1)

    def _drop(self, table: SimTable) -> None:
        table.drop()

    def _write_late(self) -> str | None:
        late = [(table, write) for table in self.world.tables.values() for write in table.late]
        if not late:
            return None
        table, write = self.random.choice(late)
        table.late.remove(write)
        write()
        return f"(the newest version is {len(table.versions) - 1})"

    def _pass_time(self) -> str:
        # Days pass between runs, not within one.
        hours = self.random.choice((1, -2) if self._open else (30, 24 * 20))
        self.world.now += timedelta(hours=hours)
        return f"by {hours} h"

    # --- the end ----------------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """The faults stop."""
        self.schedule.append("--- the faults stop ---")
        self.world.scheduler.chances = Chances()
        while self._write_late() is not None:
            pass
        for topic in self.world.log.topics.values():
            for partition in topic:
                if any(entry.kind == OPEN for entry in partition.entries):
                    self.world.log.end_transaction(partition, self.world.now_ms(), RECORD)

    def _end(self) -> None:
        """Each stream has its turns, and its user does what the messages say."""
        for _ in range(2):
            for stream in self.streams:
                stream.limits = stream.limits.model_copy(update={"max_batches": None})
                self.world.scheduler.run([Actor(f"the last turn of {stream}", partial(self._turn, [stream]))])

    def _turn(self, streams: Sequence[Stream]) -> None:
        """They run together, and each that fails runs alone as its message says."""
        # A copy of the position is trusted for a day.
        self.world.now += timedelta(hours=25)
        for _ in turns(", ".join(map(str, streams))):
            if not (left := [stream for stream in streams if not stream.has_given_up]):
                return
            ended = self._run(left)
            for stream, one in zip(left, ended, strict=True):
                self._follow_all(stream, one)
            results = [one for one in ended if not isinstance(one, Exception) and one.is_idle]
            if len(results) == len(left):
                for stream, result in zip(left, results, strict=True):
                    self._check_position(stream, result)
                return

    def _follow_all(self, stream: Stream, ended: Ended) -> None:
        for _ in turns(stream):
            if not isinstance(ended, KafkaFlipError):
                return
            self._met(stream, ended)
            if (start := self._follow(stream, ended)) is None:
                return
            (ended,) = self._run([stream], start)

    def _follow(self, stream: Stream, error: KafkaFlipError) -> OffsetsInitializer | None:
        """Does what a message says; returns a start for the next run."""
        text, table = str(error), self.world.table(stream.target)
        note = self.world.scheduler.note
        stream.may_double = stream.may_double or _READS_AGAIN in text
        restore, start, command = RESTORE_TO.search(text), _START.search(text), _SET.search(text)
        version = int(restore[1]) if restore is not None else None
        if _FIRST_CHECK in text and stream.is_in_doubt and (mixed := self._mixed(stream, start or command)) is not None:
            version, command = mixed - 1, None
        if isinstance(error, errors.StreamOverlapError) or "<topic>" in text or "--to <" in text:
            # Another table, or offsets that only the user knows.
            stream.has_given_up = True
        elif "Drop it, and the next run creates it" in text:
            table.drop()
            note("drops the table")
        elif version is not None or command is not None:
            if version is not None:
                table.restore(version)
                note(f"restores version {version}")
            if command is not None:
                words = shlex.split(command[1])
                to = None if "--give-up" in words else OffsetsInitializer.parse(words[words.index("--to") + 1])
                return self._move(stream, to)
        elif start is not None:
            stream.has_chosen_start = stream.has_chosen_start or isinstance(error, errors.PositionLostError)
            return OffsetsInitializer.parse(start[1])
        elif isinstance(error, errors.ForeignRowsError):
            stream.tolerated |= {errors.ForeignRowsError}
        elif isinstance(error, errors.EventTimeUnknownError):
            stream.source = stream.source.changed(max_drift=None)
        elif isinstance(error, errors.OffsetOutOfRangeError):
            # Of a topic that was made again, before there was a position.
            before, now = stream.source, stream.source.changed(starting_offsets=OffsetsInitializer.earliest())
            for each in (each for each in self.streams if each.source is before):
                each.source, each.has_chosen_start = now, True
        else:
            has_way_out = isinstance(
                error, errors.PositionLostError | errors.WriteFailedError | errors.ClusterUnreachableError
            )
            assert has_way_out, f"no way out of {type(error).__name__}: {text}"
        return None

    def _move(self, stream: Stream, to: OffsetsInitializer | None) -> OffsetsInitializer | None:
        session: Any = self.session
        try:
            move = plan_move(stream.source, stream.target, session, to)
            commit_move(move, stream.target, session, "as the message says")
        except errors.OffsetOutOfRangeError as error:
            # It names the log and its range.
            inside = re.match(r"(\S+): .* holds offsets (\d+) to", str(error))
            assert inside is not None
            assert to is not None
            at = {TopicPartition.parse(inside[1]): int(inside[2])}
            return self._move(stream, OffsetsInitializer.specific_offsets({**(to.offsets or {}), **at}))
        except KafkaFlipError as error:
            self._met(stream, error)
            return self._follow(stream, error)
        self.world.scheduler.note(f"sets the position to {to}")
        return None

    def _mixed(self, stream: Stream, told: re.Match[str] | None) -> int | None:
        """The stream's last commit, if it has records of another topic than planned, or that would be read again."""
        to = re.search(r"offsets:\{.*?\}\}", told[0]) if told is not None else None
        again = {
            entry.number
            for tp, at in ((OffsetsInitializer.parse(to[0]).offsets or {}) if to is not None else {}).items()
            for _, entry in self.world.log.partition(tp).visible(at, self.world.log.partition(tp).end)
        }
        versions = self.world.table(stream.target).versions
        number = len(versions) - 1
        while number > 0:
            document = document_of(versions[number], stream)
            if document is not None:
                added = (Counter(versions[number].rows) - Counter(versions[number - 1].rows)).keys() & versions[-1].rows
                ids = set(document.state.topic_ids.values())
                other = {row for row in added if row > 0 and self.world.log.homes[row][0] not in ids}
                return None if not other and again.isdisjoint(added) else number
            restored = versions[number].commit.restored_version
            number = number - 1 if restored is None else restored
        return None

    def _check_position(self, stream: Stream, result: IngestResult) -> None:
        ends = {
            TopicPartition(topic, number): partition.stable_end
            for topic in stream.source.topics or ()
            for number, partition in enumerate(self.world.log.topics[topic])
        }
        position = {tp: result.state.position.get(tp) for tp in ends}
        assert position == ends, f"{stream} is at {position}, and the logs end at {ends}"

    def _check(self) -> None:
        for name, table in self.world.tables.items():
            streams = [
                each for each in self.streams if name in (each.target.table, each.letters and each.letters.table)
            ]
            rows = Counter(row for row in table.rows if row > 0)
            doubled = sorted(row for row, count in rows.items() if count > 1)
            is_right = not doubled or any(stream.may_double for stream in streams)
            assert is_right, f"{name} has {doubled} more than once"
            for stream in streams:
                if stream.target.table == name:
                    self._check_complete(stream, table, rows)

    def _check_complete(self, stream: Stream, table: SimTable, rows: Counter[int]) -> None:
        if stream.has_given_up or (
            "EndBeforePositionError" in stream.reports and errors.EndBeforePositionError in stream.tolerated
        ):
            # What is tolerated may lose records, and is reported.
            return
        starts, gone_before = self._begun(stream, table)
        gone = set(self.world.log.gone)
        for topic in stream.source.topics or ():
            for number, partition in enumerate(self.world.log.topics[topic]):
                begin = starts.get((partition.home, TopicPartition(topic, number)), 0)
                initial = stream.source.starting_offsets
                for offset, entry in partition.visible(partition.begin, partition.end):
                    is_timed = initial.timestamp_ms is not None and not stream.has_chosen_start
                    if is_timed and entry.time_ms >= (initial.timestamp_ms or 0):
                        begin = min(begin, offset)
                    is_there = offset < begin or entry.number in rows or entry.number in table.deleted
                    assert is_there, f"{table.name} lacks {entry.number}, which is {topic}-{number} offset {offset}"
        lost = {
            number
            for number in gone
            if number not in rows
            and number not in table.deleted
            and (excused := gone_before.get(self.world.log.homes[number])) is not None
            and number not in self.world.log.gone[:excused]
        }
        told = ((document_of(version, stream), version.commit.windows()) for version in table.versions)
        is_told = stream.reports or any(each.incidents for both in told for each in both if each is not None)
        begins_early = stream.source.starting_offsets.kind is OffsetsKind.EARLIEST and not stream.has_chosen_start
        is_right = not lost or is_told or not begins_early
        assert is_right, f"{table.name} lacks {sorted(lost)}, which the logs have lost, and nobody was told"

    def _begun(
        self, stream: Stream, table: SimTable
    ) -> tuple[dict[tuple[tuple[str, int], TopicPartition], int], dict[tuple[str, int], int]]:
        """Where the stream began in each log, and how many records the logs had lost by then."""
        starts: dict[tuple[tuple[str, int], TopicPartition], int] = {}
        gone: dict[tuple[str, int], int] = {}
        for version in table.versions:
            document = document_of(version, stream)
            if document is None:
                continue
            splits = {split.topic_partition: split.starting_offset for split in document.splits}
            topics = {topic_id for topic_id, _ in gone}
            for tp, at in document.state.position.items():
                home = (document.state.topic_ids.get(tp.topic, ""), tp.partition)
                starts.setdefault((home, tp), splits.get(tp, at))
                # Of a partition that was added to a topic, all records are to be read.
                gone.setdefault(home, 0 if home[0] in topics else version.gone)
        if stream.source.starting_offsets.kind is OffsetsKind.EARLIEST and not stream.has_chosen_start:
            starts = {}
        return starts, gone


def document_of(version: Version, stream: Stream) -> CommitDocument | None:
    """The document of a stream's commit; None of another one's."""
    document = CommitDocument.from_text(version.commit.user_metadata)
    return document if document is not None and document.stream == stream.target.stream else None


def play(seed: int, left_out: frozenset[int] = frozenset(), kind: type[Story] = Story) -> tuple[str, list[str]] | None:
    """Plays a seed; returns what went wrong and the schedule, or None."""
    story = kind(seed, left_out)
    try:
        story.play()
    except (Exception, StuckError) as error:  # noqa: BLE001 - whatever it is, it is the finding
        return f"{type(error).__name__}: {error}", story.schedule
    return None


def shrunk(seed: int, kind: type[Story] = Story) -> frozenset[int]:
    """What a seed that fails can do without, and still fails; the last first."""
    story, left_out = kind(seed), frozenset[int]()
    with contextlib.suppress(Exception, StuckError):
        story.play()
    for number in range(story.world.scheduler.strikes, 0, -1):
        if play(seed, left_out | {number}, kind) is not None:
            left_out |= {number}
    return left_out


def first_failure(
    first: int, seeds: int, kinds: Sequence[type[Story]]
) -> tuple[type[Story], int, str, list[str]] | None:
    """The first of some seeds that fails in a kind of story, with what went wrong and the schedule."""
    for seed in range(first, first + seeds):
        for kind in kinds:
            if (found := play(seed, kind=kind)) is not None:
                return kind, seed, *found
    return None
