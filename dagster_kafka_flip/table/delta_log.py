"""Reads a table's log through Spark: its history, its details, and the transactions of its commits."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.history import FIRST_PAGE
from dagster_kafka_flip.table.interruptible import retried, warned_of_silence
from dagster_kafka_flip.table.local_log import TableDetails, details_at, is_absent, is_local, newest_commits
from dagster_kafka_flip.table.spark_error import CHECK_ACCESS, is_not_there, is_sparks_own, told
from dagster_kafka_flip.table.sql import literal
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)


class TableNotThereError(TableError):
    """The table does not exist: nobody has made it yet, or somebody dropped it."""

    def __init__(self, target: DeltaTarget) -> None:
        super().__init__(
            f"there is no Delta table {target} any more",
            "If it was dropped by mistake, put its folder back with its _delta_log; otherwise the next run creates a "
            "new table. Then run again",
        )


_T = TypeVar("_T")


def asked(what: str, finding: str, ask: Callable[[], _T]) -> _T:
    """Asks Spark about a table, and again after transient errors of its store or its catalog."""
    try:
        with warned_of_silence(_logger, what):
            return retried(_logger, what, ask)
    except Exception as error:
        if not is_sparks_own(error):
            raise
        raise TableError(*told(finding, error, CHECK_ACCESS)) from error


_PATTERN_LETTER = re.compile(r"[\\*?{}\[\]]")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")

_TRANSACTIONS = "txn STRUCT<appId: STRING, version: BIGINT>"


class TableLog:
    """What Spark, or the log itself where it is on this machine, tells of one table."""

    def __init__(self, spark: SparkSession, target: DeltaTarget) -> None:
        self._spark = spark
        self.target = target

    def commits(self) -> Iterator[Commit]:
        """Yields the table's commits, newest first. Excludes versions that are created meanwhile."""
        here = is_local(self._spark, self.target)

        def read(limit: int) -> list[Commit]:
            if here and is_absent(self.target.location):
                raise TableNotThereError(self.target)
            found = newest_commits(self.target.location, limit) if here else None
            if found is not None:
                return found
            finding = f"the history of the table {self.target} can't be read"
            return asked(f"reading the history of {self.target}", finding, lambda: self._read_page(limit))

        return paged(read)

    def _read_page(self, limit: int) -> list[Commit]:
        try:
            rows = (
                self._spark.sql(f"DESCRIBE HISTORY {self.target.identifier} LIMIT {limit}")
                .selectExpr(
                    "version",
                    "operation",
                    "operationParameters",
                    "operationMetrics",
                    "userMetadata",
                    "engineInfo",
                    # As a number: a timestamp would be converted to Python's time zone.
                    "unix_millis(timestamp) AS timestamp_ms",
                )
                .collect()
            )
        except Exception as error:
            if is_not_there(error):
                raise TableNotThereError(self.target) from error
            raise
        return [
            Commit(
                version=row["version"],
                operation=row["operation"],
                parameters=row["operationParameters"] or {},
                metrics=row["operationMetrics"] or {},
                user_metadata=row["userMetadata"],
                timestamp_ms=row["timestamp_ms"],
                engine=row["engineInfo"],
            )
            for row in rows
        ]

    def details(self) -> TableDetails:
        """The table's id, partition columns and properties. Spark's way counts the table's files, a job of its own."""
        if is_local(self._spark, self.target) and (found := details_at(self.target.location)):
            return found[1]
        # SHOW TBLPROPERTIES hides what looks like a secret or an address: a topic's id may have "url" in it.
        row = self.detail("id", "partitionColumns", "properties")
        return TableDetails(str(row["id"]), tuple(row["partitionColumns"]), dict(row["properties"] or {}))

    def detail(self, *columns: str) -> Any:
        describe = f"DESCRIBE DETAIL {self.target.identifier}"
        (row,) = self.described(lambda: self._spark.sql(describe).select(*columns).collect())
        return row

    def described(self, describe: Callable[[], _T]) -> _T:
        return asked(f"describing {self.target}", f"the table {self.target} can't be described", describe)

    def transaction_versions(self, location: str, newest: int) -> dict[str, int]:
        """By transaction id at a version: from the last checkpoint, whose sidecars have none, and commits after it."""
        folder = f"{location.rstrip('/')}/_delta_log"
        # Spark's readers interpret these characters of a path as patterns.
        readable = _PATTERN_LETTER.sub(r"\\\g<0>", folder)
        finding = f"the log of the table {self.target} ({folder}) can't be read"
        spark = self._spark

        def read() -> dict[str, int]:
            paths = [row["path"] for row in spark.read.format("binaryFile").load(readable).select("path").collect()]
            names = _files([path.rpartition("/")[2] for path in paths], newest, f"{self.target} ({folder})")
            reader = spark.read.schema(_TRANSACTIONS).option("mode", "FAILFAST")
            found: list[tuple[int, str, int]] = []
            for suffix in (".json", ".parquet"):
                if files := [f"{readable}/{name}" for name in names if name.endswith(suffix)]:
                    rows = reader.json(files) if suffix == ".json" else reader.parquet(*files)
                    rows = rows.selectExpr("_metadata.file_name", "txn.appId", "txn.version")
                    ours = f"startswith(appId, {literal(TRANSACTION_PREFIX)})"
                    for file, application, version in rows.where(ours).collect():
                        found.append((int(file[:20]), application, version))
            return {application: version for _, application, version in sorted(found)}

        return asked(f"reading the log of {self.target}", finding, read)


def paged(page_of: Callable[[int], Sequence[Commit]], first_page: int = FIRST_PAGE) -> Iterator[Commit]:
    """Yields all commits of a history that only returns its newest ones, without duplicates, newest first."""
    oldest: int | None = None
    limit = first_page
    while oldest is None or oldest > 0:
        page = page_of(limit)
        # Commits created since the first page shift the others back.
        fresh = [commit for commit in page if oldest is None or commit.version < oldest]
        yield from fresh
        if len(page) < limit:
            return
        if fresh:
            oldest = fresh[-1].version
        limit *= 10


def _files(names: Iterable[str], newest: int, table: str) -> list[str]:
    """The last checkpoint, and the commits after it, up to a version."""
    commits: dict[int, str] = {}
    checkpoints: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if (match := _COMMIT.fullmatch(name)) is not None:
            commits[int(match[1])] = name
        elif (match := _CHECKPOINT.fullmatch(name)) is not None and match[3] is None:
            checkpoints[int(match[1]), 1] = [name]
        elif match is not None:
            checkpoints.setdefault((int(match[1]), int(match[3])), []).append(name)
    # A checkpoint may be incomplete if its writer died.
    whole = {version: found for (version, parts), found in checkpoints.items() if len(found) == parts}
    last = max((version for version in whole if version <= newest), default=-1)
    missing = [version for version in range(last + 1, newest + 1) if version not in commits]
    if missing:
        raise TableError(
            f"the log of the table {table} is incomplete: it has neither version {missing[0]} nor a later checkpoint, "
            f"up to version {newest}"
        )
    return [*whole.get(last, ()), *(commits[version] for version in range(last + 1, newest + 1))]
