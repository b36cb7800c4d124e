"""Stories of tables with a key: in the end each is what a fold of the log makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any, cast

from dagster_kafka_flip.errors import KafkaFlipError, UnavailableValueError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.ingestion.rebuild import rebuild
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.mode import Scd2, Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor
from tests.simulation.sim_log import Partition
from tests.simulation.sim_merge import KEY, Row
from tests.simulation.sim_table import SimTable
from tests.simulation.story import RESTORE_TO, Story, Stream
from tests.simulation.world import CONNECTION

_MODES = (Upsert(key=(KEY,)), Upsert(key=(KEY,), soft_delete=True), Scd2(key=(KEY,)))


class KeyedStory(Story):
    """The story of one seed in which a table follows keys."""

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, left_out)
        self.world.leaves_out = seed % 2 == 0
        mode = _MODES[seed // 2 % 3]
        self.target = DeltaTarget(table="simulated.k", mode=mode)
        self._is_history = isinstance(mode, Scd2)
        self._keeps_deleted = isinstance(mode, Upsert) and mode.soft_delete
        self._rebuilds = 0

    def _make_streams(self) -> None:
        super()._make_streams()
        one = self.streams[0]
        source = self._source(self._topics, OffsetsInitializer.earliest())
        self.streams = [Stream(source, self.target, one.limits, one.tolerated.difference(OTHER_OFFSETS))]

    def _actors(self) -> list[Actor]:
        rebuilds = self._lives("rebuild", self.random.choice((0, 0, 1, 3)), self._rebuild)
        return [*super()._actors(), rebuilds]

    def _table(self) -> SimTable | None:
        table = self.world.table(self.target)
        return table if table.versions else None

    def _events(self) -> list[tuple[str, Callable[[], str | None]]]:
        # Nobody can tell that a record which compaction took had a value that later ones leave out.
        compacts = [] if self.world.leaves_out else [("compacts", self._compact)]
        return [*super()._events(), *[("others update", self._others(self._update))] * 2, *compacts]

    def _compact(self) -> str:
        name, partition = self._partition()
        partition.compact()
        return name

    def _insert(self, table: SimTable) -> None:
        keys = {self.world.key(number) for number in self.world.log.places} - {row.key for row in table.rows}
        if keys:
            row = Row(-len(table.versions), self.random.choice(sorted(keys)), value=-len(table.versions))
            valid = {"since": self.world.now_ms(), "is_current": True} if self._is_history else {}
            table.insert(row._replace(deleted=False if self._keeps_deleted else None, **valid))

    def _update(self, table: SimTable) -> None:
        if table.rows:
            row = self.random.choice(table.rows)
            changed = row._replace(mark=len(table.versions))
            table.commit("UPDATE", {"predicate": '["a"]'}, [changed if each == row else each for each in table.rows])

    def _try(self, stream: Stream) -> None:
        # What is read again changes nothing.
        self._one_try([stream], OffsetsInitializer.earliest() if self.random.random() < 0.3 else None)

    def _rebuild(self) -> None:
        """Somebody builds the table again, beside it, and does what the messages say."""
        (stream,), session = self.streams, cast("Any", self.session)
        beside = f"{self.target.table}_{self._rebuilds}"
        try:
            with self._running(f"rebuilds the table in {beside}"):
                done = rebuild(
                    stream.source,
                    self.target,
                    beside,
                    spark=session,
                    connection=CONNECTION,
                    decoder=Decoder.of(None, None, None),
                    limits=stream.limits,
                )
        except KafkaFlipError as error:
            self._met(stream, error)
            if "staging table" in str(error):
                self._rebuilds += 1
            if "rebuild it again" in str(error) and (told := RESTORE_TO.search(str(error))) is not None:
                self.world.table(self.target).restore(int(told[1]))
        else:
            self._rebuilds += 1
            self.world.scheduler.note(f"has rebuilt the table in version {done.version}")

    def _end(self) -> None:
        super()._end()
        if self.random.random() < 0.3 and self.world.table(self.target).versions:
            self.world.scheduler.run([Actor("the last rebuild", self._rebuild)])
            super()._end()

    def _mixed(self, stream: Stream, told: Any) -> int | None:
        """A change that is read again is no newer than the row."""
        del stream, told

    def _follow(self, stream: Stream, error: KafkaFlipError) -> OffsetsInitializer | None:
        is_gone = self.world.table(self.target).deleted or any(
            map(self._is_lost, chain(*self.world.log.topics.values()))
        )
        if "into a new table" in str(error) or (isinstance(error, UnavailableValueError) and is_gone):
            stream.has_given_up = True
            return None
        return super()._follow(stream, error)

    # --- the fold ---------------------------------------------------------------------------------------------------

    def _is_lost(self, partition: Partition) -> bool:
        """Whether a log has lost records that the stream may not have read."""
        return partition.was_cut or partition.was_compacted or bool(partition.past)

    def _check(self) -> None:
        (stream,) = self.streams
        table = self.world.table(self.target)
        if stream.has_given_up or not table.versions:
            return
        rows: dict[int, list[Row]] = {}
        for row in sorted(table.rows, key=lambda row: (row.since or 0, self.world.log.offset(row.number))):
            rows.setdefault(row.key, []).append(row)
        current = Counter(row.key for row in table.rows if row.is_current in {None, True})
        assert not current or max(current.values()) == 1, f"a key has several rows: {table.rows}"
        for partition in chain(*self.world.log.topics.values()):
            of_keys: dict[int, list[int]] = {}
            for _, entry in partition.history():
                of_keys.setdefault(self.world.key(entry.number), []).append(entry.number)
            for key, numbers in of_keys.items():
                if self.world.log.places[numbers[-1]][2] >= partition.begin:
                    self._check_key(key, numbers, rows.get(key, []), is_lost=self._is_lost(partition))
        changed, inserted = self._of_others()
        assert inserted <= set(table.rows), f"a rebuild has removed rows of others: {inserted.difference(table.rows)}"
        for row in changed:
            for other in rows.get(row.key, []):
                is_kept = other.number != row.number or other.mark >= row.mark
                assert is_kept, f"others updated the row {row}, and it is {other} again"

    def _check_key(self, key: int, numbers: list[int], rows: list[Row], *, is_lost: bool) -> None:
        """Of a key whose records the stream may not all have seen, or that others have changed, the last row counts."""
        deleted = {row.number for row in self.world.table(self.target).deleted if row.key == key}
        wanted = self._fold(key, numbers)
        told = [row._replace(mark=0) for row in rows]
        is_others = any(min(row.number, row.value or 0) < 0 for row in rows) or bool(deleted)
        is_right = told == wanted or numbers[-1] in deleted
        if is_others or is_lost:
            # Of the stream's own, and valid.
            last, there = (
                [(row.number, row.deleted) for row in some[-1:] if row.is_current in {None, True} and row.number > 0]
                for some in (wanted, told)
            )
            is_right = is_right or last == there
        is_right = is_right and all(row.value is not None or row.deleted for row in rows)
        assert is_right, f"the records {numbers} of the key {key} make the rows {wanted}, and they are {rows}"

    def _fold(self, key: int, numbers: list[int]) -> list[Row]:
        """The rows that the records of a key make."""
        found, latest = list[Row](), 0
        for number in numbers:
            is_deleted, time_ms = self.world.is_deleted(number), self.world.log.places[number][3]
            if self._is_history:
                was_there = bool(found and found[-1].is_current)
                latest = max(latest, time_ms) if was_there or not is_deleted else latest
                if was_there:
                    found[-1] = found[-1]._replace(until=latest, is_current=False)
                new = Row(number, key, value=self.world.value(number), since=latest, is_current=True)
                found += [] if is_deleted else [new]
            elif self._keeps_deleted:
                value = (found[-1].value if found else None) if is_deleted else self.world.value(number)
                found = [Row(number, key, value=value, deleted=is_deleted)]
            else:
                found = [] if is_deleted else [Row(number, key, value=self.world.value(number))]
        return found

    def _of_others(self) -> tuple[set[Row], set[Row]]:
        """Rows that others changed, or inserted before a rebuild, and that nothing has removed or replaced since."""
        changed, inserted = set[Row](), set[Row]()
        for before, version in pairwise(self.world.table(self.target).versions):
            operation = version.commit.operation
            if operation == "MERGE":
                inserted &= set(version.rows)
            elif operation in {"RESTORE", "DELETE", "UPDATE"}:
                inserted.clear()
                changed = changed | set(version.rows).difference(before.rows) if operation == "UPDATE" else set()
            elif version.commit.parameters.get("mode") == "Overwrite":
                changed.clear()
                inserted |= {row for row in before.rows if row.number < 0}
                lost = {row.number for row in before.rows} - {row.number for row in version.rows}
                assert not self._is_history or not lost, f"a rebuild has removed the history of {lost}"
        return changed, inserted
