"""The MERGE in memory: SQLite makes of a SimTable's rows what the product's own statement says."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple, cast

from pyspark.sql.types import BooleanType, LongType, StructField, StructType, TimestampType

from dagster_kafka_flip.table import merge
from dagster_kafka_flip.table.change_errors import UNAVAILABLE
from dagster_kafka_flip.table.changes import BEGAN, IS_CURRENT, ORIGIN, UNRESOLVED, VALID_FROM, VALID_TO, Changes
from dagster_kafka_flip.table.mode import Mode, Scd2, Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.sim_table import PLACE, Rows, SimPort, SparkError, as_values, database, raised

KEY, VALUE, DELETED = "kafka_key", "value", "kafka_deleted"


class Row(NamedTuple):
    """A row of a table with a key, or a change of one; of a history, one to add, or to end.

    `number` is that of its record, below 0 if it is of none; `value` is the record that its value comes from. `mark` is
    what others have made of it. Of a change, `origin` is the record of a kept value, `unresolved` what is unknown of
    it, and `began` the offset where the row began in the batch.
    """

    number: int
    key: int
    mark: int = 0
    value: int | None = None
    deleted: bool | None = None
    since: int | None = None
    until: int | None = None
    is_current: bool | None = None
    origin: int | None = None
    unresolved: str = ""
    began: int | None = None
    ends: bool | None = None


def keyed_schema(mode: Mode) -> StructType:
    fields = [StructField(KEY, LongType()), StructField(VALUE, LongType()), *PLACE]
    if isinstance(mode, Upsert) and mode.soft_delete:
        fields.append(StructField(DELETED, BooleanType()))
    if isinstance(mode, Scd2):
        fields += [StructField(name, TimestampType()) for name in (VALID_FROM, VALID_TO)]
        fields.append(StructField(IS_CURRENT, BooleanType()))
    return StructType(fields)


class ChangeRows(Rows):
    """The records of a batch as changes."""

    def __init__(self, world: Any, evaluate: Callable[[], list[int]]) -> None:
        super().__init__(world.log, StructType([StructField(KEY, LongType())]), evaluate)
        self.world = world


class SimChanges(Changes):
    """A batch of changes, whose columns are those of the table."""

    def fitted(self, *_: Any) -> SimChanges:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self

    @property
    def landed(self) -> Any:
        rows: Any = self.rows
        return Rows(rows.log, keyed_schema(cast("Any", self.mode)))


def read(changes: Changes) -> merge.LatestChanges:
    """As the product's: fills in what was left out; takes the last change of each key, of a history all."""
    rows: Any = changes.rows
    world = rows.world
    numbers = sorted(rows.evaluate(), key=lambda number: (world.key(number), world.log.places[number]))
    found: list[Row] = []
    for key, of_key in groupby(numbers, world.key):
        life = filled(world, key, list(of_key))
        found += life if changes.is_history else [_last(life, keeps_deleted=changes.keeps_deleted)]
    keys = {change.key for change in found}
    ends = ((">=", min), ("<=", max)) if keys else ()
    bounds = [merge._bound(KEY, "bigint", operator, str(end(keys))) for operator, end in ends]
    if any(map(world.is_left_out, numbers)):
        changes = replace(changes, left_out=(VALUE,))
    return merge.LatestChanges(changes, found, len(keys), tuple(filter(None, bounds)))  # pyright: ignore[reportArgumentType]


def filled(world: Any, key: int, numbers: Sequence[int]) -> list[Row]:
    """The changes of a key, in their order."""
    found: list[Row] = []
    value = began = None
    for number in numbers:
        deleted = world.is_deleted(number)
        if found and found[-1].deleted:
            value, began = None, world.log.places[number][2]
        if not deleted and not world.is_left_out(number):
            value = number
        row = Row(number, key, value=number if deleted else value, deleted=deleted, origin=number, began=began)
        found.append(row._replace(unresolved="" if row.value else VALUE))
    return found


def _last(changes: Sequence[Row], *, keeps_deleted: bool) -> Row:
    last = changes[-1]
    if not (keeps_deleted and last.deleted):
        return last
    lives = (change for change in reversed(changes) if not change.deleted)
    kept = next(lives, Row(last.number, last.key))
    return kept._replace(number=last.number, deleted=True)


def versions(log: Any, changes: Sequence[Row], table: Iterable[Row]) -> list[Row]:
    """As the product's: the rows of a history that changes add and end."""
    found: list[Row] = []
    last = dict[int, Row]()
    for row in sorted(table, key=lambda row: (log.offset(row.number), row.is_current, row.since)):
        last[row.key] = row
    for key, of_key in groupby(changes, attrgetter("key")):
        before = last.get(key, Row(-1, key, is_current=False))
        offset, was_there = log.offset(before.number), before.is_current
        times = [time for time in (before.since, before.until) if time is not None]
        made: list[Row] = []
        for change in of_key:
            if log.offset(change.number) <= offset:
                continue
            if was_there or not change.deleted:
                times.append(log.places[change.number][3])
            was_there, value = not change.deleted, change.value
            if change.unresolved:
                value = before.value
                if not before.is_current or value is None or (change.began is not None and offset < change.began):
                    msg = f"[dagster-kafka-flip: {UNAVAILABLE}] {change.number} [end]"
                    raise SparkError(msg)
            made.append(change._replace(value=value, since=max(times, default=None), ends=False))
        if made and before.is_current:
            found.append(Row(before.number, key, until=made[0].since, ends=True))
        for change, until in zip_longest(made, (each.since for each in made[1:])):
            found += [] if change.deleted else [change._replace(until=until, is_current=until is None)]
    return found


