"""SimTable: a Delta table in memory, with Delta's rules for concurrent commits, and the port to it."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.delta_log import TableNotThereError
from dagster_kafka_flip.table.document import STREAMS_PROPERTY, WINDOWS_PROPERTY
from dagster_kafka_flip.table.layout import mode_properties
from dagster_kafka_flip.table.local_log import TableDetails

if TYPE_CHECKING:
    from dagster_kafka_flip.table.target import DeltaTarget
    from tests.simulation.scheduler import Actor, Scheduler
    from tests.simulation.sim_log import SimLog

T = TypeVar("T")

SCHEMA = StructType([StructField("number", LongType())])
PLACE = (
    StructField("kafka_topic", StringType()),
    StructField("kafka_partition", IntegerType()),
    StructField("kafka_offset", LongType()),
    StructField("kafka_timestamp", TimestampType()),
)
RECORDS_SCHEMA = StructType([*SCHEMA.fields, *PLACE])
WINDOW = "kafka_window"
WINDOWS_SCHEMA = StructType([*RECORDS_SCHEMA.fields, StructField(WINDOW, StringType())])
_ENGINE = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"


class SparkError(Exception):
    """An error that looks like Spark's own."""

    __module__ = "pyspark.errors.simulated"


# Delta's errors after another commit, which the product knows by their names: one that changed the properties, one with
# the same transaction id, and one that changed what was read.
MetadataChangedException, ConcurrentTransactionException, ConcurrentAppendException = (
    type(name, (SparkError,), {})
    for name in ("MetadataChangedException", "ConcurrentTransactionException", "ConcurrentAppendException")
)

# What a statement has raised: SQLite's own error doesn't tell.
raised: list[str] = []


@functools.cache
def database() -> sqlite3.Connection:
    """SQLite, which reads Spark's conditions and statements, but for times and escapes."""

    def fail(text: str) -> None:
        raised.append(text)
        raise ValueError

    base = sqlite3.connect(":memory:")
    base.create_function("raise_error", 1, fail)
    base.create_function("concat", -1, lambda *parts: "".join(map(str, parts)))
    # An array is a text here.
    base.create_function("size", 1, lambda array: -1 if array is None else len(array.split()))
    base.create_function("array_contains", 2, lambda array, one: None if array is None else one in array.split())
    base.create_function("array_join", 2, lambda array, between: between.join(array.split()))
    return base


