"""TableVersions: which versions a table has, which of them can be published, and why one could not be read."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ChangeDataFeedError,
    IncompatibleVersionsError,
    PublishFailedError,
    TableError,
    VersionOutOfRangeError,
    VersionsGoneError,
    error_text,
)
from dagster_kafka_flip.runtime.relied_settings import check_settings
from dagster_kafka_flip.sink.progress import ANEW, Origin
from dagster_kafka_flip.table.delta_log import TableLog, TableNotThereError
from dagster_kafka_flip.table.local_log import check_place, details_at
from dagster_kafka_flip.table.spark_error import is_from_spark, is_not_there, is_sparks_own, told

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.progress import Segment
    from dagster_kafka_flip.table.commit import Commit

_FEED = "delta.enableChangeDataFeed"
_KEPT = "delta.deletedFileRetentionDuration"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TableVersions:
    """The versions of a source's table, as of one moment."""

    def __init__(self, spark: SparkSession, source: DeltaSource) -> None:
        self.source = source
        self._log = TableLog(spark, source.target)
        check_settings(spark)
        check_place(spark, source.target)
        self.look_again()
        with _there(source):
            details = self._log.details()
        self.table_id = details.id
        self._properties = details.properties

    def look_again(self) -> None:
        """Sets `newest` and `fed_by` to those of now."""
        self._read: list[Commit] = []
        self._marks: dict[int, str | None] = {}
        self._unread = self._log.commits()
        with _there(self.source):
            commit = next(self._commits())
        self.newest = commit.version
        # The ids of the topics whose records the newest version landed.
        document = commit.document() or commit.windows()
        self.fed_by = frozenset[str]() if document is None else frozenset(document.state.topic_ids.values())

    def _commits(self) -> Generator[Commit]:
        """Yields the table's commits as of the last look, newest first, and reads each once."""
        yield from self._read
        with _there(self.source):
            for commit in self._unread:
                self._marks[commit.version] = mark_of(commit)
                # A document may have 100 KB.
                self._read.append(replace(commit, user_metadata=None))
                yield commit

    def mark_of(self, version: int) -> str | None:
        """What tells the commit of a version from another one of this number; None if it is unknown."""
        if version not in self._marks:
            next((commit for commit in self._commits() if commit.version <= version), None)
        return self._marks.get(version)

    def table_id_now(self) -> str:
        if (local := local_version(self.source)) is not None:
            return local[1]
        with _there(self.source):
            return self._log.details().id

    def origin(self) -> Origin:
        start = self.source.start
        if start == "snapshot":
            return Origin(self.last(), snapshot=True)
        if start == "latest":
            return Origin(self.newest, snapshot=False)
        if isinstance(start, datetime):
            return Origin(self._first_at(start) - 1, snapshot=False)
        # The version after the newest is where the next commit will be.
        if start > self.newest + 1:
            raise VersionOutOfRangeError(
                f"the start, version {start}, is beyond the table {self.source}, whose newest version is {self.newest}",
                "Correct start of the DeltaSource",
            )
        return Origin(start - 1, snapshot=False)

    def _first_at(self, time: datetime) -> int:
        """The first version that was committed at or after a time; the one after the newest if there is none."""
        wanted_ms = -((_EPOCH - time) // timedelta(milliseconds=1))
        found = self.newest + 1
        for commit in self._commits():
            if commit.timestamp_ms is None or commit.timestamp_ms < wanted_ms:
                return found
            found = commit.version
        if found > 0:
            raise VersionsGoneError(
                f"which version of the table {self.source} was the first at {time.isoformat()} is unknown: its log "
                f"begins with version {found}, which was committed later (delta.logRetentionDuration). Earlier changes "
                "would be lost",
                "Set a later time, or a version",
            )
        return found

    def last(self) -> int:
        stop = self.source.stop
        if stop is not None and stop > self.newest:
            raise VersionOutOfRangeError(
                f"the stop, version {stop}, is beyond the table {self.source}, whose newest version is {self.newest}",
                "Correct stop (of the run's config or the DeltaSource), or wait for the version",
            )
        return self.newest if stop is None else stop

    @property
    def lacks_feed(self) -> str | None:
        """What makes the table record changes, as SQL; None if it does."""
        if self._properties.get(_FEED, "false").lower() == "true":
            return None
        return f"ALTER TABLE {self.source.target.identifier} SET TBLPROPERTIES ({_FEED} = true)"

    def check_feed(self) -> None:
        if self.lacks_feed is not None:
            raise ChangeDataFeedError(
                f"the table {self.source} has no change data feed, which records the changes of a version",
                f"Run {self.lacks_feed}: it applies to later versions. For earlier ones, {ANEW}",
            )

    def check_there(self, first: int, last: int) -> None:
        wanted = last
        for commit in self._commits():
            if commit.version > wanted:
                continue
            if commit.version < wanted:
                break
            wanted -= 1
            if wanted < first:
                return
        raise self.gone(first, wanted, "the table's log no longer has them (delta.logRetentionDuration)")

    def gone(self, first: int, last: int, why: str) -> VersionsGoneError:
        which = f"version {first}" if first == last else f"versions {first} to {last}"
        return VersionsGoneError(
            f"{which} of the table {self.source} can't be published: {why}; the newest is {self.newest}. What they "
            "changed would be lost",
            f"To go on, {ANEW}. Run more often than VACUUM and log retention delete versions",
        )


@contextlib.contextmanager
def _there(source: DeltaSource) -> Generator[None]:
    try:
        yield
    except (TableNotThereError, StopIteration):
        raise not_there(source) from None
    except Exception as error:
        if is_not_there(error):
            raise not_there(source) from None
        raise


def not_there(source: DeltaSource) -> TableError:
    return TableError(f"the Delta table {source} does not exist", "Correct the table, or create it first")


def mark_of(commit: Commit) -> str | None:
    """What tells a commit from another one of its version. Its time does not: a copied log may have another."""
    if commit.operation is None:
        return None
    # A batch that this package lands has an id of its own there.
    return f"{commit.operation} {hashlib.sha256((commit.user_metadata or '').encode()).hexdigest()[:16]}"


def local_version(source: DeltaSource) -> tuple[int, str] | None:
    """The newest version and the id of a table, without Spark; None if its log can't be seen or does not say so."""
    found = details_at(source.target.location) if source.target.is_path else None
    return None if found is None else (found[0], found[1].id)


_NO_FEED = re.compile(r"DELTA_MISSING_CHANGE_DATA|DELTA_CHANGE_TABLE_FEED_DISABLED|change data was not recorded")
_GONE = re.compile(
    r"DELTA_CHANGE_DATA_FILE_NOT_FOUND|DELTA_FILE_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException"
    r"|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_NO_RECREATABLE_HISTORY_FOUND|VersionNotFound"
    r"|DELTA_CANNOT_FIND_VERSION|DELTA_VERSION_NOT_FOUND|Cannot time travel"
)
# From Delta 4.1 on, whether the files are there or not.
_TOO_OLD = "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION"
# Java has one error for a file that is not there and for one that can't be opened.
_NOT_OPENED = re.compile(r"FileNotFoundException: .*\((?!No such file)[A-Z][\w ]+\)")

_INCOMPATIBLE = re.compile(r"DELTA_CHANGE_DATA_FEED_INCOMPATIBLE|PARQUET_COLUMN_DATA_TYPE_MISMATCH")


@contextlib.contextmanager
def reading(versions: TableVersions, segment: Segment) -> Generator[None]:
    """Translates errors of Spark: versions are gone, have no change data, or can't be read for another reason."""
    try:
        yield
    except Exception as error:
        if not is_from_spark(error):
            raise
        raise _translated(error, versions, segment) from error


def _translated(error: Exception, versions: TableVersions, segment: Segment) -> KafkaFlipError:
    text = error_text(error) if is_sparks_own(error) else ""
    source, rows = versions.source, f"{segment} of the table {versions.source}"
    anew = f"To go on, {ANEW}"
    if _NO_FEED.search(text):
        which = "it" if segment.first == segment.last else "some of them"
        return ChangeDataFeedError(
            f"the table {source} had no change data feed in {segment}: what {which} changed is not recorded",
            anew,
            outcome="Nothing of them was published",
        )
    if _TOO_OLD in text:
        return VersionsGoneError(
            f"{rows} can't be published: Delta reads no version that is older than {_KEPT} (by default 7 days); the "
            f"newest is {versions.newest}. What they changed would be lost",
            f"If VACUUM has not deleted their files, ALTER TABLE {source.target.identifier} SET TBLPROPERTIES "
            f"('{_KEPT}' = 'interval 30 days') makes them readable, and the next run publishes them. Else, {ANEW}",
        )
    if _GONE.search(text) and not _NOT_OPENED.search(text):
        return versions.gone(segment.first, segment.last, "files of them are gone (VACUUM, or log retention)")
    if _INCOMPATIBLE.search(text):
        separately = (
            f"Publish them separately: a run with stop={segment.first}, and so on, up to the version that changed the "
            f"schema; then all others. If that version alone fails, {ANEW}"
        )
        return IncompatibleVersionsError(
            f"{rows} can't be read together, because the schema changed: a column was renamed or dropped, or has "
            "another type",
            anew if segment.first == segment.last else separately,
        )
    return PublishFailedError(
        *told(f"{rows} can't be published, because Spark failed to read the rows or to transform them", error),
        outcome="What is committed stays, and the next run continues from there",
    )
