"""Stories of dead letters and repairs: a record that can't be decoded is in the dead-letter table, and no other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from dagster_kafka_flip import errors
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.window import Window, WindowPlan, Windows
from tests.simulation.scheduler import Actor
from tests.simulation.sim_table import RECORDS_SCHEMA, SimTable
from tests.simulation.story import RESTORE_TO, Story, Stream, document_of
from tests.simulation.world import SILENT


class LettersStory(Story):
    """The story of one seed in which some records can't be decoded."""

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, left_out)
        self.world.rejects = self.random.choice((2, 3, 5))
        # A repair finds rows by the places of their records.
        self.world.schema = RECORDS_SCHEMA
        self._is_about_letters = False

    def _make_streams(self) -> None:
        super()._make_streams()
        for stream in self.streams:
            stream.source = stream.source.changed(max_drift=None)
            stream.letters = DeadLetters(table=f"{stream.target.table}_{stream.target.stream}_rejected")

    def _actors(self) -> list[Actor]:
        repairs = [
            self._lives(f"repair of {stream}", self.random.choice((0, 0, 1, 3)), partial(self._repair, stream))
            for stream in self.streams
        ]
        return [*super()._actors(), *repairs]

    def _repair(self, stream: Stream, *, is_last: bool = False) -> None:
        """Somebody lands a range of time again, and does what the messages say."""
        draw, session, letters = self.random, cast("Any", self.session), cast("DeadLetters", stream.letters)
        times = sorted({place[3] for place in self.world.log.places.values()}) or [0]
        first, last = sorted(draw.choice(times) for _ in range(2))
        if is_last:
            first, last = times[0], times[-1]
        tolerated = stream.tolerated | ({errors.WindowBeyondRetentionError} if draw.random() < 0.2 else set())
        try:
            with self._running(f"repairs {stream} from {first} to {last}"):
                results = rewrite_windows(
                    stream.source,
                    stream.target,
                    [Window.between(first, last + 1, "again")],
                    spark=lambda: session,
                    rules=Windows(repair=True),
                    dead_letter=letters,
                    tolerate=tolerated,
                    run_id=f"run {self._runs}",
                    logger=SILENT,
                )
                for result in results:
                    stream.reports += [incident.error for incident in result.plan.incidents]
                    if is_last:
                        self._check_repaired(stream, result.plan, last)
        except KafkaFlipError as error:
            self._met(stream, error)
            told = RESTORE_TO.search(str(error))
            if told is not None and letters.table not in str(error):
                self.world.table(stream.target).restore(int(told[1]))
                self.world.scheduler.note(f"restores version {told[1]}")

    def _check_repaired(self, stream: Stream, plan: WindowPlan, last: int) -> None:
        """Also what others had deleted is there again."""
        rows = {*self.world.table(stream.target).rows, *self._letters_of(stream)}
        for split in plan.splits:
            partition = self.world.log.partition(split.topic_partition)
            for offset, entry in partition.visible(split.starting_offset, split.stopping_offset):
                is_there = entry.time_ms > last or entry.number in rows
                assert is_there, f"{stream} was repaired and lacks {entry.number}, at offset {offset} of {split}"

    def _letters_of(self, stream: Stream) -> tuple[int, ...]:
        there = self.world.tables.get(cast("DeadLetters", stream.letters).table)
        return () if there is None else there.rows

    def _end(self) -> None:
        super()._end()
        repaired = [each for each in self.streams if not each.has_given_up and self.random.random() < 0.3]
        for stream in repaired:
            repair = partial(self._repair, stream, is_last=True)
            self.world.scheduler.run([Actor(f"the last repair of {stream}", repair)])
        if repaired:
            super()._end()

    def _table(self) -> SimTable | None:
        letters = {stream.letters.table for stream in self.streams if stream.letters is not None}
        there = [
            table
            for name, table in self.world.tables.items()
            if table.versions and (name in letters) == self._is_about_letters
        ]
        return self.random.choice(there) if there else None

    def _events(self) -> list[tuple[str, Callable[[], str | None]]]:
        return [
            *super()._events(),
            ("of the dead letters, others restore", self._to_letters(self._restore)),
            ("of the dead letters, others delete", self._to_letters(self._delete)),
            ("to the dead letters, others insert", self._to_letters(self._insert)),
            ("of the dead letters, others set a property", self._to_letters(SimTable.set_property)),
        ]

    def _to_letters(self, change: Callable[[SimTable], object]) -> Callable[[], str | None]:
        event = self._others(change)

        def happen() -> str | None:
            self._is_about_letters = True
            try:
                return event()
            finally:
                self._is_about_letters = False

        return happen

    def _follow(self, stream: Stream, error: KafkaFlipError) -> OffsetsInitializer | None:
        target = cast("DeadLetters", stream.letters).target(stream.target)
        if isinstance(error, errors.ConfigurationError) and "give this one its own stream" in str(error):
            # The table was dropped, and is another one now.
            stream.letters = DeadLetters(table=f"{target.table}_again")
            return None
        if target.table not in str(error) and target.identifier not in str(error):
            return super()._follow(stream, error)
        stream.may_double = stream.may_double or "may then be there twice" in str(error)
        letters = Stream(stream.source, target, stream.limits, is_in_doubt=stream.is_in_doubt)
        if isinstance(error, errors.TableReplacedError | errors.ForeignRowsError):
            # What else there is to do is to go on without them.
            table = self.world.table(target)
            own = [version.commit.version for version in table.versions if document_of(version, letters) is not None]
            if (told := RESTORE_TO.search(str(error))) is not None:
                own = [int(told[1])]
            if not own:
                return self._move(letters, OffsetsInitializer.earliest())
            table.restore(own[-1])
            self.world.scheduler.note(f"restores version {own[-1]} of {target}")
            return None
        return super()._follow(letters, error)

    def _drop(self, table: SimTable) -> None:
        if not self._open:
            super()._drop(table)

    def _check_complete(self, stream: Stream, table: SimTable, rows: Counter[int]) -> None:
        there = self.world.tables.get(cast("DeadLetters", stream.letters).table)
        letters = Counter(number for number in self._letters_of(stream) if number > 0)
        wrong = [row for row in rows if self.world.is_rejected(row)]
        wrong += [row for row in letters if not self.world.is_rejected(row)]
        assert not wrong, f"{wrong} are on the wrong side of {stream}"
        table.deleted |= set() if there is None else there.deleted
        super()._check_complete(stream, table, rows + letters)
