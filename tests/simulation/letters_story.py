"""Stories of dead letters: each record that can't be decoded is in the dead-letter table once, and no other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

from dagster_kafka_flip.errors import ConfigurationError, ForeignRowsError, KafkaFlipError, TableReplacedError
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from tests.simulation.sim_table import SimTable
from tests.simulation.story import RESTORE_TO, Story, Stream, WrongError, document_of


class LettersStory(Story):
    """The story of one seed in which some records can't be decoded."""

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, left_out)
        self.world.rejects = self.random.choice((2, 3, 5))
        self._is_about_letters = False

    def _make_streams(self) -> None:
        super()._make_streams()
        for stream in self.streams:
            stream.letters = DeadLetters(table=f"{stream.target.table}_{stream.target.stream}_rejected")

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
            ("of the dead letters, others set a property", self._to_letters(self._set_property)),
        ]

    def _to_letters(self, event: Callable[[], str | None]) -> Callable[[], str | None]:
        def happen() -> str | None:
            self._is_about_letters = True
            try:
                return event()
            finally:
                self._is_about_letters = False

        return happen

    def _follow(self, stream: Stream, error: KafkaFlipError) -> OffsetsInitializer | None:
        target = cast("DeadLetters", stream.letters).target(stream.target)
        if isinstance(error, ConfigurationError) and "give this one its own stream" in str(error):
            # The table was dropped, and is another one now.
            stream.letters = DeadLetters(table=f"{target.table}_again")
            return None
        if target.table not in str(error) and target.identifier not in str(error):
            return super()._follow(stream, error)
        stream.may_double = stream.may_double or "may then be there twice" in str(error)
        letters = Stream(stream.source, target, stream.limits, is_in_doubt=stream.is_in_doubt)
        if isinstance(error, TableReplacedError | ForeignRowsError):
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

    def _drop(self) -> str | None:
        return None if self._open else super()._drop()

    def _check_complete(self, stream: Stream, table: SimTable, rows: Counter[int]) -> None:
        there = self.world.tables.get(cast("DeadLetters", stream.letters).table)
        letters = Counter(number for number in there.rows if number > 0) if there is not None else Counter[int]()
        wrong = [row for row in rows if self.world.is_rejected(row)]
        if wrong := [*wrong, *(row for row in letters if not self.world.is_rejected(row))]:
            msg = f"{wrong} are on the wrong side of {stream}"
            raise WrongError(msg)
        table.deleted |= set() if there is None else there.deleted
        super()._check_complete(stream, table, rows + letters)
