"""DeltaTable: looks up a stream's position in a table, and commits a batch to it exactly once."""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    CommitUnknownError,
    ConcurrentIngestionError,
    KafkaFlipError,
    PositionLostError,
    StreamOverlapError,
    TableError,
    WindowsChangedError,
    WriteFailedError,
)
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.history import Anchor, Commit, check_between, find_anchor, other_streams
from dagster_kafka_flip.table.interruptible import run_interruptibly, write_tag
from dagster_kafka_flip.table.remnant import is_free, remove_remnant
from dagster_kafka_flip.table.restored import restored_versions
from dagster_kafka_flip.table.retention import LOG_RETENTION, parse_log_retention
from dagster_kafka_flip.table.retries import retries
from dagster_kafka_flip.table.schema import all_nullable, check_schema
from dagster_kafka_flip.table.spark_error import is_already_there, is_conflict, is_not_there, telling_line
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.store_lock import check_store, store_lock
from dagster_kafka_flip.table.transaction_log import TransactionLog
from dagster_kafka_flip.table.windows_document import WINDOWS_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_FIRST_PAGE = 10

# Delta cleans its log by whole days, so that no setting that makes sense lets a commit go before this.
_TOO_YOUNG_TO_ASK = timedelta(hours=24)


class ForeignConflictError(KafkaFlipError):
    """Somebody else changed the table during the write; nothing was written, and a new plan can be made."""


class TableNotThereError(Exception):
    """There is no such table."""


