"""Stories of tables with a key: in the end each has the last row of each key that the log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.story import Story, Stream, WrongError
from tests.simulation.world import CONNECTION, SimSource

_TARGET = DeltaTarget(table="simulated.k", mode=Upsert(key=("kafka_key",)))


class KeyedStory(Story):
    """The story of one seed in which a table follows keys."""

    def _make_streams(self) -> None:
        super()._make_streams()
        one = self.streams[0]
        source = SimSource(
            topics=tuple(self._topics),
            connection=CONNECTION,
            starting_offsets=OffsetsInitializer.earliest(),
            world=self.world,
        )
        self.streams = [Stream(source, _TARGET, one.limits, one.tolerated.difference(OTHER_OFFSETS))]

    def _events(self) -> list[tuple[str, Callable[[], str | None]]]:
        return [*super()._events(), ("others update", self._update), ("others update", self._update)]

    def _insert(self) -> str | None:
        if (table := self._table()) is None:
            return None
        there = {row[0] for row in table.rows}
        keys = {self.world.key(number) for number in self.world.log.places} - there
        if not keys:
            return None
        row = (self.random.choice(sorted(keys)), -len(table.versions), 0)
        table.commit("WRITE", {"mode": "Append"}, (*table.rows, row), metrics={"numOutputRows": "1"})
        return f"the row {row} (version {len(table.versions) - 1})"

    def _update(self) -> str | None:
        if (table := self._table()) is None or not table.rows:
            return None
        row = self.random.choice(table.rows)
        changed = (*row[:2], len(table.versions))
        table.commit("UPDATE", {"predicate": '["a"]'}, [changed if each == row else each for each in table.rows])
        return f"the row {row} (version {len(table.versions) - 1})"

    def _one_try(self, stream: Stream) -> None:
        # What is read again changes nothing.
        start = OffsetsInitializer.earliest() if self.random.random() < 0.3 else None
        try:
            self._one_run(stream, start)
        except KafkaFlipError as error:
            self._met(stream, error)

    def _mixed(self, stream: Stream, told: Any) -> int | None:
        """A change that is read again is no newer than the row."""
        del stream, told

    def _follow(self, stream: Stream, error: KafkaFlipError) -> OffsetsInitializer | None:
        if "into a new table" in str(error):
            stream.has_given_up = True
            return None
        return super()._follow(stream, error)

    def _check(self) -> None:
        (stream,) = self.streams
        table = self.world.table(_TARGET)
        if stream.has_given_up or not table.versions:
            return
        rows: dict[int, tuple[int, int, int]] = {row[0]: row for row in table.rows}
        if several := [key for key, count in Counter(row[0] for row in table.rows).items() if count > 1]:
            msg = f"the keys {several} have several rows: {table.rows}"
            raise WrongError(msg)
        deleted = {row[:2] for row in table.deleted}
        newest: dict[int, tuple[int, bool]] = {}
        for topic in self._topics:
            for partition in self.world.log.topics[topic]:
                for offset, entry in partition.history():
                    newest[self.world.key(entry.number)] = (entry.number, offset >= partition.begin)
        for key, (number, is_there) in newest.items():
            row = rows.get(key)
            is_right = (
                row is None or row[1] < 0
                if self.world.is_deleted(number)
                else (key, number) in deleted or (row is not None and row[1] == number)
            )
            if is_there and not is_right:
                msg = f"the last record of the key {key} is {number}, and its row is {row}"
                raise WrongError(msg)
        for key, number, mark in self._updates():
            if newest.get(key, (0,))[0] == number and rows[key][2] < mark:
                msg = f"others updated the row {(key, number)}, and it is {rows[key]} again"
                raise WrongError(msg)

    def _updates(self) -> set[tuple[int, int, int]]:
        """What others have made of rows, since the last RESTORE or DELETE."""
        found, before = set[tuple[int, int, int]](), ()
        for version in self.world.table(_TARGET).versions:
            if version.commit.operation == "UPDATE":
                found |= set(version.rows).difference(before)
            elif version.commit.operation in {"RESTORE", "DELETE"}:
                found.clear()
            before = version.rows
        return found
