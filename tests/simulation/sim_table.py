"""SimTable: a Delta table in memory, with Delta's rules for concurrent commits, and the port to it."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.delta_log import TableNotThereError
from dagster_kafka_flip.table.document import STREAMS_PROPERTY, WINDOWS_PROPERTY
from dagster_kafka_flip.table.layout import mode_properties
from dagster_kafka_flip.table.local_log import TableDetails

if TYPE_CHECKING:
    from dagster_kafka_flip.table.interruptible import Hold
    from dagster_kafka_flip.table.target import DeltaTarget
    from tests.simulation.scheduler import Actor, Scheduler
    from tests.simulation.sim_log import SimLog

T = TypeVar("T")

SCHEMA = StructType([StructField("number", LongType())])
WINDOW = "kafka_window"
WINDOWS_SCHEMA = StructType(
    [
        *SCHEMA.fields,
        StructField("kafka_topic", StringType()),
        StructField("kafka_partition", IntegerType()),
        StructField("kafka_offset", LongType()),
        StructField("kafka_timestamp", TimestampType()),
        StructField(WINDOW, StringType()),
    ]
)
_ENGINE = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"


class SparkError(Exception):
    """An error that looks like Spark's own."""

    __module__ = "pyspark.errors.simulated"


class MetadataChangedException(SparkError):  # noqa: N818 - Delta's name
    """Delta's error for a commit after another one changed the table's properties."""


class ConcurrentTransactionException(SparkError):  # noqa: N818 - Delta's name
    """Delta's error for a commit after another one with the same transaction id."""


class ConcurrentAppendException(SparkError):  # noqa: N818 - Delta's name
    """Delta's error for a replacement after another one, or after a change of the files that it read."""