@contextlib.contextmanager
def isolated_session(session: Any, settings: Mapping[str, str]) -> Generator[Any]:
    """A session with further settings."""
    yield type(session)(session.world, settings)


def merge_into(session: Any, target: DeltaTarget, latest: merge.LatestChanges, _: Any) -> None:
    """As the product's `merge`."""
    changes: Any = latest.rows
    world, statement = session.world, merge.statement(target, latest, "the_changes")
    port = SimPort(world.table(target), target, world.scheduler)

    def changed(rows: Sequence[Row]) -> tuple[set[Row], list[Row]]:
        made = versions(world.log, changes, rows) if latest.changes.is_history else changes
        return _changed(world.log, statement, rows, made)

    def may_conflict(rows: set[Row]) -> bool:
        keys = [change.key for change in changes]
        return any(min(keys) <= row.key <= max(keys) for row in rows)

    port.merge(changed, may_conflict, session.conf)


_OLD, _NEW, _OFFSET = merge._TABLE, merge._CHANGES, "kafka_offset"
_CLAUSE = re.compile(
    r"WHEN (NOT )?MATCHED(?: AND (.*?))? THEN (?:(DELETE)|UPDATE SET (.*)|INSERT \((.*?)\) VALUES \((.*)\))"
)
_SET = r"(?:^|, )`(\w+)` = "
_FIELDS = dict(
    zip((KEY, VALUE, DELETED, VALID_FROM, VALID_TO, IS_CURRENT), Row._fields[1:2] + Row._fields[3:8], strict=True)
)
_OF_ROWS = ("place", *_FIELDS, *(field.name for field in PLACE))
_OF_ORIGINS = [f"{ORIGIN}.{field.name}" for field in PLACE]
_OF_CHANGES = (*_OF_ROWS, UNRESOLVED, BEGAN, ORIGIN, *_OF_ORIGINS, merge.ENDS)


@functools.cache
def _clauses(text: str) -> list[tuple[bool, str, list[str], str]]:
    """The clauses of a statement: whether it is of rows that match, when, columns, and their values after commas."""
    found: list[tuple[bool, str, list[str], str]] = []
    for clause in re.split(r" (?=WHEN (?:NOT )?MATCHED)", text):
        parts = _CLAUSE.fullmatch(clause)
        assert parts is not None, clause
        no, when, _, sets, names, values = parts.groups()
        columns = re.findall(r"`(\w+)`", names) if names else re.findall(_SET, sets or "")
        found.append((not no, when or "true", columns, f", {values}" if names else re.sub(_SET, ", ", sets or "")))
    return found


def _changed(log: Any, statement: str, rows: Sequence[Row], changes: Sequence[Row]) -> tuple[set[Row], list[Row]]:
    """The rows that a MERGE removes or replaces, and those that it adds."""
    text = re.sub(r"(\d)L\b", r"\1", statement.split(" ON ", 1)[1]).replace("<=>", "IS")
    # A struct's field is a column.
    on, clauses = re.sub(rf"\.{ORIGIN}\.`(\w+)`", rf".`{ORIGIN}.\1`", text).split(" WHEN ", 1)
    found = _clauses(f"WHEN {clauses}")

    def common(place: int, row: Row) -> tuple[Any, ...]:
        return (place, *(getattr(row, field) for field in _FIELDS.values()), *log.place(row.number))

    of_rows = [common(place, row) for place, row in enumerate(rows)]
    of_changes = [
        (*common(place, each), each.unresolved, each.began, each.origin, *log.place(each.origin), each.ends)
        for place, each in enumerate(changes)
    ]
    old, new = as_values(_OLD, _OF_ROWS, of_rows), as_values(_NEW, _OF_CHANGES, of_changes)
    case = " ".join(f"WHEN {when} THEN {number}" for number, (matches, when, *_) in enumerate(found) if matches)
    # What does not match must not be asked: it may raise an error.
    chosen = f"CASE WHEN {on} THEN CASE {case} END END"
    removed, added = list[Row](), list[Row]()
    for number, (matches, when, columns, values) in enumerate(found):
        places = f"{_NEW}.place{values} FROM"
        query = f"SELECT {_OLD}.place, {places} {_OLD}, {_NEW} WHERE {chosen} = {number}"
        if not matches:
            query = f"SELECT -1, {places} {_NEW} WHERE {when} AND NOT EXISTS (SELECT 1 FROM {_OLD} WHERE {on})"
        for place, change, *made in _asked(f"WITH {old[0]}, {new[0]} {query}", [*old[1], *new[1]]):
            row = rows[place] if matches else Row(0, 0)
            removed += [row] if matches else []
            if columns:
                sets = {_FIELDS[name]: value for name, value in zip(columns, made, strict=True) if name in _FIELDS}
                own = {"number": changes[change].number, "mark": 0} if _OFFSET in columns else {}
                added.append(row._replace(**sets, **own))
    if len(removed) > len(set(removed)):
        msg = "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE]"
        raise SparkError(msg)
    return set(removed), added


def _asked(query: str, given: Sequence[Any]) -> list[Any]:
    try:
        return database().execute(query, given).fetchall()
    except sqlite3.OperationalError as error:
        raise SparkError(raised.pop() if raised else str(error)) from None