@dataclass(frozen=True)
class Committed:
    """A commit that is known to be in the table.

    Attributes:
        version: The version it made.
        rows: Rows it added.
        bytes: Bytes of the files it added.
        files: Number of the files it added.
        table_rows: Rows of the table at that version; None where history does not tell.
        confirm_seconds: Time for asking history whether it is there.
    """

    version: int
    rows: int
    bytes: int
    files: int
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
    return Committed(
        version=commit.version,
        # A rewrite counts as well what it only moved from one file to another.
        rows=commit.metric("numOutputRows") - commit.metric("numCopiedRows"),
        bytes=commit.metric("numOutputBytes"),
        files=commit.metric("numFiles"),
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
            KafkaFlipError: The walk through history stopped; see `find_anchor`.
        """
        try:
            return find_anchor(
                self.commits(),
                self._target.stream,
                str(self._target),
                self._tolerated,
                restored=self.restored_versions,
                expired=self._recorded_anchor,
            )
        except TableNotThereError:
            self.check_place_is_free()
            return None

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
            "what the table holds, and set the position with dagster-kafka-flip position set"
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

    def last_document(self, history: Iterable[Commit]) -> tuple[int, CommitDocument] | None:
        """The stream's newest commit, whatever has become of the table since: its version and what it says."""
        documents = ((commit.version, commit.document()) for commit in history)
        return next(
            ((version, own) for version, own in documents if own is not None and own.stream == self._target.stream),
            None,
        )

    def no_rows(self) -> DataFrame:
        """A batch without rows that fits the table."""
        return self._spark.createDataFrame([], self._spark.table(self._target.identifier).schema)

    def check_overlap(self, anchor: Anchor, plan: ReadPlan) -> None:
        """Refuses a stream that would read what another stream of the same table reads.

        The walk to the anchor meets the other streams that committed since. When this stream takes up new topic
        partitions, all of history is asked.

        Raises:
            StreamOverlapError: A topic partition is in the position of another stream.
        """
        streams = dict(anchor.other_streams)
        if plan.discovered:
            streams = other_streams(self.commits(), self._target.stream) | streams
        for stream, state in streams.items():
            both = sorted(tp for tp in plan.end_offsets if tp in state.position and is_same_log(tp, state, plan.state))
            if both:
                msg = (
                    f"{both[0]}: the stream {stream!r} of the table {self._target} reads it already"
                    + (f" (and {len(both) - 1} more topic partitions)" if len(both) > 1 else "")
                    + f"; the stream {self._target.stream!r} would land the same records a second time. Take the topic "
                    "out of one of the two, or land into another table"
                )
                raise StreamOverlapError(msg)

    def create(self, schema: StructType) -> None:
        """Creates the table, empty. Does nothing if somebody else was faster.

        A write that creates its table would lose the document, and with it the position.

        Raises:
            TableError: The table can't be created.
        """
        target = self._target
        clauses = [f"CREATE TABLE {target.identifier} ({all_nullable(schema).toDDL()}) USING delta"]
        if target.partition_by:
            clauses.append(f"PARTITIONED BY ({', '.join(quoted(name) for name in target.partition_by)})")
        if target.cluster_by:
            clauses.append(f"CLUSTER BY ({', '.join(quoted(name) for name in target.cluster_by)})")
        if target.properties:
            pairs = (f"{literal(key)} = {literal(value)}" for key, value in target.properties.items())
            clauses.append(f"TBLPROPERTIES ({', '.join(pairs)})")
        try:
            with store_lock(self._location or "catalog:", is_remote=self._is_remote):
                remove_remnant(self._target.local_path)
                self._spark.sql(" ".join(clauses))
        except Exception as error:
            if is_already_there(error):
                return
            msg = f"the table {target} can't be created: {telling_line(error)}"
            raise TableError(msg) from error

    def check_schema(self, schema: StructType) -> tuple[tuple[str, str], ...]:
        """Makes sure that a batch's columns fit.

        Returns:
            Names and types of the table's columns as they are after the batch.

        Raises:
            SchemaMismatchError: They don't fit.
        """
        existing = self._spark.table(self._target.identifier).schema
        check_schema(schema, existing, str(self._target), may_add=self._target.schema_evolution)
        known = {field.name.lower() for field in existing.fields}
        added = [field for field in schema.fields if field.name.lower() not in known]
        return tuple((field.name, field.dataType.simpleString()) for field in [*existing.fields, *added])

    def count_rows(self) -> int:
        """Rows of the table, which Delta answers from its statistics where it can."""
        return self._spark.table(self._target.identifier).count()

    def kept_until(self, anchor: Anchor) -> datetime | None:
        """When half of the log's retention is over since the commit that holds the position; None if there is none.

        Delta may forget the commit any time after the whole of it.
        """
        if anchor.committed_ms is None:
            return None
        committed = datetime.fromtimestamp(anchor.committed_ms / 1000, tz=timezone.utc)
        if datetime.now(tz=timezone.utc) - committed < _TOO_YOUNG_TO_ASK:
            return committed + _TOO_YOUNG_TO_ASK
        return committed + self._log_retention / 2

    @functools.cached_property
    def _log_retention(self) -> timedelta:
        return parse_log_retention(self.properties().get(LOG_RETENTION))

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
            msg = (
                f"{self._target} is a table of windows, and the stream {self._target.stream!r} would land the same "
                "records beside them. Nothing was written. Land the stream in another table"
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

    def commit(self, rows: DataFrame, document: CommitDocument) -> Committed:
        """Appends a batch in one commit together with its document, and makes sure of it.

        However the write ends, the table's history is asked whether it happened.

        Args:
            rows: The batch. Runs at most once if it is committed, and not at all if the fence holds.
            document: The batch's document.

        An interrupt stops the Spark job. The commit may then be there or not; the next run finds out.

        Raises:
            ConcurrentIngestionError: Another run of the stream committed first.
            TableChangedError: The table was restored or replaced meanwhile, or the fence did not hold.
            ForeignConflictError: Somebody else's change came in between; nothing was written.
            WriteFailedError: The write failed, and the table's history shows no commit of it.
            CommitUnknownError: History can't be asked.
        """
        written = self.written(lambda: self._append(rows, document), document.base_version, document.attempt)
        return self._judge(written, document)

    def written(self, write: Callable[[], None], base_version: int, attempt: str) -> Written:
        """Runs a write, and asks the table's history what has come of it.

        Args:
            write: The write. An interrupt stops its Spark job.
            base_version: The version that the write rests on.
            attempt: Id of the attempt, in the tag of its Spark jobs.

        Raises:
            CommitUnknownError: History can't be asked.
        """
        failure: Exception | None = None
        with store_lock(self.location(), is_remote=self._is_remote):
            try:
                run_interruptibly(self._spark, write, write_tag(attempt))
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
        documents = [(commit, own) for commit in since if (own := commit.document()) is not None]
        streams = [(commit, own) for commit, own in documents if own.stream == document.stream]
        for commit, own in streams:
            if own.attempt == document.attempt:
                check_between(since, document, commit.version, str(self._target))
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
        newest: int | None = None
        oldest: int | None = None
        limit = _FIRST_PAGE
        while oldest is None or oldest > 0:
            page = self._page(limit)
            newest = page[0].version if newest is None and page else newest
            fresh = [
                commit
                for commit in page
                if newest is not None and commit.version <= newest and (oldest is None or commit.version < oldest)
            ]
            yield from fresh
            if len(page) < limit:
                return
            oldest = page[-1].version
            limit *= 10

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
                    # As a number: a timestamp would come back in whatever time zone Python runs in.
                    "unix_millis(timestamp) AS timestamp_ms",
                )
                .collect()
            )
        except Exception as error:
            if is_not_there(error):
                raise TableNotThereError from error
            raise
        return [
            Commit(
                version=row["version"],
                operation=row["operation"],
                parameters=row["operationParameters"] or {},
                metrics=row["operationMetrics"] or {},
                user_metadata=row["userMetadata"],
                timestamp_ms=row["timestamp_ms"],
            )
            for row in rows
        ]

    def check_place_is_free(self) -> None:
        """Makes sure that a table can be made where there is none.

        Raises:
            TableError: There is something else in its place.
        """
        path = self._target.local_path
        if path is not None and not is_free(path):
            msg = f"{path} is not empty and no Delta table; choose another path, or convert it with CONVERT TO DELTA"
            raise TableError(msg)

    @property
    def _is_remote(self) -> bool:
        # Spark Connect's session is a class of its own, and asking it for its JVM would fail.
        return "connect" in type(self._spark).__module__


def _take_while_after(commits: Iterable[Commit], version: int) -> Iterator[Commit]:
    for commit in commits:
        if commit.version <= version:
            return
        yield commit


def _rows_after(since: list[Commit], commit: Commit, document: CommitDocument) -> int | None:
    between = [other for other in since if other.version < commit.version]
    if document.rows_before is None or between:
        return None
    return document.rows_before + commit.metric("numOutputRows")
