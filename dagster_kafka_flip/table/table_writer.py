"""TableWriter: writes to a table in one commit, and finds in the table's history whether it was committed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import (
    CommitUnknownError,
    ConcurrentIngestionError,
    KafkaFlipError,
    PositionLostError,
    TableError,
    WriteFailedError,
    outcome,
)
from dagster_kafka_flip.runtime.isolated_session import isolated_session
from dagster_kafka_flip.runtime.remote import server_advice
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.table.change_errors import error_of
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.commit import Committed, Written, committed
from dagster_kafka_flip.table.delta_log import TableNotThereError
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.history import (
    back_to,
    check_between,
    check_only_stream,
    documented,
    is_anchor,
    makes_windows,
    overlap,
    shared_logs,
    takes_back,
)
from dagster_kafka_flip.table.interruptible import held, write_tag
from dagster_kafka_flip.table.merge import SETTINGS, merge, read
from dagster_kafka_flip.table.spark_error import error_summary, is_conflict, told
from dagster_kafka_flip.table.table_port import ForeignConflictError, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.document import Document
    from dagster_kafka_flip.table.merge import LatestChanges

_T = TypeVar("_T")

_NOTHING_LOST = "Nothing is lost: if the batch is committed, the next run finds it; otherwise it reads the batch again"
_OTHER_COLUMNS = "its columns are not those of before the write"


class TableWriter:
    """Writes what a stream, or a run of windows, has for a table."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def commit(
        self, rows: DataFrame | Changes, document: CommitDocument, takes_up: Collection[TopicPartition] = ()
    ) -> Committed:
        """Appends or merges a batch, with its document, in one commit, and confirms it in the table's history.

        However the write ends, history shows whether it was committed; after an interrupt, the next run finds out. Rows
        to append are read at most once if they are committed, and not at all if the fence holds; changes are read once
        before the write. Of `takes_up`, topic partitions that the stream had no position of before, another writer that
        has begun to land them since the plan is refused.
        """

        def precheck(since: Sequence[Commit]) -> None:
            self._check_unchanged(since, document, takes_up)

        if isinstance(rows, Changes):
            return self._commit_changes(rows, document, precheck)
        return self._judge(self.written(lambda: self._append(rows, document), document, precheck), document, None)

    def replace(self, rows: DataFrame, document: CommitDocument) -> Committed:
        """Replaces all rows in one commit, with its document. Any commit since the base version refuses it."""

        def precheck(since: Sequence[Commit]) -> None:
            self._check_unchanged(since, document, ())
            # Delta compares with the rows at the start of the write, and not with those that were looked at.
            if since:
                raise ForeignConflictError(since[0].named)

        # A session may overwrite partitions only, and keep the rows of those that have no new ones.
        rows, options = self._table.storable(rows), {**self._options(document), "partitionOverwriteMode": "static"}
        written = self.written(lambda: self._table.port.replace(rows, None, options), document, precheck)
        return self._judge(written, document, None)

    def _commit_changes(
        self, changes: Changes, document: CommitDocument, precheck: Callable[[Sequence[Commit]], None]
    ) -> Committed:
        settings = {
            **SETTINGS,
            "spark.databricks.delta.write.txnAppId": self._table.target.transaction_id,
            "spark.databricks.delta.write.txnVersion": str(document.anchor_version),
            "spark.databricks.delta.commitInfo.userMetadata": document.to_text(),
        }
        table = self._table
        schema = table.checked or table.schema()
        changes = changes.fitted(schema, lambda: table.partition_columns, str(table.target))
        latest = self.read(lambda: read(changes), document.attempt)
        if not latest.keys:
            # Only the position moves, and an append conflicts with no other writer.
            nothing = changes.landed.limit(0)
            return self._judge(self.written(lambda: self._append(nothing, document), document, precheck), document, 0)
        with isolated_session(table.spark, settings) as session:
            written = self.written(lambda: self._merge(session, changes, latest), document, precheck, session)
            done = self._judge(written, document, latest.keys)
        if changes.is_history and done.merged is not None:
            # A change may add a row and end another, and Delta's own count misses rows of joins that Spark leaves out.
            return replace(done, merged=replace(done.merged, unchanged=None))
        return done

    def _merge(self, session: SparkSession, changes: Changes, latest: LatestChanges) -> None:
        # A MERGE would add all columns of the changes, including the one that marks deletes.
        if self._table.target.schema_evolution and self._table.check_schema((landed := changes.landed).schema).changes:
            landed.limit(0).writeTo(self._table.target.identifier).option("mergeSchema", "true").append()
            self._table.checked = self._table.schema()
        merge(session, self._table.target, latest, self._table.rows)

    def read(self, what: Callable[[], _T], attempt: str) -> _T:
        """Reads what a write needs to know. Nothing is written yet, so the table's lock isn't needed."""
        found: list[_T] = []
        try:
            with held(contextlib.nullcontext()) as nothing:
                self._table.port.run(lambda: found.append(what()), write_tag(attempt), nothing)
        except KafkaFlipError:
            raise
        except Exception as error:
            raise self.failed(error) from error
        return found[0]

    def _check_unchanged(
        self, since: Sequence[Commit], document: CommitDocument, takes_up: Collection[TopicPartition]
    ) -> None:
        """Refuses to write if what the plan rests on has changed since, or another writer began to write the same."""
        for commit in since:
            other = commit.document()
            if other is None:
                if makes_windows(commit):
                    raise self._table.is_of_windows(f" since version {commit.version}")
                if takes_back(commit):
                    raise ForeignConflictError(commit.named)
            elif other.stream != document.stream:
                check_only_stream(self._table.target, other)
                both = shared_logs(document, other)
                if taken := [tp for tp in both if tp in takes_up]:
                    raise overlap(self._table.target, taken, other.stream, f"since version {commit.version}")
                if both:
                    raise ForeignConflictError(commit.named)
            elif other.attempt != document.attempt:
                raise self._too_late(commit, other, document)

    def _too_late(self, commit: Commit, own: CommitDocument, document: CommitDocument) -> ConcurrentIngestionError:
        stream = f"the stream {document.stream!r} of {self._table.target}"
        if own.reason is None:
            by = f"another run ({own.run_id or 'without an id'}) committed version {commit.version} to {stream} first"
            outcome = "Nothing is lost: the next run continues from there"
        else:
            by = f"version {commit.version} moved the position of {stream} ({own.reason})"
            outcome = "The next run continues at the new position"
        return ConcurrentIngestionError(
            f"{by}; this batch was planned at version {document.base_version} and was not written", outcome=outcome
        )

    def written(
        self,
        write: Callable[[], None],
        document: Document,
        precheck: Callable[[Sequence[Commit]], None],
        session: SparkSession | None = None,
    ) -> Written:
        """`precheck` gets the commits since the base version, newest first, just before the write, under the lock."""
        table, base_version, attempt = self._table, document.base_version, document.attempt
        continues = document if isinstance(document, CommitDocument) else None
        last = base_version if continues is None else min(base_version, continues.anchor_version)

        def check() -> None:
            # The transform may have set one since the run began.
            table.port.check_session()
            try:
                found = list(back_to(last, table.commits()))
            except TableNotThereError as error:
                raise table.disappeared() from error
            except KafkaFlipError:
                raise
            except Exception as error:
                raise self.failed(error) from error
            is_other = continues is not None and any(
                each.version == continues.anchor_version and not is_anchor(each, continues) for each in found
            )
            if is_other or found[0].version < base_version:
                raise ForeignConflictError("it was created again, or another one was put in its place")
            precheck(since := [each for each in found if each.version > base_version])
            self._check_same_columns(since, continues)

        def look_back(failure: Exception | None) -> Written:
            begin = time.monotonic()
            try:
                found = list(back_to(last, table.commits()))
            except TableNotThereError as error:
                raise table.disappeared() from (failure or error)
            except Exception as error:  # noqa: BLE001 - a Spark that is gone answers with errors of every kind
                what = (
                    f"the write to {table.target} ended, but its history can't be read to check whether it was "
                    "committed"
                )
                raise CommitUnknownError(*_reason(what, failure, error), outcome=_NOTHING_LOST) from (failure or error)
            since = [commit for commit in found if _is_after(commit, base_version, attempt)]
            before = [commit for commit in found if not _is_after(commit, base_version, attempt)]
            return Written(since, before, failure, time.monotonic() - begin)

        return guarded(
            table.port,
            table.location(),
            precheck=check,
            write=write,
            look_back=look_back,
            attempt=attempt,
            session=session,
        )

    def _check_same_columns(self, since: Sequence[Commit], document: CommitDocument | None) -> None:
        """Refuses rows if another writer changed the columns since they were checked: Spark would convert values."""
        if since and (document is None or document.splits) and self._has_other_columns():
            # The dead letters' columns are checked once, and the table may have got others beside them.
            self._table.checked = None
            raise ForeignConflictError(_OTHER_COLUMNS)

    def _append(self, rows: DataFrame, document: CommitDocument) -> None:
        self._table.port.append(self._table.storable(rows), self._options(document))

    def _options(self, document: CommitDocument) -> dict[str, str | int]:
        return {
            "txnAppId": self._table.target.transaction_id,
            "txnVersion": document.anchor_version,
            "userMetadata": document.to_text(),
        }

    def _judge(self, written: Written, document: CommitDocument, keys: int | None) -> Committed:
        since, failure = written.since, written.failure
        streams = list(documented(since, document.stream))
        for commit, own in streams:
            if own.attempt == document.attempt:
                between = [other for other in since if other.version < commit.version]
                with outcome(is_committed(commit.version)):
                    check_between([*since, *written.before], document, commit, str(self._table.target))
                    if any((windows := other.windows()) and windows.repairs == document.stream for other in between):
                        # The walk to the position finds out whether it was planned before a RESTORE.
                        self._table.anchor()
                rows = None if between else total((document.rows_before, commit.rows_gained))
                return committed(commit, written, rows, keys, document.attempt)
        if streams:
            raise self._too_late(*streams[0], document) from failure
        if failure is None:
            raise PositionLostError(
                f"Delta skipped the write to {self._table.target} without an error, and no commit of the stream "
                f"{document.stream!r} explains it: its transaction version is at or above {document.anchor_version}. "
                "It was set manually, or the table was restored or created again meanwhile",
                "Run again",
            )
        raise self.without_commit(failure) from failure

    def without_commit(self, failure: Exception) -> KafkaFlipError:
        """Returns the error for a write that failed without a commit in history, as far as there is one by now."""
        if server_advice(failure) is not None:
            # The log was read on this machine. A server that lost its client goes on writing.
            return CommitUnknownError(
                *told(f"the write to {self._table.target} has committed nothing so far, but may still do so", failure),
                outcome=_NOTHING_LOST,
            )
        return self.failed(failure)

    def failed(self, failure: Exception) -> KafkaFlipError:
        if is_conflict(failure):
            return ForeignConflictError(error_summary(failure))
        with contextlib.suppress(Exception):
            if self._has_other_columns():
                # Delta has an error for each kind of statement then, and none that says so. The next plan's check does.
                return ForeignConflictError(_OTHER_COLUMNS)
        if (found := error_of(failure, str(self._table.target), self._table.target.key)) is not None:
            return found
        return WriteFailedError(
            *told(f"the write to {self._table.target} failed", failure), outcome="Nothing of it was committed"
        )

    def _has_other_columns(self) -> bool:
        return self._table.checked is not None and self._table.schema() != self._table.checked


def _reason(what: str, failure: Exception | None, error: Exception) -> tuple[str, str]:
    """Why a write's outcome is unknown, and what to do: the write's failure, or the error of the look at history."""
    if failure is None and isinstance(error, TableError):
        return f"{what}: {error.finding}", error.advice
    # Where the history ends with a TableError, Spark has answered.
    advice = "Spark may have died, usually from too little memory: give its driver more (spark.driver.memory)"
    return told(what, failure or error, advice)


def is_committed(version: int) -> str:
    """The outcome of a write that should not have been committed."""
    return f"Version {version} is committed"


def _is_after(commit: Commit, version: int, attempt: str) -> bool:
    """Whether a commit is after a version, or that of an attempt: in a table that was created again it is older."""
    document = commit.document()
    return commit.version > version or (document is not None and document.attempt == attempt)
