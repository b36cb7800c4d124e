"""DeltaTable: looks up a stream's position in a table, and commits a batch to it exactly once."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import (
    CommitUnknownError,
    ConcurrentIngestionError,
    KafkaFlipError,
    PositionLostError,
    SchemaMismatchError,
    TableError,
    WindowsChangedError,
    WriteFailedError,
)
from dagster_kafka_flip.runtime.remote import is_remote
from dagster_kafka_flip.source.instants import utc_time
from dagster_kafka_flip.table.change_errors import error_of
from dagster_kafka_flip.table.changes import IS_CURRENT, Changes
from dagster_kafka_flip.table.creation import (
    check_catalog_lasts,
    check_place_is_free,
    create_statement,
    place_by_catalog,
)
from dagster_kafka_flip.table.details import described, detail_of, details_of
from dagster_kafka_flip.table.history import (
    WRITES,
    Anchor,
    Commit,
    back_to,
    check_between,
    check_doubt,
    documented,
    find_anchor,
    other_streams,
)
from dagster_kafka_flip.table.history_pages import TableNotThereError, commits_of
from dagster_kafka_flip.table.incomplete_log import remove_incomplete_log
from dagster_kafka_flip.table.interruptible import held, run_interruptibly, write_tag
from dagster_kafka_flip.table.keyed_table import KEY_PROPERTY, check_mode, check_only_stream, created_for
from dagster_kafka_flip.table.local_log import is_newest
from dagster_kafka_flip.table.merge import merging, read
from dagster_kafka_flip.table.other_writers import check_alone, makes_windows, shared_logs
from dagster_kafka_flip.table.recorded_position import recorded_anchor
from dagster_kafka_flip.table.restored import restored_versions
from dagster_kafka_flip.table.retention import LOG_RETENTION, parse_log_retention
from dagster_kafka_flip.table.retries import warned_of_silence
from dagster_kafka_flip.table.schema import check_schema
from dagster_kafka_flip.table.several_writers import check_writers
from dagster_kafka_flip.table.spark_error import (
    error_summary,
    is_already_there,
    is_conflict,
    is_not_there,
    is_place_taken,
)
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.store_errors import CHECK_ACCESS, with_advice
from dagster_kafka_flip.table.store_lock import store_lock
from dagster_kafka_flip.table.stream_overlap import check_forgotten, check_shared, overlap
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX
from dagster_kafka_flip.table.times_of_partitions import check_times_of_partitions, timestamps_among
from dagster_kafka_flip.table.transaction_log import TransactionLog
from dagster_kafka_flip.table.unavailable import ENDED
from dagster_kafka_flip.table.windows_document import STREAMS_PROPERTY, WINDOWS_PROPERTY
from dagster_kafka_flip.table.write_advice import explained
from dagster_kafka_flip.table.written import Committed, Written, committed, rows_after

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.merge import LatestChanges
    from dagster_kafka_flip.table.recorded_position import RecordedPosition
    from dagster_kafka_flip.table.schema import TableColumns
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# The limit for lookups that don't have to be complete, such as what earlier runs did not report.
MOST_COMMITS = 1000

_TYPE_WIDENING = "delta.enableTypeWidening"

# Delta cleans up its log by whole days, so no useful setting deletes a younger commit.
_TOO_YOUNG_TO_ASK = timedelta(hours=24)


class ForeignConflictError(KafkaFlipError):
    """Another writer changed the table during the write; nothing was written. Plan again."""


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
        self._checked: StructType | None = None
        self._location: str | None = target.location if target.is_path else None
        if self._location is not None:
            self._check_writers(self._location, self._properties_if_there)

    def anchor(self) -> Anchor | None:
        """Returns the commit that defines the position; None if there is no table yet.

        Raises:
            TableError: There is something else in the table's place.
            LogChangedError: A log changed while the stream's last batch was read, and this is not resolved yet.
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
        writes = [commit.version for commit in older if commit.operation in WRITES]
        try:
            changes = self._log().file_changes(versions, writes)
        except TableError as error:
            _logger.warning(
                "can't determine which version was restored by version %d of %s: %s",
                restore.version,
                self._target,
                error,
            )
            return ()
        return restored_versions(changes, restore.version, versions[-1])

    def _recorded_anchor(self, oldest: int, newest: int) -> Anchor:
        found = self._log().transaction_version(self._target.transaction_id, newest)
        return recorded_anchor(self._record, self._target, found, oldest=oldest, newest=newest)

    def _log(self) -> TransactionLog:
        return TransactionLog(self._spark, self.location(), str(self._target))

    def history(self) -> tuple[Commit, ...] | None:
        """Returns all commits in the table's history, newest first; None if there is no table.

        Raises:
            TableError: There is something else in the table's place.
        """
        try:
            return tuple(self.commits())
        except TableNotThereError:
            self.check_place_is_free()
            return None

    def last_state(self, history: Iterable[Commit]) -> EnumeratorState | None:
        """Returns the state in the stream's newest commit, even if the table was changed since; None if it has none."""
        last = self.last_document(history)
        return None if last is None else last[1].state

    def last_document(self, history: Iterable[Commit]) -> tuple[Commit, CommitDocument] | None:
        """Returns the stream's newest commit and its document, even if the table was changed since."""
        return next(documented(history, self._target.stream), None)

    def no_rows(self) -> DataFrame:
        """Returns a DataFrame without rows that has the table's schema."""
        return self._spark.createDataFrame([], self._schema())

    def rows_at(self, version: int) -> DataFrame:
        """The table's rows at a version."""
        return self._spark.read.option("versionAsOf", version).table(self._target.identifier)

    def _schema(self) -> StructType:
        try:
            return described(self._target, lambda: self._spark.table(self._target.identifier).schema)
        except TableError as error:
            if not is_not_there(error):
                raise
            raise self._disappeared() from error

    def _disappeared(self) -> TableError:
        msg = (
            f"the table {self._target} disappeared during the run. Nothing of this batch was written. Restore "
            "the table with its _delta_log and run again; otherwise the next run creates a new table and starts "
            "at starting_offsets"
        )
        return TableError(msg)

    def check_overlap(self, anchor: Anchor, plan: ReadPlan) -> None:
        """Refuses a stream that would read what another stream of the same table reads, or write in another mode.

        The walk to the anchor meets the other streams that committed since. When this stream takes up new topic
        partitions, all of history is asked.

        Raises:
            StreamOverlapError: A topic partition is in the position of another stream.
            TableModeError: The table is written in another mode.
        """
        if anchor.state is not None:
            self._check_mode(anchor)
        streams = dict(anchor.other_streams)
        # A table of one version was just created, and the walk to the anchor met its only commit.
        if (plan.discovered or anchor.state is None) and anchor.table_version > 0:
            commits = tuple(self.commits())
            check_only_stream(self._target, commits)
            streams = other_streams(commits, self._target.stream) | streams
            if commits and commits[-1].version > 0:
                self._check_forgotten(streams, commits)
        check_shared(self._target, streams, plan.end_offsets, plan.state)

    def _check_mode(self, anchor: Anchor) -> None:
        if anchor.document is not None:
            check_mode(self._target, anchor.document.mode, f"version {anchor.version}")
        elif anchor.is_recorded:
            check_mode(self._target, created_for(self.properties()), f"table property {KEY_PROPERTY}")

    def _check_forgotten(self, streams: Collection[str], commits: Sequence[Commit]) -> None:
        versions = self._log().transaction_versions(TRANSACTION_PREFIX, commits[0].version)
        check_forgotten(self._target, versions, streams, commits[-1].version)

    def check_taken_up(
        self, history: Iterable[Commit], partitions: Collection[TopicPartition], state: EnumeratorState
    ) -> None:
        """Refuses to give a stream topic partitions that another stream of the same table reads.

        Args:
            history: All commits of the table, newest first.
            partitions: The topic partitions.
            state: The stream's state with them.

        Raises:
            StreamOverlapError: One of them is in the position of another stream.
        """
        check_shared(self._target, other_streams(history, self._target.stream), partitions, state)

    def create(self, schema: StructType) -> None:
        """Creates the empty table. Does nothing if another process was faster.

        A write that creates its table would lose the document, and with it the position.

        Raises:
            ConfigurationError: It is to be partitioned or clustered by a column that it doesn't have.
            SparkSessionError: See `check_times_of_partitions`.
            TableError: The table can't be created.
            UnsafeStoreError: It would be created on S3, and nothing keeps two runs from that.
        """
        target = self._target
        statement = create_statement(self._spark, target, schema)
        check_times_of_partitions(self._spark, target, lambda: timestamps_among(schema, target.partition_by))
        check_catalog_lasts(self._spark, target)
        if self._location is None:
            self._check_writers(place_by_catalog(self._spark, target), lambda: None)
        try:
            with store_lock(self._location or "catalog:", is_remote=self.is_remote):
                remove_incomplete_log(self._target.local_path)
                with warned_of_silence(_logger, f"creating {target}"):
                    self._spark.sql(statement)
        except Exception as error:
            # Without a lock, as on HDFS, Delta raises an error in the slower of two runs that create the table.
            if is_already_there(error) or is_conflict(error):
                self._check_folder_is_there()
                return
            # Delta writes the log before the catalog, which may refuse the table.
            advice = (
                "Nothing was written. If an earlier attempt failed, its folder has a Delta log without rows: remove "
                "the folder. Otherwise choose another name"
            )
            msg = f"the table {target} can't be created: {with_advice(error, advice if is_place_taken(error) else '')}"
            raise TableError(msg) from error

    def _check_folder_is_there(self) -> None:
        """Checks that a table that the catalog has already is where the catalog says."""
        if self._target.is_path:
            return
        try:
            details_of(self._spark, self._target)
        except TableError as error:
            if not is_not_there(error):
                raise
            name = self._target.identifier
            msg = (
                f"the catalog has the table {self._target}, but Delta finds no table in its folder: "
                f"{error_summary(error.__cause__ or error).rstrip('.;')}. The folder was moved or deleted, or is not "
                "mounted where Spark runs. Nothing was written. Put it back. If it is elsewhere now, DROP TABLE "
                f"{name}, and CREATE TABLE {name} USING delta LOCATION '...'. If it is lost, DROP TABLE {name}: the "
                "next run creates a new table, and begins at the stream's starting offsets"
            )
            raise TableError(msg) from error.__cause__

    def made(self, schema: StructType) -> Anchor:
        """Creates the empty table and returns the commit that defines the position in it.

        Raises:
            ConfigurationError: See `create`.
            TableError: The table can't be created, or was dropped again.
        """
        self.create(schema)
        return still_there(self.anchor(), self._target)

    def check_schema(self, schema: StructType) -> TableColumns:
        """Checks that a batch's columns fit the table.

        Returns:
            The table's columns as they are after the batch, and what it changes about them.

        Raises:
            SchemaMismatchError: They don't fit.
            SparkSessionError: See `check_times_of_partitions`.
        """
        if self._checked is None:
            self.check_times_of_partitions()
        existing = self._checked = self._schema()
        try:
            return check_schema(
                schema,
                existing,
                str(self._target),
                may_change=self._target.schema_evolution,
                may_widen=lambda: self.properties().get(_TYPE_WIDENING, "").lower() == "true",
            )
        except SchemaMismatchError as error:
            if not self._has_nothing_but_our_columns():
                raise
            # A first try made these columns and wrote nothing, so no rows need them.
            away = "remove its folder" if self._target.is_path else f"DROP TABLE {self._target.identifier}"
            stop = "\n" if "\n" in str(error) else ". "
            msg = (
                f"{error}{stop}An earlier run created the table and nothing was ever written to it, so you can also "
                f"{away}: the next run creates it with the columns of its batch"
            )
            raise SchemaMismatchError(msg) from error

    def check_times_of_partitions(self) -> None:
        """Checks that Delta stores the times in the table's partition columns as they are.

        Raises:
            SparkSessionError: It would store others in this session.
        """
        check_times_of_partitions(
            self._spark, self._target, lambda: timestamps_among(self._schema(), self._partition_columns)
        )

    def _has_nothing_but_our_columns(self) -> bool:
        """Whether the table is still as `create` made it."""
        newest = next(iter(self.commits()), None)
        if newest is None or (newest.version, newest.operation) != (0, "CREATE TABLE"):
            return False
        properties = newest.parameters.get("properties") or ""
        return STREAMS_PROPERTY in properties or WINDOWS_PROPERTY in properties

    def generated_columns(self, version: int) -> frozenset[str]:
        """The columns that Delta computes from others, at a version."""
        return self._log().generated_columns(version)

    def count_rows(self) -> int:
        """Returns the number of rows, from Delta's statistics if possible."""
        return self._spark.table(self._target.identifier).count()

    def has_rows(self) -> bool:
        """Whether the table has any row."""
        return self.count_rows() > 0

    def kept_until(self, anchor: Anchor) -> datetime | None:
        """Returns when the commit with the position is half of the log's retention old; None if there is none.

        Delta may forget the commit any time after the whole of it.
        """
        if anchor.committed_ms is None:
            return None
        now = datetime.now(tz=timezone.utc)
        committed = utc_time(anchor.committed_ms)
        if committed is None:
            # Not a valid time, so the commit's age is unknown: commit the position again.
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
                "%s of %s is %r, which can't be parsed; assuming the shortest reasonable value, %s",
                LOG_RETENTION,
                self._target,
                text,
                2 * _TOO_YOUNG_TO_ASK,
            )
            return 2 * _TOO_YOUNG_TO_ASK
        return retention

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(details_of(self._spark, self._target).properties)

    def set_properties(
        self, properties: Mapping[str, str], look: Callable[[Mapping[str, str]], None] | None = None
    ) -> None:
        """Sets some of the table's properties; the others stay.

        Args:
            properties: The new values.
            look: Called with the table's properties just before, and under the table's lock. If it raises an error,
                nothing is set.

        Raises:
            ForeignConflictError: Another writer changed the table at the same time; nothing was set.
            TableError: They can't be set.
        """
        pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        try:
            with (
                store_lock(self.location(), is_remote=self.is_remote),
                warned_of_silence(_logger, f"setting properties of {self._target}"),
            ):
                if look is not None:
                    look(self.properties())
                self._spark.sql(f"ALTER TABLE {self._target.identifier} SET TBLPROPERTIES ({pairs})")
        except KafkaFlipError:
            raise
        except Exception as error:
            if is_conflict(error):
                raise ForeignConflictError(error_summary(error)) from error
            msg = f"properties of the table {self._target} can't be set: {with_advice(error, CHECK_ACCESS)}"
            raise TableError(msg) from error

    def check_takes_streams(self) -> None:
        """Checks that a table takes a stream that has no position in it.

        Raises:
            WindowsChangedError: It is a table of windows.
            TableModeError: It was created for another mode.
        """
        properties = self.properties()
        if WINDOWS_PROPERTY in properties:
            raise self._is_of_windows("")
        if KEY_PROPERTY in properties:
            check_mode(self._target, created_for(properties), f"table property {KEY_PROPERTY}")

    def _is_of_windows(self, since: str) -> WindowsChangedError:
        msg = (
            f"{self._target} is written in windows{since}, and the stream {self._target.stream!r} would duplicate "
            "their records. Nothing was written. Use another table for the stream"
        )
        return WindowsChangedError(msg)

    def check_takes_windows(self) -> None:
        """Checks that no stream writes to a table that is about to hold windows.

        Call it before the table is marked as one, and once more after that: a stream that comes later sees the mark.

        Raises:
            WindowsChangedError: A stream does, or made the table and is about to.
        """
        landed = next(documented(self.commits()), None)
        if landed is not None:
            what = f"the stream {landed[1].stream!r} wrote to it (version {landed[0].version})"
        elif STREAMS_PROPERTY in self.properties():
            what = f"a stream's run created it (table property {STREAMS_PROPERTY})"
        else:
            return
        msg = (
            f"the table {self._target} is not written in windows: {what}, so every record would be duplicated. "
            "Nothing was written. Use another table for the windows, or set Windows(repair=True) to replace the "
            "stream's rows. You can drop an empty table that no stream needs"
        )
        raise WindowsChangedError(msg)

    def table_id(self) -> str:
        """Returns Delta's id of the table; it stays when the table is moved or renamed."""
        return details_of(self._spark, self._target).id

    def name_in_catalog(self) -> str | None:
        """The table's full name, as its catalog has it; None for a path."""
        return None if self._target.is_path else str(self._detail("name"))

    @functools.cached_property
    def _partition_columns(self) -> tuple[str, ...]:
        # A table that gets others is a new one.
        return details_of(self._spark, self._target).partition_columns

    def _detail(self, what: str) -> Any:
        (detail,) = detail_of(self._spark, self._target, what)
        return detail

    def location(self) -> str:
        """The table's location as a URI or absolute path."""
        if self._location is None:
            self._location = str(self._detail("location"))
            self._check_writers(self._location, self.properties)
        return self._location

    def _check_writers(self, location: str, properties: Callable[[], Mapping[str, str] | None]) -> None:
        check_writers(self._spark, location, single_writer=self._target.single_writer, properties=properties)

    def _properties_if_there(self) -> dict[str, str] | None:
        try:
            # Its errors are plain where a store can't be reached.
            next(self.commits(), None)
        except TableNotThereError:
            return None
        return self.properties()

    def commit(
        self, rows: DataFrame | Changes, document: CommitDocument, takes_up: Collection[TopicPartition] = ()
    ) -> Committed:
        """Appends or merges a batch, with its document, in one commit, and confirms it in the table's history.

        However the write ends, the table's history shows whether it was committed.

        Args:
            rows: The batch. Rows to append are read at most once if they are committed, and not at all if the fence
                holds; changes are read once before the write.
            document: The batch's document.
            takes_up: Topic partitions that the stream had no position of before. Just before the write, the history is
                searched for another writer that has begun to land them since the plan was made.

        An interrupt stops the Spark job. The commit may or may not exist then; the next run finds out.

        Raises:
            ConcurrentIngestionError: Another run of the stream committed first.
            StreamOverlapError: Another stream began to land the same meanwhile; nothing was written.
            WindowsChangedError: The table became one of windows meanwhile; nothing was written.
            TableChangedError: The table was restored or replaced meanwhile, or the fence did not hold, or another
                stream landed the same in between.
            ForeignConflictError: Somebody else's change came in between; nothing was written.
            NullKeyError: A change has no key; nothing was written.
            KeyOrderUnknownError: Which change of a key is the last is not known; nothing was written.
            UnavailableValueError: A connector left out a value that is not there; nothing was written.
            SchemaMismatchError: A key's fields have another order than the table's; nothing was written.
            WriteFailedError: The write failed, and the table's history shows no commit of it.
            CommitUnknownError: History can't be asked.
        """
        if isinstance(rows, Changes):
            return self._commit_changes(rows, document, takes_up)
        return self._commit_by(lambda: self._append(rows, document), document, takes_up)

    def replace(self, rows: DataFrame, document: CommitDocument) -> Committed:
        """Replaces all rows in one commit, with its document; see `commit`.

        Raises:
            ConcurrentIngestionError: A run of the stream committed first.
            ForeignConflictError: Another writer committed since the document's base version; nothing was written.
            KafkaFlipError: See `commit`.
        """
        from pyspark.sql import functions as f

        def look(since: list[Commit]) -> None:
            # Delta compares with the rows at the start of the write, and not with those that were looked at. The fence
            # keeps away from the stream's own commits.
            if since and not any(documented(since, document.stream)):
                msg = f"version {since[0].version} ({since[0].operation})"
                raise ForeignConflictError(msg)

        written = self.written(
            lambda: self._writer(rows, document).overwrite(f.lit(True)),
            document.base_version,
            document.attempt,
            look=look,
            anchor_version=document.anchor_version,
        )
        return self._judge(written, document, None)

    def _commit_changes(
        self, changes: Changes, document: CommitDocument, takes_up: Collection[TopicPartition]
    ) -> Committed:
        settings = {
            "spark.databricks.delta.write.txnAppId": self._target.transaction_id,
            "spark.databricks.delta.write.txnVersion": str(document.anchor_version),
            "spark.databricks.delta.commitInfo.userMetadata": document.to_text(),
        }
        changes = changes.fitted(self._checked or self._schema(), lambda: self._partition_columns, str(self._target))
        latest = self._read(changes, document)
        if not latest.keys:
            # Only the position moves, and an append conflicts with no other writer.
            return self._commit_by(lambda: self._append(changes.landed.limit(0), document), document, takes_up, keys=0)
        with merging(self._spark, self._target, changes, latest, settings) as (session, statement):
            return self._commit_by(
                lambda: self._merge(session, statement, changes), document, takes_up, keys=latest.keys, session=session
            )

    def _merge(self, session: SparkSession, statement: str, changes: Changes) -> None:
        if self._target.schema_evolution:
            # A MERGE would add all columns of the changes, including the one that marks deletes.
            self._evolve(changes.landed)
        session.sql(statement).collect()

    def _read(self, changes: Changes, document: CommitDocument) -> LatestChanges:
        """Reads a batch of changes. Nothing is written yet, so the table's lock isn't needed."""
        found: list[LatestChanges] = []
        try:
            with held(contextlib.nullcontext()) as nothing:
                run_interruptibly(
                    self._spark,
                    lambda: found.append(read(changes, lambda: self._rows_before(changes))),
                    write_tag(document.attempt),
                    nothing,
                )
        except KafkaFlipError:
            raise
        except Exception as error:
            raise self.failed(error) from error
        return found[0]

    def _rows_before(self, changes: Changes) -> DataFrame:
        """The table's rows, with whether a row was deleted and is kept."""
        from pyspark.sql import functions as f

        rows = self._spark.table(self._target.identifier)
        ended = f.lit(False)
        if changes.keeps_deleted:
            ended = f.coalesce(f.col(quoted(changes.columns.deleted)), ended)
        elif changes.is_history:
            ended = ~f.coalesce(f.col(IS_CURRENT), ended)
        return rows.withColumn(ENDED, ended)

    def _evolve(self, rows: DataFrame) -> None:
        """Adds new columns to the table, and widens types, in a commit without rows."""
        if self.check_schema(rows.schema).changes:
            rows.limit(0).writeTo(self._target.identifier).option("mergeSchema", "true").append()
            self._checked = self._schema()

    def _commit_by(
        self,
        write: Callable[[], None],
        document: CommitDocument,
        takes_up: Collection[TopicPartition],
        keys: int | None = None,
        session: SparkSession | None = None,
    ) -> Committed:
        def look(since: list[Commit]) -> None:
            self._check_other_writers(since, document, takes_up)

        written = self.written(
            write,
            document.base_version,
            document.attempt,
            look=look if takes_up else None,
            session=session,
            anchor_version=document.anchor_version,
        )
        return self._judge(written, document, keys)

    def _check_other_writers(
        self, since: list[Commit], document: CommitDocument, takes_up: Collection[TopicPartition]
    ) -> None:
        """Refuses to write if another stream, or windows, began to write the same since the plan was made."""
        for commit in since:
            other = commit.document()
            if other is not None and other.stream != document.stream:
                both = sorted(tp for tp in shared_logs(document, other) if tp in takes_up)
                if both:
                    raise overlap(self._target, both, other.stream, f"since version {commit.version}")
            if makes_windows(commit):
                raise self._is_of_windows(f" since version {commit.version}")

    def written(
        self,
        write: Callable[[], None],
        base_version: int,
        attempt: str,
        look: Callable[[list[Commit]], None] | None = None,
        session: SparkSession | None = None,
        anchor_version: int | None = None,
    ) -> Written:
        """Runs a write and finds its outcome in the table's history.

        Args:
            write: The write. An interrupt stops its Spark job; the table's lock is kept until the write has ended.
            base_version: The version that the write rests on.
            attempt: Id of the attempt, in the tag of its Spark jobs.
            look: Called with the commits since then, if there may be any, just before the write and under the table's
                lock. If it raises an error, nothing is written.
            session: The write's session. Default: the table's.
            anchor_version: The version of the commit whose position the write continues from. Default: there is none.

        Raises:
            CommitUnknownError: History can't be asked.
            TableError: The table disappeared.
        """
        failure: Exception | None = None
        with held(store_lock(self.location(), is_remote=self.is_remote)) as lock:
            if look is not None and (self.is_remote or not is_newest(self.location(), base_version)):
                look(list(itertools.takewhile(lambda commit: commit.version > base_version, self.commits())))
            try:
                run_interruptibly(session or self._spark, write, write_tag(attempt), lock)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, only the history shows whether the commit exists
                failure = error
                _logger.info("the write ended with %s; checking whether it was committed", type(error).__name__)
            begin = time.monotonic()
            try:
                last = base_version if anchor_version is None else min(base_version, anchor_version)
                found = list(back_to(last, self.commits()))
            except TableNotThereError as error:
                raise self._disappeared() from (failure or error)
            except Exception as error:  # noqa: BLE001 - a Spark that is gone answers with errors of every kind
                msg = (
                    f"the write to {self._target} ended, but its history can't be read to check whether it was "
                    f"committed: {_reason(failure, error)}. Nothing is lost: if the batch was committed, the next run "
                    "finds it; otherwise it reads the batch again"
                )
                raise CommitUnknownError(msg) from (failure or error)
            since = [commit for commit in found if _is_after(commit, base_version, attempt)]
            before = [commit for commit in found if not _is_after(commit, base_version, attempt)]
            return Written(since, before, failure, time.monotonic() - begin)

    def _append(self, rows: DataFrame, document: CommitDocument) -> None:
        self._writer(rows, document).append()

    def _writer(self, rows: DataFrame, document: CommitDocument) -> DataFrameWriterV2:
        writer = (
            rows.writeTo(self._target.identifier)
            .option("txnAppId", self._target.transaction_id)
            .option("txnVersion", document.anchor_version)
            .option("userMetadata", document.to_text())
        )
        if self._target.schema_evolution:
            writer = writer.option("mergeSchema", "true")
        return writer

    def _judge(self, written: Written, document: CommitDocument, keys: int | None) -> Committed:
        since, failure = written.since, written.failure
        streams = list(documented(since, document.stream))
        for commit, own in streams:
            if own.attempt == document.attempt:
                check_between([*since, *written.before], document, commit.version, str(self._target))
                check_alone(since, document, commit.version, str(self._target))
                return committed(commit, written, rows_after(since, commit, document), keys, document.attempt)
        if streams:
            commit, own = streams[0]
            msg = (
                f"another run ({own.run_id or 'without an id'}) committed version {commit.version} to the stream "
                f"{document.stream!r} of {self._target} first; this batch was planned at version "
                f"{document.base_version} and was not written. Nothing is lost: the next run continues from there"
            )
            raise ConcurrentIngestionError(msg) from failure
        if failure is None:
            msg = (
                f"Delta skipped the write to {self._target} without an error, and no commit of the stream "
                f"{document.stream!r} explains it: its transaction version is at or above {document.anchor_version}. "
                "It was set manually, or the table was restored or created again meanwhile; nothing was written. Run "
                "again"
            )
            raise PositionLostError(msg)
        raise self.failed(failure) from failure

    def failed(self, failure: Exception) -> KafkaFlipError:
        """Returns the error for a write that failed without a commit in history."""
        if is_conflict(failure):
            return ForeignConflictError(error_summary(failure))
        if self._has_other_columns():
            # Delta has an error for each kind of statement then, and none that says so. The next plan's check does.
            return ForeignConflictError("its columns are not those of before the write")
        if (found := error_of(failure, str(self._target), self._target.key)) is not None:
            return found
        return WriteFailedError(
            f"the write to {self._target} failed and nothing of it was committed: {explained(failure)}"
        )

    def _has_other_columns(self) -> bool:
        """Whether another writer changed the table's columns since they were checked; no, if they can't be read."""
        with contextlib.suppress(Exception):
            return self._checked is not None and self._schema() != self._checked
        return False

    def commits(self) -> Iterator[Commit]:
        """Yields the table's commits, newest first, in pages. Versions that arrive meanwhile are not included.

        Raises:
            TableNotThereError: There is no such table.
        """
        return commits_of(self._spark, self._target)

    def newest_commits(self) -> Iterator[Commit]:
        """As `commits`, but only the newest `MOST_COMMITS`: a table may have hundreds of thousands."""
        return itertools.islice(self.commits(), MOST_COMMITS)

    def check_place_is_free(self) -> None:
        """Checks that a table can be created where there is none.

        Raises:
            TableError: There is something else in its place.
        """
        check_place_is_free(self._spark, self._target)

    @property
    def is_remote(self) -> bool:
        """Whether a Spark Connect server does the work."""
        return is_remote(self._spark)


def _reason(failure: Exception | None, error: Exception) -> str:
    """Why a write's outcome is unknown, and what to do.

    Args:
        failure: What the write ended with, if it failed.
        error: What the look at the table's history ended with.
    """
    if failure is None and isinstance(error, TableError):
        return str(error)
    # Where the history ends with a TableError, Spark has answered.
    advice = "Spark may have died, usually from too little memory: give its driver more (spark.driver.memory)"
    return with_advice(failure or error, advice)


def still_there(found: _T | None, target: DeltaTarget) -> _T:
    """Returns what was found in a table that was just created.

    Args:
        found: The result; None for no table.
        target: The table.

    Raises:
        TableError: There is no table.
    """
    if found is None:
        msg = f"the table {target} was created but does not exist; it may have been dropped meanwhile. Run again"
        raise TableError(msg)
    return found


def _is_after(commit: Commit, version: int, attempt: str) -> bool:
    """Whether a commit is after a version, or that of an attempt: in a table that was created again it is older."""
    document = commit.document()
    return commit.version > version or (document is not None and document.attempt == attempt)