class Rows(Protocol):
    """The rows of a write."""

    schema: StructType

    def evaluate(self) -> list[Any]:
        """Reads the rows: numbers, in a table of windows each with its window's key."""
        ...


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
        versions: All versions since its creation; empty if there is no table.
        oldest: The oldest version in the history.
        has_lock: Whether the store has a lock, and the log is on this machine.
        holder: Who holds the lock.
        late: Writes that a Connect server still has to make.
        deleted: Rows that others have deleted.
        is_partitioned: Whether a table of windows is partitioned by them.
        windows_schema: The columns of a table of windows.
        schema: The columns of another one.
    """

    def __init__(self, name: str, now_ms: Callable[[], int], log: SimLog, *, has_lock: bool) -> None:
        self.name = name
        self.versions: list[Version] = []
        self.oldest = 0
        self.has_lock = has_lock
        self.holder: Actor | None = None
        self.late: list[Callable[[], None]] = []
        self.deleted: set[Any] = set()
        self.is_partitioned = False
        self.windows_schema = WINDOWS_SCHEMA
        self.schema = SCHEMA
        self._now_ms = now_ms
        self._log = log
        self._tables = 0

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    @property
    def rows(self) -> tuple[Any, ...]:
        return self.newest.rows if self.versions else ()

    def matching(self, rows: Sequence[Any], predicate: str) -> list[Any]:
        """The rows that a condition holds for: SQLite reads Spark's, but for times and escapes."""
        if not rows:
            return []
        predicate = re.sub(r"TIMESTAMP '([^']+)'", lambda found: str(_milliseconds(found[1])), predicate)
        columns = ", ".join(f"`{name}`" for name in WINDOWS_SCHEMA.names)
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            base.execute(f"CREATE TABLE t (place, {columns})")
            told = [(place, *self._columns(row)) for place, row in enumerate(rows)]
            base.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(told[0]))})", told)
            return [rows[place] for (place,) in base.execute(f"SELECT place FROM t WHERE {predicate} ORDER BY place")]

    def _columns(self, row: Any) -> tuple[Any, ...]:
        number, window = row if isinstance(row, tuple) else (row, None)
        return (number, *self._log.places.get(number, (None, None, None, None)), window)

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
        self.versions.append(replace(before, commit=commit, rows=tuple(rows), gone=len(self._log.gone), **changes))

    def create(self, properties: Mapping[str, str]) -> None:
        if not self.versions:
            self._tables += 1
            self.oldest = 0
            self.commit("CREATE TABLE", {"properties": str(dict(properties))}, (), properties=properties)

    def drop(self) -> None:
        self.versions = []

    def append(
        self, rows: Sequence[int], read_version: int, application: str, version: int, user_metadata: str
    ) -> None:
        """Commits a blind append, which conflicts with changed properties and with its own transaction alone."""
        self._check_transaction(read_version, application)
        self.commit(
            "WRITE",
            {"mode": "Append"},
            (*self.rows, *rows),
            metrics={"numOutputRows": str(len(rows)), "numOutputBytes": "1"},
            user_metadata=user_metadata,
            transactions={**self.newest.transactions, application: version},
        )

    def _check_transaction(self, read_version: int, application: str) -> None:
        for later in self.versions[read_version + 1 :]:
            if later.transactions.get(application) != self.versions[read_version].transactions.get(application):
                raise ConcurrentTransactionException(application)
            if later.commit.operation == "SET TBLPROPERTIES":
                msg = "[DELTA_METADATA_CHANGED] The metadata of the Delta table has been changed"
                raise MetadataChangedException(msg)

    def merge(
        self,
        changed: Any,
        may_conflict: Callable[[Any], bool],
        read_version: int,
        application: str,
        version: int,
        user_metadata: str,
    ) -> None:
        """Merges; conflicts with whatever else has changed files that have the keys, OPTIMIZE included."""
        self._check_transaction(read_version, application)
        read = self.versions[read_version].rows
        for later in self.versions[read_version + 1 :]:
            others = set(self.versions[later.commit.version - 1].rows).symmetric_difference(later.rows)
            if later.commit.operation == "OPTIMIZE" or may_conflict(others):
                raise ConcurrentAppendException(later.commit.operation)
        removed, added = changed(read)
        updated = {row[0] for row in removed} & {row[0] for row in added}
        counts = {"Inserted": len(added) - len(updated), "Updated": len(updated)}
        counts["Deleted"] = len(removed) - len(updated)
        self.commit(
            "MERGE",
            {"predicate": '["a condition"]'},
            (*(row for row in self.rows if row not in removed), *added),
            metrics={f"numTargetRows{what}": str(count) for what, count in counts.items()},
            user_metadata=user_metadata,
            transactions={**self.newest.transactions, application: version},
        )

    def replace(self, rows: Sequence[Any], read_version: int, predicate: str, user_metadata: str) -> None:
        """Replaces the rows of a condition; conflicts with whatever else than an append has changed rows or files."""
        removed = self.matching(self.rows, predicate)
        for later in self.versions[read_version + 1 :]:
            if later.commit.operation == "SET TBLPROPERTIES":
                msg = "[DELTA_METADATA_CHANGED] The metadata of the Delta table has been changed"
                raise MetadataChangedException(msg)
            if later.commit.parameters.get("mode") == "Append":
                continue
            before = self.versions[later.commit.version - 1].rows
            changed = list(set(before).symmetric_difference(later.rows))
            # In a table that is partitioned by windows, others' windows are in other files.
            if not self.is_partitioned or not changed or self.matching(changed, predicate):
                raise ConcurrentAppendException(later.commit.operation)
        if outside := set(rows) - set(self.matching(rows, predicate)):
            msg = f"[DELTA_REPLACE_WHERE_MISMATCH] {sorted(outside)}"
            raise SparkError(msg)
        if not rows and not removed:
            # Delta makes no commit of nothing.
            return
        # Rows that were appended since the read stay.
        read = set(self.matching(self.versions[read_version].rows, predicate))
        self.commit(
            "WRITE",
            {"mode": "Overwrite", "predicate": '["a condition"]'},
            (*(row for row in self.rows if row not in read), *rows),
            metrics={"numOutputRows": str(len(rows)), "numOutputBytes": "1", "numCopiedRows": "0"},
            user_metadata=user_metadata,
        )

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

    def check_session(self) -> None:
        """Every session is as it should be."""

    def check_writers(self, location: str, properties: Callable[[], Mapping[str, str] | None]) -> None:
        """Every store keeps writers apart."""

    def commits(self) -> Iterator[Commit]:
        def answer() -> list[Commit]:
            if not self._table.versions:
                raise TableNotThereError(self.target)
            return [each.commit for each in self._table.versions[self._table.oldest :]]

        yield from reversed(self._ask("its history", answer))

    def transaction_versions(self, location: str, newest: int) -> dict[str, int]:
        del location
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

    def no_rows(self, schema: StructType) -> Any:
        del schema
        return NoRows()

    def rows(self, version: int | None) -> Any:
        return _Frame(self._table, self._ask, self._version(version).rows)

    def count_rows(self, version: int | None) -> int:
        return self._ask("its number of rows", lambda: len(self._version(version).rows))

    def check_place_is_free(self) -> None:
        """Nothing else is there."""

    def check_bounds(self, times_ms: Iterable[int]) -> None:
        """No clock is set back."""

    def place_by_catalog(self) -> str:
        return ""

    def creation(self, schema: StructType) -> Callable[[], None]:
        del schema
        properties = {**self.target.properties, **mode_properties(self.target.mode)}
        if WINDOWS_PROPERTY not in properties:
            properties[STREAMS_PROPERTY] = "true"
        return lambda: self._scheduler.call("creates the table", lambda: self._table.create(properties), _write_failed)

    def change_of_properties(self, properties: Mapping[str, str]) -> Callable[[], None]:
        def change() -> None:
            changed = {**self._table.newest.properties, **properties}
            self._table.commit("SET TBLPROPERTIES", {}, self._table.rows, properties=changed)

        return lambda: self._scheduler.call("sets properties", change, _write_failed)

    def append(self, rows: Any, options: Mapping[str, str | int]) -> None:
        table, application, version = self._table, str(options["txnAppId"]), int(options["txnVersion"])
        if (read_version := self._begin(application, version)) is not None:
            self._commit(
                rows,
                lambda numbers: table.append(numbers, read_version, application, version, str(options["userMetadata"])),
            )

    def merge(self, changed: Any, may_conflict: Callable[[Any], bool], settings: Mapping[str, str]) -> None:
        delta = "spark.databricks.delta."
        application, version = settings[f"{delta}write.txnAppId"], int(settings[f"{delta}write.txnVersion"])
        if (read_version := self._begin(application, version)) is not None:
            document = settings[f"{delta}commitInfo.userMetadata"]
            self._commit(
                NoRows(),
                lambda _: self._table.merge(changed, may_conflict, read_version, application, version, document),
                " merged",
            )

    def _begin(self, application: str, version: int) -> int | None:
        def begin() -> int | None:
            self._table.details()
            is_done = self._table.newest.transactions.get(application, -1) >= version
            return None if is_done else len(self._table.versions) - 1

        read_version = self._scheduler.call("begins to write", begin, _write_failed)
        if read_version is None:
            self._scheduler.note("Delta skips the write")
        return read_version

    def replace(self, rows: Any, predicate: str | None, options: Mapping[str, str | int]) -> None:
        table = self._table
        assert predicate is not None, "rebuilds are not simulated"

        def begin() -> int:
            self._table.details()
            return len(table.versions) - 1

        read_version = self._scheduler.call("begins to write", begin, _write_failed)
        self._commit(
            rows,
            lambda found: table.replace(found, read_version, predicate, str(options["userMetadata"])),
            f" in place of {predicate}",
        )

    def _commit(self, rows: Any, change: Callable[[list[Any]], None], instead: str = "") -> None:
        """Reads the rows, and then makes the change, which a table in place of the one that was written to refuses."""
        made = self._table.details().id
        read = cast("Rows", rows).evaluate()
        what = f"commits version {len(self._table.versions)} with {read}{instead}"

        def commit() -> None:
            if self._table.details().id != made:
                msg = "the table was dropped meanwhile"
                raise SparkError(msg)
            change(read)

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
    def lock(self, location: str) -> Generator[None]:
        del location
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

    def run(self, action: Callable[[], None], tag: str, hold: Hold, session: Any = None) -> None:
        del tag, hold, session
        action()


class _Frame:
    """Rows of a version of a table, which are read when somebody looks."""

    def __init__(self, table: SimTable, ask: Callable[..., Any], rows: Sequence[Any]) -> None:
        self.table = table
        self._ask = ask
        self._rows = rows

    def where(self, predicate: str) -> _Frame:
        return _Frame(self.table, self._ask, self.table.matching(self._rows, predicate))

    def evaluate(self) -> list[Any]:
        return self._ask("its rows", lambda: list(self._rows))

    def isEmpty(self) -> bool:  # noqa: N802 - as Spark has it
        return not self.evaluate()


def _milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


class NoRows:
    """No rows."""

    schema = SCHEMA
    columns = SCHEMA.names

    def evaluate(self) -> list[int]:
        return []


def _no_answer() -> Exception:
    return TableError("the table can't be read: the store does not answer. Nothing was written. Run again")


def _write_failed() -> Exception:
    return SparkError("java.net.SocketException: Connection reset")
