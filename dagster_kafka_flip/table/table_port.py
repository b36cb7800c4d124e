"""The port to a table: what this package asks Spark and Delta about one table, and does to it, but for a MERGE.

`guarded` is the one way to change a table: look at what the change rests on, make it, and look back, under the
lock.

Beside it is the port to Kafka, `KafkaCluster` in `source/cluster.py`. Planning, writing and recovery ask the world only
through these two, so that a simulator can take its place (`tests/simulation`).
"""

from __future__ import annotations

import functools
import itertools
import logging
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError, TableChangedError, TableError
from dagster_kafka_flip.runtime.relied_settings import check_settings
from dagster_kafka_flip.runtime.remote import is_remote
from dagster_kafka_flip.runtime.session_settings import SESSION_ZONE
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS, instant
from dagster_kafka_flip.table.creation import check_path_is_free, create_statement
from dagster_kafka_flip.table.delta_log import TableLog
from dagster_kafka_flip.table.interruptible import held, run_interruptibly, warned_of_silence, write_tag
from dagster_kafka_flip.table.local_log import check_place
from dagster_kafka_flip.table.spark_error import CHECK_ACCESS, error_summary, is_conflict, is_not_there, told
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.store_lock import check_writers, store_lock
from dagster_kafka_flip.table.target import DEFAULT_CATALOG, DEFAULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.table.interruptible import Hold
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_UNCACHED = "_dagster_kafka_flip_uncached"