def as_values(name: str, columns: Iterable[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """Rows as a table of a query, and its parameters."""
    names = [f"`{column}`" for column in columns]
    line = f"({', '.join('?' * len(names))})"
    values = f"VALUES {', '.join([line] * len(rows))}" if rows else f"SELECT {', '.join(['NULL'] * len(names))} LIMIT 0"
    return f"{name}({', '.join(names)}) AS ({values})", [value for row in rows for value in row]


def matching(log: SimLog, rows: Sequence[Any], predicate: str) -> list[Any]:
    """The rows that a condition holds for."""
    if not rows or predicate == "true":
        return list(rows)
    predicate = re.sub(r"TIMESTAMP '([^']+)'", lambda found: str(_milliseconds(found[1])), predicate)
    told: list[tuple[Any, ...]] = []
    for place, row in enumerate(rows):
        number, window = row[:2] if isinstance(row, tuple) else (row, None)
        told.append((place, number, *log.place(number), window))
    table, given = as_values("t", ("place", *WINDOWS_SCHEMA.names), told)
    found = database().execute(f"WITH {table} SELECT place FROM t WHERE {predicate} ORDER BY place", given)
    return [rows[place] for (place,) in found]


class Rows:
    """Rows that are read when somebody looks: numbers; of a table of windows, or with a key, tuples with these."""

    def __init__(self, log: SimLog, schema: StructType, evaluate: Callable[[], list[Any]] = list) -> None:
        self.log, self.schema, self.columns = log, schema, schema.names
        self.evaluate = evaluate

    def where(self, predicate: str) -> Rows:
        return Rows(self.log, self.schema, lambda: matching(self.log, self.evaluate(), predicate))

    def limit(self, _: int) -> Rows:
        return Rows(self.log, self.schema)

    def count(self) -> int:
        return len(self.evaluate())

    def isEmpty(self) -> bool:  # noqa: N802 - as Spark has it
        return not self.evaluate()


@dataclass(frozen=True)
class Version:
    """One version of a table; `gone` is how many records the logs had lost by then."""

    commit: Commit
    rows: tuple[Any, ...]
    transactions: Mapping[str, int] = field(default_factory=dict[str, int])
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    gone: int = 0


class SimTable:
    """A table.

    Attributes:
        versions: All versions since its creation, of which the history begins at the `oldest`; empty without a table.
        has_lock: Whether the store has a lock, and the log is on this machine.
        late: Writes that a Connect server still has to make.
        deleted: Rows that others have deleted.
        is_partitioned: Whether a table of windows is partitioned by them.
    """

    def __init__(
        self, name: str, now_ms: Callable[[], int], log: SimLog, *, has_lock: bool, schema: StructType = SCHEMA
    ) -> None:
        self.name = name
        self.versions: list[Version] = []
        self.oldest = 0
        self.has_lock = has_lock
        self.holder: Actor | None = None
        self.late: list[Callable[[], None]] = []
        self.deleted: set[Any] = set()
        self.is_partitioned = False
        self.windows_schema = WINDOWS_SCHEMA
        self.schema = schema
        self.log = log
        self._now_ms = now_ms
        self._tables = 0

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    @property
    def rows(self) -> tuple[Any, ...]:
        return self.newest.rows if self.versions else ()

    def commit(
        self,
        operation: str,
        parameters: Mapping[str, str | None],
        rows: Sequence[Any],
        *,
        metrics: Mapping[str, str] | None = None,
        user_metadata: str | None = None,
        **changes: Any,
    ) -> None:
        """Adds a version."""
        commit = Commit(
            len(self.versions), operation, parameters, metrics or {}, user_metadata, self._now_ms(), _ENGINE
        )
        before = self.versions[-1] if self.versions else Version(commit, ())
        self.versions.append(replace(before, commit=commit, rows=tuple(rows), gone=len(self.log.gone), **changes))

    def create(self, properties: Mapping[str, str]) -> None:
        if not self.versions:
            self._tables += 1
            self.oldest = 0
            self.commit("CREATE TABLE", {"properties": str(dict(properties))}, (), properties=properties)

    def drop(self) -> None:
        self.versions = []

    def insert(self, row: Any) -> None:
        self.commit("WRITE", {"mode": "Append"}, (*self.rows, row), metrics={"numOutputRows": "1"})

    def empty(self) -> None:
        self.commit("DELETE", {"predicate": "[]"}, ())

    def optimize(self) -> None:
        self.commit("OPTIMIZE", {"predicate": "[]"}, self.rows)

    def set_property(self) -> None:
        self.commit("SET TBLPROPERTIES", {"properties": "{}"}, self.rows)

    def append(self, rows: Sequence[int], read_version: int, fence: Fence) -> None:
        """Commits a blind append, which conflicts with changed properties and with its own transaction alone."""
        self._write("WRITE", {"mode": "Append"}, (*self.rows, *rows), fence, read_version, _written(rows))

    def _write(
        self,
        operation: str,
        parameters: Mapping[str, str | None],
        rows: Sequence[Any],
        fence: Fence,
        read_version: int,
        metrics: Mapping[str, str],
    ) -> None:
        application, version, document = fence
        for later in self.versions[read_version + 1 :]:
            if later.transactions.get(application) != self.versions[read_version].transactions.get(application):
                raise ConcurrentTransactionException(application)
            if later.commit.operation == "SET TBLPROPERTIES":
                msg = "[DELTA_METADATA_CHANGED] The metadata of the Delta table has been changed"
                raise MetadataChangedException(msg)
        transactions = {**self.newest.transactions, **({application: version} if application else {})}
        self.commit(operation, parameters, rows, metrics=metrics, user_metadata=document, transactions=transactions)

    def merge(self, changed: Any, may_conflict: Callable[[Any], bool], read_version: int, fence: Fence) -> None:
        """Merges; conflicts with whatever else has changed files that have the keys, OPTIMIZE included."""
        for later in self.versions[read_version + 1 :]:
            others = set(self.versions[later.commit.version - 1].rows).symmetric_difference(later.rows)
            if later.commit.operation == "OPTIMIZE" or may_conflict(others):
                raise ConcurrentAppendException(later.commit.operation)
        removed, added = changed(self.versions[read_version].rows)
        updated = len({row.key for row in removed} & {row.key for row in added})
        counts = {"Inserted": len(added) - updated, "Updated": updated, "Deleted": len(removed) - updated}
        rows = (*(row for row in self.rows if row not in removed), *added)
        metrics = {f"numTargetRows{what}": str(count) for what, count in counts.items()}
        self._write("MERGE", {"predicate": '["a condition"]'}, rows, fence, read_version, metrics)

    def replace(self, rows: Sequence[Any], read_version: int, predicate: str, fence: Fence) -> None:
        """Replaces the rows of a condition; conflicts with whatever else than an append has changed rows or files."""
        for later in self.versions[read_version + 1 :]:
            if later.commit.parameters.get("mode") == "Append" or later.commit.operation == "SET TBLPROPERTIES":
                continue
            before = self.versions[later.commit.version - 1].rows
            changed = list(set(before).symmetric_difference(later.rows))
            # In a table that is partitioned by windows, others' windows are in other files.
            if not self.is_partitioned or not changed or matching(self.log, changed, predicate):
                raise ConcurrentAppendException(later.commit.operation)
        if outside := set(rows) - set(matching(self.log, rows, predicate)):
            msg = f"[DELTA_REPLACE_WHERE_MISMATCH] {sorted(outside)}"
            raise SparkError(msg)
        if not rows and not matching(self.log, self.rows, predicate):
            # Delta makes no commit of nothing.
            return
        # Rows that were appended since the read stay.
        read = set(matching(self.log, self.versions[read_version].rows, predicate))
        kept = [row for row in self.rows if row not in read]
        condition = '["true"]' if predicate == "true" else '["a condition"]'
        parameters = {"mode": "Overwrite", "predicate": condition}
        self._write("WRITE", parameters, (*kept, *rows), fence, read_version, {**_written(rows), "numCopiedRows": "0"})

    def restore(self, version: int) -> None:
        """RESTORE keeps the transactions of what it undoes. To the newest version it makes no commit."""
        if version == len(self.versions) - 1:
            return
        self.commit("RESTORE", {"version": str(version)}, self.versions[version].rows)

    def details(self) -> TableDetails:
        if not self.versions:
            msg = "the table can't be described: it is not there"
            raise TableError(msg)
        return TableDetails(f"{self.name}-id-{self._tables}", (), self.newest.properties)


# The id of the transaction, its number, and the document.
Fence = tuple[str, int, str]


def _written(rows: Sequence[Any]) -> dict[str, str]:
    return {"numOutputRows": str(len(rows)), "numOutputBytes": "1"}


class SimPort:
    """The port to a SimTable."""

    def __init__(self, table: SimTable, target: DeltaTarget, scheduler: Scheduler) -> None:
        self.target = target
        self._table = table
        self._scheduler = scheduler
        self._columns = table.windows_schema if WINDOWS_PROPERTY in target.properties else table.schema

    def _ask(self, what: str, answer: Callable[[], T]) -> T:
        return self._scheduler.call(f"asks the table for {what}", answer, _no_answer)

    def _version(self, version: int | None) -> Version:
        versions = self._table.versions
        if not versions or (version or 0) >= len(versions):
            msg = f"there is no version {version} of the table. Run again"
            raise TableError(msg)
        return versions[-1 if version is None else version]

    def _agree(self, *_: object) -> None:
        """Nothing speaks against it."""

    check_session = check_writers = check_place_is_free = check_times_of_partitions = check_bounds = _agree
    place_by_catalog = _agree

    def commits(self) -> Iterator[Commit]:
        def answer() -> list[Commit]:
            if not self._table.versions:
                raise TableNotThereError(self.target)
            return [each.commit for each in self._table.versions[self._table.oldest :]]

        yield from reversed(self._ask("its history", answer))

    def transaction_versions(self, _: str, newest: int) -> dict[str, int]:
        return self._ask("its transactions", lambda: dict(self._version(newest).transactions))

    def details(self) -> TableDetails:
        return self._ask("its properties", self._table.details)

    def detail(self, *_: str) -> Any:
        return {"location": f"simulated://{self.target}", "name": str(self.target)}

    def schema(self) -> StructType:
        def answer() -> StructType:
            self._table.details()
            return self._columns

        return self._ask("its columns", answer)

    def no_rows(self, schema: StructType) -> Rows:
        return Rows(self._table.log, schema)

    def rows(self, version: int | None) -> Rows:
        found = self._version(version).rows
        return Rows(self._table.log, self._columns, lambda: self._ask("its rows", lambda: list(found)))

    def count_rows(self, version: int | None) -> int:
        return self._ask("its number of rows", lambda: len(self._version(version).rows))

    def creation(self, _: StructType) -> Callable[[], None]:
        properties = {**self.target.properties, **mode_properties(self.target.mode)}
        if WINDOWS_PROPERTY not in properties:
            properties[STREAMS_PROPERTY] = "true"
        return lambda: self._scheduler.call("creates the table", lambda: self._table.create(properties), _write_failed)

    def change_of_properties(self, properties: Mapping[str, str]) -> Callable[[], None]:
        def change() -> None:
            changed = {**self._table.newest.properties, **properties}
            self._table.commit("SET TBLPROPERTIES", {}, self._table.rows, properties=changed)

        return lambda: self._scheduler.call("sets properties", change, _write_failed)

    def append(self, rows: Rows, options: Mapping[str, str | int]) -> None:
        self._write(rows, options, self._table.append)

    def merge(self, changed: Any, may_conflict: Callable[[Any], bool], settings: Mapping[str, str]) -> None:
        options = {name.rpartition(".")[2]: value for name, value in settings.items()}

        def merge(_: list[Any], read_version: int, fence: Fence) -> None:
            self._table.merge(changed, may_conflict, read_version, fence)

        self._write(Rows(self._table.log, self._columns), options, merge, " merged")

    def replace(self, rows: Rows, predicate: str | None, options: Mapping[str, str | int]) -> None:
        def replace(found: list[Any], read_version: int, fence: Fence) -> None:
            self._table.replace(found, read_version, predicate or "true", fence)

        self._write(rows, options, replace, f" in place of {predicate or 'all'}")

    def _write(
        self,
        rows: Rows,
        options: Mapping[str, str | int],
        change: Callable[[list[Any], int, Fence], None],
        instead: str = "",
    ) -> None:
        """Reads the rows, and then makes the change, which a table in place of the one that was written to refuses."""
        application, version = str(options.get("txnAppId", "")), int(options.get("txnVersion", 0))

        def begin() -> int | None:
            self._table.details()
            is_done = self._table.newest.transactions.get(application, -1) >= version
            return None if is_done else len(self._table.versions) - 1

        read_version = self._scheduler.call("begins to write", begin, _write_failed)
        if read_version is None:
            self._scheduler.note("Delta skips the write")
            return
        made = self._table.details().id
        read = rows.evaluate()
        what = f"commits version {len(self._table.versions)} with {read}{instead}"

        def commit() -> None:
            if self._table.details().id != made:
                msg = "the table was dropped meanwhile"
                raise SparkError(msg)
            change(read, read_version, (application, version, str(options["userMetadata"])))

        if not self._table.has_lock and self._scheduler.random.random() < self._scheduler.chances.fails_after:
            # A Connect server goes on when its client is lost.
            def commit_late() -> None:
                with contextlib.suppress(SparkError, TableError):
                    commit()

            self._table.late.append(commit_late)
            self._scheduler.note("loses the server, which goes on writing")
            msg = "RETRIES_EXCEEDED: the server does not answer"
            raise SparkError(msg)
        self._scheduler.call(what, commit, _write_failed)

    @contextlib.contextmanager
    def lock(self, _: str) -> Generator[None]:
        if not self._table.has_lock:
            yield
            return
        me = self._scheduler.actor
        self._scheduler.wait(lambda: self._table.holder is None, "for the table's lock")
        self._table.holder = me
        try:
            yield
        finally:
            # The lock of a dead process is gone already, and somebody else may have it.
            if self._table.holder is me and not me.is_dead:
                self._table.holder = None

    def run(self, action: Callable[[], None], *_: Any) -> None:
        action()


def _milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _no_answer() -> Exception:
    return TableError("the table can't be read: the store does not answer. Nothing was written. Run again")


def _write_failed() -> Exception:
    return SparkError("java.net.SocketException: Connection reset")
