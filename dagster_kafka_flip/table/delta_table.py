"""DeltaTable: what a table is and has, and where a stream's position is in it."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import KafkaFlipError, TableError, WindowsChangedError
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.instants import utc_time
from dagster_kafka_flip.table.anchor import Anchor, check_doubt, find_anchor
from dagster_kafka_flip.table.creation import remove_incomplete_log
from dagster_kafka_flip.table.delta_log import TableNotThereError, asked
from dagster_kafka_flip.table.document import STREAMS_PROPERTY, WINDOWS_PROPERTY
from dagster_kafka_flip.table.history import check_forgotten, check_shared, documented, other_streams
from dagster_kafka_flip.table.known_position import LOG_RETENTION, TOO_YOUNG_TO_ASK, log_retention
from dagster_kafka_flip.table.layout import (
    KEY_PROPERTY,
    check_mode,
    check_not_padded,
    check_partition_types,
    created_for,
    without_changed_texts,
)
from dagster_kafka_flip.table.schema import check_schema
from dagster_kafka_flip.table.spark_error import is_already_there, is_conflict, is_not_there, is_place_taken, told
from dagster_kafka_flip.table.table_port import guarded, or_failed, table_port

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from datetime import datetime, timedelta

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.schema import TableColumns
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# The limit for lookups that don't have to be complete, such as what earlier runs did not report.
MOST_COMMITS = 1000

_TYPE_WIDENING = "delta.enableTypeWidening"


class DeltaTable:
    """One stream's view of one Delta table.

    `tolerated` are errors that don't stop the look at the position. `checked` is the schema when a batch's columns were
    last compared with it; None before that.
    """

    def __init__(
        self, spark: SparkSession, target: DeltaTarget, tolerated: Collection[type[KafkaFlipError]] = ()
    ) -> None:
        self.spark = spark
        self.port = table_port(spark, target)
        self.target = self.port.target
        self._tolerated = tolerated
        self.checked: StructType | None = None
        # Not cached properties: in Python 3.11 those of all tables have one lock, and threads would wait for a request.
        self._retention: timedelta | None = None
        self._partition_columns: tuple[str, ...] | None = None
        self._location: str | None = target.location if target.is_path else None
        if self._location is not None:
            self.port.check_writers(self._location, lambda: self.properties() if self.is_there() else None)

    def anchor(self) -> Anchor | None:
        """The commit that defines the position; None if there is no table yet. Raises what stops a run."""
        try:
            anchor = find_anchor(
                self.commits(),
                self.target.stream,
                str(self.target),
                self._tolerated,
                has_rows=lambda: self.count_rows() > 0,
            )
        except TableNotThereError:
            self.port.check_place_is_free()
            return None
        check_doubt(anchor)
        return anchor

    def history(self) -> tuple[Commit, ...] | None:
        try:
            return tuple(self.commits())
        except TableNotThereError:
            self.port.check_place_is_free()
            return None

    def last_document(self, history: Iterable[Commit]) -> tuple[Commit, CommitDocument] | None:
        """The stream's newest commit, even if the table was changed since."""
        return next(documented(history, self.target.stream), None)

    def no_rows(self) -> DataFrame:
        return self.port.no_rows(self.schema())

    def rows(self, version: int | None = None) -> DataFrame:
        """The table's own rows, now or at a version, whatever anybody has cached of it."""
        return self.port.rows(version)

    def schema(self) -> StructType:
        try:
            return self.port.schema()
        except TableError as error:
            if not is_not_there(error):
                raise
            raise self.disappeared() from error

    def disappeared(self) -> TableError:
        return TableError(
            f"the table {self.target} disappeared during the run",
            "Restore the table with its _delta_log and run again; otherwise the next run creates a new table and "
            "starts at starting_offsets",
            outcome="Nothing of this batch was written",
        )

    def check_overlap(self, anchor: Anchor, plan: ReadPlan) -> None:
        """Refuses to read what another stream reads. The walk met the newest; for new topic partitions, all count."""
        if anchor.document is not None:
            check_mode(self.target, anchor.document.mode, f"version {anchor.version}")
        streams = dict(anchor.other_streams)
        # A table of one version was just created, and the walk to the anchor met its only commit.
        if (plan.discovered or anchor.state is None) and anchor.table_version > 0:
            commits = tuple(self.commits())
            streams = other_streams(commits, self.target.stream) | streams
            if commits and commits[-1].version > 0:
                versions = self.port.transaction_versions(self.location(), commits[0].version)
                check_forgotten(self.target, versions, streams, commits[-1].version)
        check_shared(self.target, streams, plan.end_offsets, plan.state)

    def create(self, schema: StructType) -> None:
        """Does nothing if another process was faster. A write that creates its table would lose the document."""
        target = self.target
        create = self.port.creation(schema)
        if self._location is None:
            self.port.check_writers(self.port.place_by_catalog(), lambda: None)
        try:
            guarded(
                self.port,
                self._location or "catalog:",
                precheck=lambda: remove_incomplete_log(target.local_path),
                write=create,
                look_back=or_failed,
            )
        except TableError:
            # Of the lock, with its own advice.
            raise
        except Exception as error:
            # Without a lock, as on HDFS, Delta raises an error in the slower of two runs that create the table.
            if is_already_there(error) or is_conflict(error):
                return
            # Delta writes the log before the catalog, which may refuse the table.
            advice = (
                "If an earlier attempt failed, its folder has a Delta log without rows: remove the folder. Otherwise "
                "choose another name"
            )
            finding = f"the table {target} can't be created"
            raise TableError(*told(finding, error, advice if is_place_taken(error) else "")) from error

    def made(self, schema: StructType) -> Anchor:
        self.create(schema)
        return still_there(self.anchor(), self.target)

    def check_schema(self, schema: StructType) -> TableColumns:
        """Checks a batch's columns; returns the table's as they are after it, and what it changes about them."""
        existing = self.checked = self.check_partition_types()
        check_not_padded(str(self.target), schema, existing)
        return check_schema(
            schema,
            existing,
            str(self.target),
            may_change=self.target.schema_evolution,
            may_widen=lambda: self.properties().get(_TYPE_WIDENING, "").lower() == "true",
        )

    def storable(self, rows: DataFrame) -> DataFrame:
        return without_changed_texts(rows, self.checked or self.schema(), lambda: self.partition_columns)

    def check_partition_types(self) -> StructType:
        columns = self.schema()
        check_partition_types(str(self.target), columns, lambda: self.partition_columns)
        return columns

    def count_rows(self, version: int | None = None) -> int:
        finding = f"the rows of the table {self.target} can't be counted"
        return asked(f"counting the rows of {self.target}", finding, lambda: self.port.count_rows(version))

    def kept_until(self, anchor: Anchor) -> datetime | None:
        """When the commit with the position is half of the log's retention old: after the whole, it may be gone."""
        if anchor.committed_ms is None:
            return None
        now = instants.now()
        committed = utc_time(anchor.committed_ms)
        if committed is None:
            # Not a valid time, so the commit's age is unknown: commit the position again.
            return now
        if now - committed < TOO_YOUNG_TO_ASK:
            return committed + TOO_YOUNG_TO_ASK
        if self._retention is None:
            self._retention = log_retention(self.properties().get(LOG_RETENTION))
        try:
            return committed + self._retention / 2
        except OverflowError:
            return None

    def properties(self) -> dict[str, str]:
        return dict(self.port.details().properties)

    def check_takes_streams(self) -> None:
        properties = self.properties()
        if WINDOWS_PROPERTY in properties:
            raise self.is_of_windows("")
        if KEY_PROPERTY in properties:
            check_mode(self.target, created_for(properties), f"table property {KEY_PROPERTY}")

    def is_of_windows(self, since: str) -> WindowsChangedError:
        """The error for a stream into a table of windows, since when it is one (the end of a clause)."""
        return WindowsChangedError(
            f"{self.target} is written in windows{since}, and the stream {self.target.stream!r} would duplicate their "
            "records",
            "Use another table for the stream",
        )

    def check_takes_windows(self) -> None:
        """Call it before the table is marked, and once more after: a stream that comes later sees the mark."""
        landed = next(documented(self.commits()), None)
        if landed is not None:
            what = f"the stream {landed[1].stream!r} wrote to it (version {landed[0].version})"
        elif STREAMS_PROPERTY in self.properties():
            what = f"a stream's run created it (table property {STREAMS_PROPERTY})"
        else:
            return
        raise WindowsChangedError(
            f"the table {self.target} is not written in windows: {what}, so every record would be duplicated",
            "Use another table for the windows, or set Windows(repair=True) to replace the stream's rows. You can drop "
            "an empty table that no stream needs",
        )

    def table_id(self) -> str:
        """Delta's id; it stays when the table is moved or renamed."""
        return self.port.details().id

    def name_in_catalog(self) -> str | None:
        return None if self.target.is_path else str(self.port.detail("name")["name"])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        if self._partition_columns is None:
            # A table that gets others is a new one.
            self._partition_columns = self.port.details().partition_columns
        return self._partition_columns

    def location(self) -> str:
        if self._location is None:
            self._location = str(self.port.detail("location")["location"])
            self.port.check_writers(self._location, self.properties)
        return self._location

    def is_there(self) -> bool:
        """Whether there is such a table. By its history, whose errors are plain where a store can't be reached."""
        try:
            next(self.commits(), None)
        except TableNotThereError:
            return False
        return True

    def commits(self) -> Iterator[Commit]:
        return self.port.commits()

    def newest_commits(self) -> Iterator[Commit]:
        """As `commits`, but only the newest `MOST_COMMITS`: a table may have hundreds of thousands."""
        return itertools.islice(self.commits(), MOST_COMMITS)


def still_there(found: _T | None, target: DeltaTarget) -> _T:
    if found is None:
        raise TableError(
            f"the table {target} was created, or its catalog has it, but Delta finds no table in its folder: it was "
            "dropped meanwhile, moved or deleted, or is not mounted where Spark runs",
            "Run again. If the folder is elsewhere than the catalog says (DESCRIBE TABLE EXTENDED), put it back, or "
            "DROP TABLE, and CREATE TABLE ... USING delta LOCATION '...'. If it is lost, DROP TABLE: the next run "
            "creates a new table, and begins at the stream's starting offsets",
        )
    return found