class TablePort(TableLog):
    """Requests to one table of a Spark session, whose name stays the table's.

    Spark's errors come through as they are; the callers translate them.
    """

    def __init__(self, spark: SparkSession, target: DeltaTarget) -> None:
        check_settings(spark)
        check_place(spark, target)
        super().__init__(spark, _named_in_full(spark, target))

    def check_session(self) -> None:
        """Refuses a session with a setting that would change values, or which rows are read and written."""
        check_settings(self._spark)

    def check_writers(self, location: str, properties: Callable[[], Mapping[str, str] | None]) -> None:
        """Refuses a store that does not keep two writers apart; `properties` are the table's, None without a table."""
        check_writers(self._spark, location, single_writer=self.target.single_writer, properties=properties)

    def schema(self) -> StructType:
        return self.described(lambda: self._spark.table(self.target.identifier).schema)

    def rows(self, version: int | None) -> DataFrame:
        reader = self._spark.read if version is None else self._spark.read.option("versionAsOf", version)
        found = reader.table(self.target.identifier)
        # Spark answers from a cache, of any session, if a part of the query is what was cached. With this column, the
        # table itself is not.
        return found.select("*", found.metadataColumn("_metadata").alias(_UNCACHED)).drop(_UNCACHED)

    def no_rows(self, schema: StructType) -> DataFrame:
        return self._spark.createDataFrame([], schema)

    def count_rows(self, version: int | None) -> int:
        return self.rows(version).count()

    def check_place_is_free(self) -> None:
        """A table that another process has created by now is not in the way: to create it again does nothing."""
        what = None if self.target.is_path else self._existing_object()
        if what is not None:
            raise TableError(
                f"{self.target} is {what}, not a Delta table, so a stream can't write to it",
                "Choose another name; you can create a view over the stream's table",
            )
        check_path_is_free(self.target)

    def _existing_object(self) -> str | None:
        """The kind of other object with the table's name in the catalog; None if there is none."""
        try:
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.target.identifier}").collect()
        except Exception as error:
            if is_not_there(error):
                return None
            raise
        described = {row["col_name"]: row["data_type"] for row in rows}
        if (described.get("Provider") or "").lower() == "delta":
            return None
        if "Provider" not in described or "VIEW" in (described.get("Type") or ""):
            return "a view"
        return f"a table in the format {described['Provider']}"

    def creation(self, schema: StructType) -> Callable[[], None]:
        """Checks that the table can be created with these columns, and returns what creates it."""
        statement = create_statement(self._spark, self.target, schema)
        if not self.target.is_path and self.target.name_parts[0].lower() == DEFAULT_CATALOG:
            self._check_catalog_lasts()
        return self._statement(statement, f"creating {self.target}")

    def _check_catalog_lasts(self) -> None:
        """Rejects a catalog that ends with the Spark session."""
        plugin = self._spark.conf.get(f"spark.sql.catalog.{DEFAULT_CATALOG}", None)
        kept_in = self._spark.conf.get("spark.sql.catalogImplementation", "in-memory")
        if kept_in == "in-memory" and (plugin is None or plugin.endswith(".DeltaCatalog")):
            raise TableError(
                f"the table {self.target} does not exist and can't be created: Spark's catalog is in memory "
                "(spark.sql.catalogImplementation=in-memory), so the next process would not find the table or its "
                "position",
                "Use a path, such as warehouse/flights; or configure a persistent catalog, such as a Hive metastore "
                "(spark.sql.catalogImplementation=hive) or spark.sql.catalog.<name>",
            )

    def check_bounds(self, times_ms: Iterable[int]) -> None:
        """Refuses bounds of the rows to replace that Delta would take for others.

        It is told what the clock of the session's zone shows, without an offset. A clock that is set back shows an hour
        twice, and this stands for the first one.
        """
        for ms in times_ms:
            time = f"timestamp_millis({min(ms, LAST_SPARK_TIMESTAMP_MS)})"
            ((is_kept,),) = self._spark.sql(f"SELECT {time} = CAST(CAST({time} AS STRING) AS TIMESTAMP)").collect()
            if not is_kept:
                raise ConfigurationError(
                    f"the range to replace has the bound {instant(ms)}, and the clock of the session's time zone "
                    f"{self._spark.conf.get(SESSION_ZONE)} shows this time twice: Delta would take it for the first",
                    f"Set {SESSION_ZONE} to UTC, or choose another range",
                )

    def place_by_catalog(self) -> str:
        """Where the catalog has the tables of a name's schema, as a URI; empty if it doesn't say."""
        schema = ".".join(map(quoted, self.target.name_parts[:-1]))
        try:
            return self._spark.catalog.getDatabase(schema).locationUri or ""
        except Exception as error:
            absent = f"Create the schema (CREATE SCHEMA {schema}), or correct the table's name"
            finding = f"the table {self.target} does not exist and can't be created: {error_summary(error)}"
            raise TableError(finding, absent if is_not_there(error) else CHECK_ACCESS) from error

    def change_of_properties(self, properties: Mapping[str, str]) -> Callable[[], None]:
        return self._statement(setting(self.target, properties), f"setting properties of {self.target}")

    def _statement(self, statement: str, what: str) -> Callable[[], None]:
        def run() -> None:
            with warned_of_silence(_logger, what):
                self._spark.sql(statement)

        return run

    def append(self, rows: DataFrame, options: Mapping[str, str | int]) -> None:
        self._writer(rows, options).append()

    def replace(self, rows: DataFrame, predicate: str | None, options: Mapping[str, str | int]) -> None:
        """Replaces the rows that match an SQL condition, or all of them, in one commit."""
        self._writer(rows, options).overwrite(f.lit(True) if predicate is None else f.expr(predicate))

    def _writer(self, rows: DataFrame, options: Mapping[str, str | int]) -> DataFrameWriterV2:
        writer = rows.writeTo(self.target.identifier)
        for name, value in options.items():
            writer = writer.option(name, value)
        return writer.option("mergeSchema", "true") if self.target.schema_evolution else writer

    def lock(self, location: str) -> AbstractContextManager[object]:
        return store_lock(location, is_remote=is_remote(self._spark))

    def run(self, action: Callable[[], None], tag: str, hold: Hold, session: SparkSession | None = None) -> None:
        run_interruptibly(session or self._spark, action, tag, hold)


