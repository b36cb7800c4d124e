"""DeltaTable: looks up a stream's position in a table, and commits a batch to it exactly once."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import (
    CommitUnknownError,
    ConcurrentIngestionError,
    KafkaFlipError,
    PositionLostError,
    SchemaMismatchError,
    StreamOverlapError,
    TableError,
    WindowsChangedError,
    WriteFailedError,
)
from dagster_kafka_flip.runtime.jars import hadoop_version
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.instants import utc_time
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.half_made import is_free, remove_remnant
from dagster_kafka_flip.table.history import (
    Anchor,
    Commit,
    check_between,
    check_doubt,
    documented,
    find_anchor,
    other_streams,
)
from dagster_kafka_flip.table.interruptible import held, run_interruptibly, write_tag
from dagster_kafka_flip.table.layout import check_layout
from dagster_kafka_flip.table.other_writers import check_alone, makes_windows, shared_logs
from dagster_kafka_flip.table.restored import restored_versions
from dagster_kafka_flip.table.retention import LOG_RETENTION, parse_log_retention
from dagster_kafka_flip.table.retries import retries
from dagster_kafka_flip.table.schema import check_schema, column_ddl
from dagster_kafka_flip.table.spark_error import (
    is_already_there,
    is_conflict,
    is_not_there,
    missing_file_system,
    telling_line,
)
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.store_lock import check_store, store_lock
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX
from dagster_kafka_flip.table.transaction_log import TransactionLog
from dagster_kafka_flip.table.windows_document import STREAMS_PROPERTY, WINDOWS_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FIRST_PAGE = 10

# Of what nobody has to know for sure, such as what earlier runs did not report.
MOST_COMMITS = 1000
_SESSION_CATALOG = "spark_catalog"

# Delta cleans its log by whole days, so that no setting that makes sense lets a commit go before this.
_TOO_YOUNG_TO_ASK = timedelta(hours=24)


class ForeignConflictError(KafkaFlipError):
    """Somebody else changed the table during the write; nothing was written, and a new plan can be made."""


# Which artifact of Hadoop brings the file system of a scheme.
_FILE_SYSTEMS = {
    "s3": "hadoop-aws",
    "s3a": "hadoop-aws",
    "s3n": "hadoop-aws",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "wasb": "hadoop-azure",
    "wasbs": "hadoop-azure",
}


class TableNotThereError(Exception):
    """There is no such table."""


@dataclass(frozen=True)
class Committed:
    """A commit that is known to be in the table.

    Attributes:
        version: The version it made.
        rows: Rows it added; None where history does not tell.
        bytes: Bytes of the files it added; None where history does not tell.
        table_rows: Rows of the table at that version; None where history does not tell.
        confirm_seconds: Time for asking history whether it is there.
    """

    version: int
    rows: int | None
    bytes: int | None
    table_rows: int | None
    confirm_seconds: float


@dataclass(frozen=True)
class Written:
    """How a write ended.

    Attributes:
        since: The commits since the version that it rests on, newest first.
        failure: What it ended with; None if it came back.
        confirm_seconds: Time for asking history.
    """

    since: list[Commit]
    failure: Exception | None
    confirm_seconds: float


def committed(commit: Commit, written: Written, table_rows: int | None) -> Committed:
    """A commit that history shows.

    Args:
        commit: The commit.
        written: The write that made it.
        table_rows: Rows of the table then, if that is known.
    """
    rows = commit.metric("numOutputRows")
    # A rewrite counts as well what it only moved from one file to another; an append moves nothing.
    copied = 0 if commit.parameters.get("mode") == "Append" else commit.metric("numCopiedRows")
    return Committed(
        version=commit.version,
        rows=None if rows is None or copied is None else rows - copied,
        bytes=commit.metric("numOutputBytes"),
        table_rows=table_rows,
        confirm_seconds=written.confirm_seconds,
    )


@dataclass(frozen=True)
class RecordedPosition:
    """A stream's position as it was seen in the table and noted elsewhere.

    Attributes:
        state: Where the stream stood.
        table_version: The newest version of the table then.
        anchor_version: Version of the commit that defined the position.
        transaction_version: The transaction version of that commit; None if it is not known.
        dead_letters_owed: Whether dead letters may have been owed.
    """

    state: EnumeratorState
    table_version: int
    anchor_version: int
    transaction_version: int | None
    dead_letters_owed: bool


class DeltaTable:
    """One stream's view of one Delta table.

    Args:
        spark: The session to read and write with.
        target: The table and the stream.
        tolerated: Errors that the look at the position does not raise; see `find_anchor`.
        record: A copy of the position from elsewhere, for where the table's history has lost it.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: DeltaTarget,
        tolerated: Collection[type[KafkaFlipError]] = (),
        record: RecordedPosition | None = None,
    ) -> None:
        self._spark = spark
        self._target = target
        self._tolerated = tolerated
        self._record = record
        self._location: str | None = target.location if target.is_path else None
        if self._location is not None:
            check_store(spark, self._location, single_writer=target.single_writer)

    def anchor(self) -> Anchor | None:
        """Where the stream stands; None if there is no table yet.

        Raises:
            TableError: There is something else in the table's place.
            LogChangedError: A log changed while the stream's last batch was read, and nobody has decided about it yet.
            KafkaFlipError: The walk through history stopped; see `find_anchor`.
        """
        try:
            anchor = find_anchor(
                self.commits(),
                self._target.stream,
                str(self._target),
                self._tolerated,
                restored=self.restored_versions,
                expired=self._recorded_anchor,
                has_rows=self.has_rows,
            )
        except TableNotThereError:
            self.check_place_is_free()
            return None
        check_doubt(anchor)
        return anchor

    def restored_versions(self, restore: Commit, older: Sequence[Commit]) -> tuple[int, ...]:
        """The versions that a RESTORE to a timestamp may have brought back; see `find_anchor`."""
        versions = [restore.version, *(commit.version for commit in older)]
        writes = [commit.version for commit in older if commit.operation == "WRITE"]
        try:
            changes = self._log().file_changes(versions, writes)
        except TableError as error:
            _logger.warning("what version %d of %s restored can't be told: %s", restore.version, self._target, error)
            return ()
        return restored_versions(changes, restore.version, versions[-1])

    def _recorded_anchor(self, oldest: int, newest: int) -> Anchor:
        """The position as the record tells it, if nothing can have happened to the rows since that nobody sees."""
        found = self._log().transaction_version(self._target.transaction_id, newest)
        record = self._record
        if found is None:
            reason = "Delta's log holds no transaction version of the stream either, so that nothing is known of it"
        elif record is None or record.transaction_version is None:
            reason = (
                f"the stream's last transaction version is {found}, and no record was given to the run that carries one"
            )
        elif record.transaction_version != found:
            reason = (
                f"the stream's last transaction version is {found}, and the record of the last run carries "
                f"{record.transaction_version}: it is not of the stream's last commit"
            )
        elif record.table_version < oldest - 1:
            # A RESTORE or a wipe leaves transaction versions as they are: what nobody can see may be one.
            reason = (
                f"the record of the last run carries its transaction version, {found}, and was made at version "
                f"{record.table_version}; what happened to the table in versions {record.table_version + 1} to "
                f"{oldest - 1} can't be seen any longer, and a RESTORE or a wipe may be among them"
            )
        elif record.dead_letters_owed:
            reason = "the record of the last run may owe dead letters, and which can't be seen any longer"
        else:
            _logger.warning(
                "the history of %s has lost the position of the stream %r; it is taken from the record of the last "
                "run, which carries the transaction version that Delta still holds (%d)",
                self._target,
                self._target.stream,
                found,
            )
            # The fence of all runs from this position, be it from history or from a record: of any two, one wins. It
            # is above the transaction version that is found, because a commit is newer than the one it rests on.
            return Anchor(
                table_version=newest,
                version=record.anchor_version,
                state=record.state,
                table_rows=None,
                other_streams={},
                is_recorded=True,
            )
        msg = (
            f"the table {self._target} no longer has the history that holds the position of the stream "
            f"{self._target.stream!r}: its oldest commit is version {oldest}, and no commit of the stream is left. "
            f"Nothing was read. Delta forgets commits after {LOG_RETENTION}. A record can't stand in: {reason}. Look "
            "what the table holds, and set the position: "
            f"{set_position(str(self._target), self._target.stream, topics=TOPIC)}"
        )
        raise PositionLostError(msg)

    def _log(self) -> TransactionLog:
        return TransactionLog(self._spark, self.location(), str(self._target))

    def history(self) -> tuple[Commit, ...] | None:
        """All commits that the table's history holds, newest first; None if there is no table.

        Raises:
            TableError: There is something else in the table's place.
        """
        try:
            return tuple(self.commits())
        except TableNotThereError:
            self.check_place_is_free()
            return None

    def last_state(self, history: Iterable[Commit]) -> EnumeratorState | None:
        """The state in the stream's newest commit, whatever has become of the table since; None if it has none."""
        last = self.last_document(history)
        return None if last is None else last[1].state

    def last_document(self, history: Iterable[Commit]) -> tuple[Commit, CommitDocument] | None:
        """The stream's newest commit, whatever has become of the table since, and what it says."""
        return next(documented(history, self._target.stream), None)

    def no_rows(self) -> DataFrame:
        """A batch without rows that fits the table."""
        return self._spark.createDataFrame([], self._schema())

    def _schema(self) -> StructType:
        try:
            return self._spark.table(self._target.identifier).schema
        except Exception as error:
            if not is_not_there(error):
                raise
            msg = (
                f"the table {self._target} is gone; it was there when this run began. Nothing of this batch was "
                "written. Put the table back, with its _delta_log, and run again; without it the next run makes a new "
                "one and starts where the source says"
            )
            raise TableError(msg) from error

    def check_overlap(self, anchor: Anchor, plan: ReadPlan) -> None:
        """Refuses a stream that would read what another stream of the same table reads.

        The walk to the anchor meets the other streams that committed since. When this stream takes up new topic
        partitions, all of history is asked.

        Raises:
            StreamOverlapError: A topic partition is in the position of another stream.
        """
        streams = dict(anchor.other_streams)
        if plan.discovered or anchor.state is None:
            commits = tuple(self.commits())
            streams = other_streams(commits, self._target.stream) | streams
            if commits and commits[-1].version > 0:
                self._check_forgotten(streams, commits)
        self._check_shared(streams, plan.end_offsets, plan.state)

    def check_taken_up(
        self, history: Iterable[Commit], partitions: Collection[TopicPartition], state: EnumeratorState
    ) -> None:
        """Refuses to give a stream topic partitions that another stream of the same table reads.

        Args:
            history: All commits of the table, newest first.
            partitions: What the stream is to take up.
            state: Where it will stand.

        Raises:
            StreamOverlapError: One of them is in the position of another stream.
        """
        self._check_shared(other_streams(history, self._target.stream), partitions, state)

    def _check_shared(
        self, streams: Mapping[str, EnumeratorState], partitions: Collection[TopicPartition], state: EnumeratorState
    ) -> None:
        for stream, theirs in streams.items():
            both = sorted(tp for tp in partitions if tp in theirs.position and is_same_log(tp, theirs, state))
            if both:
                raise self._overlap(both, stream, "already")

    def _overlap(self, both: Sequence[TopicPartition], stream: str, since: str) -> StreamOverlapError:
        more = f" (and {len(both) - 1} more topic partitions)" if len(both) > 1 else ""
        msg = (
            f"{both[0]}{more}: the stream {stream!r} of the table {self._target} reads it {since}; the stream "
            f"{self._target.stream!r} would land the same records a second time. Nothing was written. Land "
            f"{self._target.stream!r} in another table, or take the topic out of its source. If {stream!r} is to stop "
            "reading it, take the topic out of that source, and give up its position: "
            f"{set_position(str(self._target), stream, to=None)}"
        )
        return StreamOverlapError(msg)

    def _check_forgotten(self, streams: Mapping[str, EnumeratorState], commits: Sequence[Commit]) -> None:
        """Where history has expired, Delta's transaction ids still name the streams that committed before."""
        newest, oldest = commits[0].version, commits[-1].version
        versions = self._log().transaction_versions(TRANSACTION_PREFIX, newest)
        known = {self._target.stream, *streams}
        # What has a further slash is of windows.
        forgotten = sorted(
            stream
            for application in versions
            if (stream := application.removeprefix(TRANSACTION_PREFIX)) not in known and "/" not in stream
        )
        if not forgotten:
            return
        stream = forgotten[0]
        msg = (
            f"the stream {stream!r} has committed to the table {self._target} (its last transaction version is "
            f"{versions[TRANSACTION_PREFIX + stream]}), but history no longer holds a commit of it: the oldest is "
            f"version {oldest}. Whether it reads what the stream {self._target.stream!r} is about to take up can't be "
            f"told, and each record could land twice. Nothing was read. Run the stream {stream!r}, or set its "
            "position, so that history holds it again: "
            f"{set_position(str(self._target), stream, topics=TOPIC)}; then run this one again. Or land "
            "this stream in another table"
        )
        raise PositionLostError(msg)

    def create(self, schema: StructType) -> None:
        """Creates the table, empty. Does nothing if somebody else was faster.

        A write that creates its table would lose the document, and with it the position.

        Raises:
            ConfigurationError: It is to be partitioned or clustered by a column that it doesn't have.
            TableError: The table can't be created.
        """
        target = self._target
        if target.local_path is not None and target.local_path.is_file():
            msg = f"{target} is a file, and a Delta table is a folder; nothing was written. Name another path"
            raise TableError(msg)
        check_layout(str(target), schema.names, partition_by=target.partition_by, cluster_by=target.cluster_by)
        clauses = [f"CREATE TABLE {target.identifier} ({column_ddl(schema)}) USING delta"]
        if target.partition_by:
            clauses.append(f"PARTITIONED BY ({', '.join(quoted(name) for name in target.partition_by)})")
        if target.cluster_by:
            clauses.append(f"CLUSTER BY ({', '.join(quoted(name) for name in target.cluster_by)})")
        properties = {**target.properties}
        if WINDOWS_PROPERTY not in properties:
            properties[STREAMS_PROPERTY] = "true"
        pairs = (f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        clauses.append(f"TBLPROPERTIES ({', '.join(pairs)})")
        self._check_catalog_lasts()
        try:
            with store_lock(self._location or "catalog:", is_remote=self._is_remote):
                remove_remnant(self._target.local_path)
                self._spark.sql(" ".join(clauses))
        except Exception as error:
            if is_already_there(error):
                return
            msg = f"the table {target} can't be created: {telling_line(error)}"
            raise TableError(msg) from error

    def made(self, schema: StructType) -> Anchor:
        """Creates the table, empty, and tells where the stream stands in it then.

        Raises:
            ConfigurationError: See `create`.
            TableError: The table can't be created, or is gone again.
        """
        self.create(schema)
        return still_there(self.anchor(), self._target)

    def _check_catalog_lasts(self) -> None:
        """A table must not be made in a catalog that is gone with the Spark session."""
        if self._target.is_path:
            return
        parts = self._target.name_parts
        names_catalog = len(parts) > 2  # noqa: PLR2004 - catalog, schema, table
        catalog = parts[0] if names_catalog else self._spark.sql("SELECT current_catalog()").collect()[0][0]
        if catalog.lower() != _SESSION_CATALOG:
            return
        plugin = self._spark.conf.get(f"spark.sql.catalog.{_SESSION_CATALOG}", None)
        kept_in = self._spark.conf.get("spark.sql.catalogImplementation", "in-memory")
        if kept_in == "in-memory" and (plugin is None or plugin.endswith(".DeltaCatalog")):
            msg = (
                f"the table {self._target} is not there, and it can't be made: Spark's catalog is in memory "
                "(spark.sql.catalogImplementation=in-memory), so that the next process would not find the table, and "
                "not its position. Nothing was written. Name the table by its path, such as warehouse/flights; or give "
                "the session a catalog that lasts, such as a Hive metastore (spark.sql.catalogImplementation=hive) or "
                "spark.sql.catalog.<name>"
            )
            raise TableError(msg)

    def check_schema(self, schema: StructType) -> tuple[tuple[str, str], ...]:
        """Makes sure that a batch's columns fit.

        Returns:
            Names and types of the table's columns as they are after the batch.

        Raises:
            SchemaMismatchError: They don't fit.
        """
        existing = self._schema()
        try:
            check_schema(schema, existing, str(self._target), may_add=self._target.schema_evolution)
        except SchemaMismatchError as error:
            if not self._has_nothing_but_our_columns():
                raise
            # Its columns are a first try's, which landed nothing, and keep nobody's rows.
            away = "remove its folder" if self._target.is_path else f"DROP TABLE {self._target.identifier}"
            msg = (
                f"{error}. Or, as an earlier run created the table and nothing was ever written to it, {away}: the "
                "next run creates it with the columns of its batch"
            )
            raise SchemaMismatchError(msg) from error
        known = {field.name.lower() for field in existing.fields}
        added = [field for field in schema.fields if field.name.lower() not in known]
        return tuple((field.name, field.dataType.simpleString()) for field in [*existing.fields, *added])

    def _has_nothing_but_our_columns(self) -> bool:
        """Whether the table is as `create` made it."""
        newest = next(iter(self.commits()), None)
        if newest is None or (newest.version, newest.operation) != (0, "CREATE TABLE"):
            return False
        properties = newest.parameters.get("properties") or ""
        return STREAMS_PROPERTY in properties or WINDOWS_PROPERTY in properties

    def count_rows(self) -> int:
        """Rows of the table, which Delta answers from its statistics where it can."""
        return self._spark.table(self._target.identifier).count()

    def has_rows(self) -> bool:
        """Whether there is any row in the table."""
        return self.count_rows() > 0

    def kept_until(self, anchor: Anchor) -> datetime | None:
        """When half of the log's retention is over since the commit that holds the position; None if there is none.

        Delta may forget the commit any time after the whole of it.
        """
        if anchor.committed_ms is None:
            return None
        now = datetime.now(tz=timezone.utc)
        committed = utc_time(anchor.committed_ms)
        if committed is None:
            # No clock tells such a time, so nobody knows how old the commit is: a new one is made.
            return now
        if now - committed < _TOO_YOUNG_TO_ASK:
            return committed + _TOO_YOUNG_TO_ASK
        try:
            return committed + self._log_retention / 2
        except OverflowError:
            return None

    @functools.cached_property
    def _log_retention(self) -> timedelta:
        text = self.properties().get(LOG_RETENTION)
        retention = parse_log_retention(text)
        if retention is None:
            _logger.warning(
                "%s of %s is %r, which can't be read; it counts as the shortest that makes sense, %s",
                LOG_RETENTION,
                self._target,
                text,
                2 * _TOO_YOUNG_TO_ASK,
            )
            return 2 * _TOO_YOUNG_TO_ASK
        return retention

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._target.identifier}").collect()
        return {row["key"]: row["value"] for row in rows}

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Sets some of the table's properties and leaves the others as they are.

        Raises:
            ForeignConflictError: Somebody else changed the table at the same time; nothing was set.
            TableError: They can't be set.
        """
        pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        try:
            with store_lock(self.location(), is_remote=self._is_remote):
                self._spark.sql(f"ALTER TABLE {self._target.identifier} SET TBLPROPERTIES ({pairs})")
        except Exception as error:
            if is_conflict(error):
                raise ForeignConflictError(telling_line(error)) from error
            msg = f"properties of the table {self._target} can't be set: {telling_line(error)}"
            raise TableError(msg) from error

    def check_takes_streams(self) -> None:
        """Makes sure that a table without a row is not one of windows.

        Raises:
            WindowsChangedError: It is.
        """
        if WINDOWS_PROPERTY in self.properties():
            raise self._is_of_windows("")

    def _is_of_windows(self, since: str) -> WindowsChangedError:
        msg = (
            f"{self._target} is a table of windows{since}, and the stream {self._target.stream!r} would land the same "
            "records beside them. Nothing was written. Land the stream in another table"
        )
        return WindowsChangedError(msg)

    def check_takes_windows(self) -> None:
        """Makes sure that no stream lands in a table that is to become one of windows.

        Call it before the table is marked as one, and once more after that: a stream that comes later sees the mark.

        Raises:
            WindowsChangedError: A stream does, or made the table and is about to.
        """
        landed = next(documented(self.commits()), None)
        if landed is not None:
            what = f"the stream {landed[1].stream!r} has landed in it (version {landed[0].version})"
        elif STREAMS_PROPERTY in self.properties():
            what = f"a run of a stream made it (table property {STREAMS_PROPERTY})"
        else:
            return
        msg = (
            f"the table {self._target} is no table of windows: {what}, and each record would be there twice. Nothing "
            "was written. Land the windows in another table, or say Windows(repair=True) to replace what the stream "
            "has landed; a table without rows that no stream needs can be dropped"
        )
        raise WindowsChangedError(msg)

    def table_id(self) -> str:
        """The id that Delta gave the table when it was made; it stays when the table is moved or renamed."""
        detail = self._spark.sql(f"DESCRIBE DETAIL {self._target.identifier}").select("id").first()
        if detail is None:
            msg = f"the table {self._target} has no id"
            raise TableError(msg)
        return str(detail["id"])

    def location(self) -> str:
        """The table's location as a URI or absolute path."""
        if self._location is None:
            detail = self._spark.sql(f"DESCRIBE DETAIL {self._target.identifier}").select("location").first()
            if detail is None:
                msg = f"the table {self._target} has no location"
                raise TableError(msg)
            self._location = str(detail["location"])
            check_store(self._spark, self._location, single_writer=self._target.single_writer)
        return self._location

    def commit(self, rows: DataFrame, document: CommitDocument, takes_up: Collection[TopicPartition] = ()) -> Committed:
        """Appends a batch in one commit together with its document, and makes sure of it.

        However the write ends, the table's history is asked whether it happened.

        Args:
            rows: The batch. Runs at most once if it is committed, and not at all if the fence holds.
            document: The batch's document.
            takes_up: Topic partitions that the stream had no position of before. Whether somebody else has begun to
                land them since the plan was made is looked up just before the write.

        An interrupt stops the Spark job. The commit may then be there or not; the next run finds out.

        Raises:
            ConcurrentIngestionError: Another run of the stream committed first.
            StreamOverlapError: Another stream began to land the same meanwhile; nothing was written.
            WindowsChangedError: The table became one of windows meanwhile; nothing was written.
            TableChangedError: The table was restored or replaced meanwhile, or the fence did not hold, or another
                stream landed the same in between.
            ForeignConflictError: Somebody else's change came in between; nothing was written.
            WriteFailedError: The write failed, and the table's history shows no commit of it.
            CommitUnknownError: History can't be asked.
        """

        def look(since: list[Commit]) -> None:
            self._check_company(since, document, takes_up)

        written = self.written(
            lambda: self._append(rows, document),
            document.base_version,
            document.attempt,
            look=look if takes_up else None,
        )
        return self._judge(written, document)

    def _check_company(
        self, since: list[Commit], document: CommitDocument, takes_up: Collection[TopicPartition]
    ) -> None:
        """Refuses to write what another stream, or windows, have begun to land since the plan was made."""
        for commit in since:
            other = commit.document()
            if other is not None and other.stream != document.stream:
                both = sorted(tp for tp in shared_logs(document, other) if tp in takes_up)
                if both:
                    raise self._overlap(both, other.stream, f"since version {commit.version}")
            if makes_windows(commit):
                raise self._is_of_windows(f" since version {commit.version}")

    def written(
        self,
        write: Callable[[], None],
        base_version: int,
        attempt: str,
        look: Callable[[list[Commit]], None] | None = None,
    ) -> Written:
        """Runs a write, and asks the table's history what has come of it.

        Args:
            write: The write. An interrupt stops its Spark job; the table's lock is kept until the write has ended.
            base_version: The version that the write rests on.
            attempt: Id of the attempt, in the tag of its Spark jobs.
            look: Is handed the commits since then, just before the write and under the table's lock; what it raises
                ends the write before it begins.

        Raises:
            CommitUnknownError: History can't be asked.
        """
        failure: Exception | None = None
        with held(store_lock(self.location(), is_remote=self._is_remote)) as lock:
            if look is not None:
                look(list(_take_while_after(self.commits(), base_version)))
            try:
                run_interruptibly(self._spark, write, write_tag(attempt), lock)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, only history tells whether the commit is there
                failure = error
                _logger.info("the write ended with %s; looking whether it was committed", type(error).__name__)
            begin = time.monotonic()
            try:
                since = list(_take_while_after(self.commits(), base_version))
            except Exception as error:  # noqa: BLE001 - a Spark that is gone answers with errors of every kind
                msg = (
                    f"the write to {self._target} ended, and its history can't be asked whether it is there: "
                    f"{telling_line(failure or error)}. Spark may be gone. Nothing is lost: if the batch was "
                    "committed, the next run finds it, and else reads it again"
                )
                raise CommitUnknownError(msg) from (failure or error)
            return Written(since, failure, time.monotonic() - begin)

    def _append(self, rows: DataFrame, document: CommitDocument) -> None:
        writer = (
            rows.writeTo(self._target.identifier)
            .option("txnAppId", self._target.transaction_id)
            .option("txnVersion", document.anchor_version)
            .option("userMetadata", document.to_text())
        )
        if self._target.schema_evolution:
            writer = writer.option("mergeSchema", "true")
        writer.append()

    def _judge(self, written: Written, document: CommitDocument) -> Committed:
        since, failure = written.since, written.failure
        streams = list(documented(since, document.stream))
        for commit, own in streams:
            if own.attempt == document.attempt:
                check_between(since, document, commit.version, str(self._target))
                check_alone(since, document, commit.version, str(self._target))
                return committed(commit, written, _rows_after(since, commit, document))
        if streams:
            commit, own = streams[0]
            msg = (
                f"another run ({own.run_id or 'without an id'}) committed version {commit.version} to the stream "
                f"{document.stream!r} of {self._target} first; this batch was planned at version "
                f"{document.base_version} and was not written. Nothing is lost: the next run goes on from there"
            )
            raise ConcurrentIngestionError(msg) from failure
        if failure is None:
            msg = (
                f"Delta skipped the write to {self._target} without an error, and no commit of the stream "
                f"{document.stream!r} explains it: its transaction version is at or above {document.anchor_version}. "
                "Somebody set it by hand, or the table was restored meanwhile; nothing was written. Run again"
            )
            raise PositionLostError(msg)
        raise self.failed(failure) from failure

    def failed(self, failure: Exception) -> KafkaFlipError:
        """What a write that failed, and of which history shows nothing, is told as."""
        if is_conflict(failure):
            return ForeignConflictError(telling_line(failure))
        msg = f"the write to {self._target} failed and nothing of it was committed: {telling_line(failure)}"
        return WriteFailedError(msg)

    def commits(self) -> Iterator[Commit]:
        """The table's commits, newest first, a few at a time. Versions that come in meanwhile are left out.

        Raises:
            TableNotThereError: There is no such table.
        """
        return paged(self._page)

    def newest_commits(self) -> Iterator[Commit]:
        """As `commits`, but no more than the newest `MOST_COMMITS`: a table may have hundreds of thousands."""
        return itertools.islice(self.commits(), MOST_COMMITS)

    def _page(self, limit: int) -> list[Commit]:
        return retries(_logger, f"reading the history of {self._target}")(self._read_page, limit)

    def _read_page(self, limit: int) -> list[Commit]:
        try:
            rows = (
                self._spark.sql(f"DESCRIBE HISTORY {self._target.identifier} LIMIT {limit}")
                .selectExpr(
                    "version",
                    "operation",
                    "operationParameters",
                    "operationMetrics",
                    "userMetadata",
                    "engineInfo",
                    # As a number: a timestamp would come back in whatever time zone Python runs in.
                    "unix_millis(timestamp) AS timestamp_ms",
                )
                .collect()
            )
        except Exception as error:
            if is_not_there(error):
                raise TableNotThereError from error
            if (scheme := missing_file_system(error)) is not None:
                raise TableError(_no_file_system(self._target, scheme)) from error
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

    def check_place_is_free(self) -> None:
        """Makes sure that a table can be made where there is none.

        Raises:
            TableError: There is something else in its place.
        """
        what = None if self._target.is_path else self._what_is_there()
        if what is not None:
            msg = (
                f"{self._target} is {what} and no Delta table, so that no stream can land in it. Nothing was written. "
                "Choose another name; what a stream lands can be shown by a view over its table"
            )
            raise TableError(msg)
        path = self._target.local_path
        if path is not None and not is_free(path):
            msg = f"{path} is not empty and no Delta table; choose another path, or convert it with CONVERT TO DELTA"
            raise TableError(msg)

    def _what_is_there(self) -> str | None:
        """What else a catalog has under the table's name; None if nothing."""
        try:
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._target.identifier}").collect()
        except Exception as error:
            if is_not_there(error):
                return None
            raise
        told = {row["col_name"]: row["data_type"] for row in rows}
        if (told.get("Provider") or "").lower() == "delta":
            return None
        if "Provider" not in told or "VIEW" in (told.get("Type") or ""):
            return "a view"
        return f"a table of the format {told['Provider']}"

    @property
    def _is_remote(self) -> bool:
        # Spark Connect's session is a class of its own, and asking it for its JVM would fail.
        return "connect" in type(self._spark).__module__


