"""The MERGE in memory: SQLite decides by the product's own statement which rows of a SimTable change."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dagster_kafka_flip.table import merge
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.sim_table import WINDOWS_SCHEMA, NoRows, SimPort

# A row is its key, its record's number (below 0 if it is of no record), and what others have made of it.
Row = tuple[int, int, int]

KEYED_SCHEMA = StructType([StructField("kafka_key", LongType()), *WINDOWS_SCHEMA.fields[:4]])
_CLAUSE = re.compile(r"WHEN (NOT )?MATCHED(?: AND (.*?))? THEN (DELETE|UPDATE|INSERT) ?")


class ChangeRows:
    """The records of a batch as changes, which are read when somebody looks."""

    schema = StructType([*KEYED_SCHEMA.fields, StructField("kafka_deleted", BooleanType())])

    def __init__(self, world: Any, read: Any) -> None:
        self.world = world
        self._read = read
        self.columns = self.schema.names

    def drop(self, *names: str) -> ChangeRows:
        left = ChangeRows(self.world, self._read)
        left.schema = StructType([field for field in self.schema.fields if field.name not in names])
        left.columns = left.schema.names
        return left

    def select(self, *_: str) -> ChangeRows:
        return self

    def limit(self, _: int) -> NoRows:
        return NoRows()

    def evaluate(self) -> list[int]:
        return self._read.evaluate()


class SimChanges(Changes):
    """A batch of changes, whose columns are those of the table."""

    def fitted(self, *_: Any) -> SimChanges:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self


def read(changes: Changes) -> merge.LatestChanges:
    """As the product's: the last change of each key, by offset."""
    rows: Any = changes.rows
    world = rows.world
    latest = {world.key(number): number for number in sorted(rows.evaluate(), key=lambda each: world.log.places[each])}
    ends = ((">=", min), ("<=", max)) if latest else ()
    bounds = [merge._bound("kafka_key", "bigint", operator, str(end(latest))) for operator, end in ends]
    numbers: Any = list(latest.values())
    return merge.LatestChanges(changes, numbers, len(latest), tuple(filter(None, bounds)))  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def isolated_session(session: Any, settings: Mapping[str, str]) -> Generator[Any]:
    """A session with further settings."""
    yield type(session)(session.world, settings)


def merge_into(session: Any, target: DeltaTarget, latest: merge.LatestChanges, _: Any) -> None:
    """As the product's `merge`."""
    numbers: Any = latest.rows
    world, statement = session.world, merge.statement(target, latest, "the_changes")
    port = SimPort(world.table(target), target, world.scheduler)

    def changed(rows: Sequence[Row]) -> tuple[set[Row], list[Row]]:
        return _changed(world, statement, rows, numbers)

    def may_conflict(rows: set[Row]) -> bool:
        keys = [world.key(number) for number in numbers]
        return any(min(keys) <= key <= max(keys) for key, _, _ in rows)

    port.merge(changed, may_conflict, session.conf)


def _changed(world: Any, statement: str, rows: Sequence[Row], numbers: Sequence[int]) -> tuple[set[Row], list[Row]]:
    """The rows that a MERGE removes or replaces, and those that it adds."""
    on, clauses = statement.split(" ON ", 1)[1].split(" WHEN ", 1)
    on, clauses = (re.sub(r"(\d)L\b", r"\1", text) for text in (on, f"WHEN {clauses}"))
    found = _CLAUSE.findall(clauses)
    old, new = "dagster_kafka_flip_table", "dagster_kafka_flip_changes"
    columns = ", ".join(f"`{name}`" for name in (*ChangeRows.schema.names, "place"))
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.create_function("raise_error", 1, _refuse)
        base.create_function("concat", -1, lambda *parts: "".join(map(str, parts)))
        for name, all_of in ((old, rows), (new, [(world.key(number), number, 0) for number in numbers])):
            base.execute(f"CREATE TABLE {name} ({columns})")
            told = [
                (key, number, *world.log.places.get(number, (None,) * 4)[:3], world.is_deleted(number), place)
                for place, (key, number, _) in enumerate(all_of)
            ]
            base.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?, ?)", told)
        matched = " ".join(f"WHEN {when or 'true'} THEN '{then}'" for no, when, then in found if not no)
        pairs = list(base.execute(f"SELECT {old}.place, {new}.place, CASE {matched} END FROM {old} JOIN {new} ON {on}"))
        when = next(when or "true" for no, when, _ in found if no)
        there = f"EXISTS (SELECT 1 FROM {old} WHERE {on})"
        inserted = [place for (place,) in base.execute(f"SELECT place FROM {new} WHERE {when} AND NOT {there}")]
    removed = {rows[place] for place, _, then in pairs if then is not None}
    added = [*(place for _, place, then in pairs if then == "UPDATE"), *inserted]
    return removed, [(world.key(numbers[place]), numbers[place], 0) for place in added]


def _refuse(mark: str) -> None:
    raise ValueError(mark)


Changed = Callable[[Sequence[Row]], tuple[set[Row], list[Row]]]