def setting(target: DeltaTarget, properties: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    return f"ALTER TABLE {target.identifier} SET TBLPROPERTIES ({pairs})"


@functools.singledispatch
def table_port(spark: Any, target: DeltaTarget) -> TablePort:
    return TablePort(spark, target)


def _named_in_full(spark: SparkSession, target: DeltaTarget) -> DeltaTarget:
    """The target, with a name that stays the table's after a transform has made a view of that name, or said USE."""
    if target.is_path or len(target.name_parts) > 2:  # noqa: PLR2004 - catalog, schema, table
        return target
    catalog, schema = spark.catalog.currentCatalog(), spark.catalog.currentDatabase()
    is_usual = catalog == spark.conf.get("spark.sql.defaultCatalog", DEFAULT_CATALOG)
    place = catalog
    if len(target.name_parts) == 1:
        is_usual = is_usual and (catalog != DEFAULT_CATALOG or schema == DEFAULT_SCHEMA)
        place = f"{catalog}.{schema}"
    if not is_usual:
        # The name would lead to another table than before, which then lands everything anew.
        raise ConfigurationError(
            f"the table {target} would be {place}.{target.table}, because the session was told to USE {place}",
            "Write the table's full name, or leave the session where it begins",
        )
    return target.model_copy(update={"table": f"{place}.{target.table}"})


_T = TypeVar("_T")


class ForeignConflictError(KafkaFlipError):
    """Another writer changed the table since the plan; nothing was written. Plan again."""


def guarded(
    table: TablePort,
    location: str,
    *,
    precheck: Callable[[], object],
    write: Callable[[], None],
    look_back: Callable[[Exception | None], _T],
    attempt: str | None = None,
    session: SparkSession | None = None,
) -> _T:
    """Changes a table. Nothing else in this package takes a table's lock, or writes to one.

    Without a lock, as on an object store, others may come between the precheck and the write: it shortens that time to
    a moment, and `look_back` still finds them.

    `precheck` looks again at what the write rests on, just before it: if it raises an error, nothing is written. An
    interrupt stops the write's Spark jobs; the lock is kept until it has ended. `look_back` gets the write's error, if
    it failed, and finds what became of it.
    """
    failure: Exception | None = None
    with held(table.lock(location)) as lock:
        precheck()
        try:
            table.run(write, write_tag(attempt or uuid.uuid4().hex), lock, session)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, only the table shows what became of the write
            failure = error
            _logger.info("the write ended with %s; looking what became of it", type(error).__name__)
        return look_back(failure)


def or_failed(failure: Exception | None) -> None:
    """Looks back at a write that is all that its error says."""
    if failure is not None:
        raise failure


def set_properties(
    table: TablePort, location: str, properties: Mapping[str, str], precheck: Callable[[Mapping[str, str]], None]
) -> None:
    """Sets some of the table's properties; `precheck` gets those of just before, under the table's lock."""
    change = table.change_of_properties(properties)
    before: list[int] = []

    def check() -> None:
        before.append(next(table.commits()).version)
        precheck(dict(table.details().properties))

    def look_back(failure: Exception | None) -> None:
        or_failed(failure)
        since = itertools.takewhile(lambda commit: commit.version > before[0], table.commits())
        values_set = (commit.properties_set for commit in since)
        # Empty if the session leaves out what a commit did.
        own, *others = *itertools.dropwhile(lambda values: properties.items() - values.items(), values_set), {}
        gone = {key: value for values in others for key, value in values.items() if own.get(key, value) != value}
        if gone:
            raise TableChangedError(
                f"another run set properties of the table {table.target} at the same time, and this one replaced its "
                "values",
                f"Set them again, and run again: {setting(table.target, gone)}",
            )

    try:
        guarded(table, location, precheck=check, write=change, look_back=look_back)
    except KafkaFlipError:
        raise
    except Exception as error:
        if is_conflict(error):
            raise ForeignConflictError(error_summary(error)) from error
        finding = f"properties of the table {table.target} can't be set"
        raise TableError(*told(finding, error, CHECK_ACCESS)) from error