def still_there(found: _T | None, target: DeltaTarget) -> _T:
    """What was found of a table that was just made.

    Args:
        found: What the look gave; None for no table.
        target: The table.

    Raises:
        TableError: There is none.
    """
    if found is None:
        msg = f"the table {target} was made, and is not there; was it dropped meanwhile? Run again"
        raise TableError(msg)
    return found


def paged(page_of: Callable[[int], Sequence[Commit]], first_page: int = _FIRST_PAGE) -> Iterator[Commit]:
    """The commits of a history that can only be asked for its newest ones, each once, newest first.

    Args:
        page_of: Gives as many of the newest commits as it is told.
        first_page: How many to ask for first; then ten times as many each time.
    """
    oldest: int | None = None
    limit = first_page
    while oldest is None or oldest > 0:
        page = page_of(limit)
        # Commits that came in since the first page move the others further back.
        fresh = [commit for commit in page if oldest is None or commit.version < oldest]
        yield from fresh
        if len(page) < limit:
            return
        if fresh:
            oldest = fresh[-1].version
        limit *= 10


def _take_while_after(commits: Iterable[Commit], version: int) -> Iterator[Commit]:
    for commit in commits:
        if commit.version <= version:
            return
        yield commit


def _rows_after(since: list[Commit], commit: Commit, document: CommitDocument) -> int | None:
    between = [other for other in since if other.version < commit.version]
    rows = commit.metric("numOutputRows")
    if document.rows_before is None or rows is None or between:
        return None
    return document.rows_before + rows


def _no_file_system(target: DeltaTarget, scheme: str) -> str:
    """What to do where Spark lacks the classes of a store."""
    if target.is_path:
        # The classes of some are named otherwise.
        scheme = target.location.partition(":")[0].lower()
    version = hadoop_version()
    package = _FILE_SYSTEMS.get(scheme)
    if package is None:
        return (
            f"the table {target} can't be reached: Spark has no file system for {scheme}:. Nothing was read. Correct "
            "the scheme, or add the Maven artifact with its file system: SparkResource(packages=[...])"
        )
    as_s3a = "" if scheme == "s3a" or package != "hadoop-aws" else " and name the table with s3a://"
    return (
        f"the table {target} can't be reached: Spark has no file system for {scheme}:, because the jar {package} is "
        f'not there. Nothing was read. Add it: SparkResource(packages=["org.apache.hadoop:{package}:{version}"])'
        f"{as_s3a}; start a server of Spark Connect with it"
    )
