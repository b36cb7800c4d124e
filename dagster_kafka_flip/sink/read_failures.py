"""Errors of reading a table's versions, derived from Spark's errors if they are gone or have no change data."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, error_text
from dagster_kafka_flip.sink.row_transform import MARK
from dagster_kafka_flip.table.spark_error import is_from_spark, is_sparks_own
from dagster_kafka_flip.table.write_advice import explained

if TYPE_CHECKING:
    from collections.abc import Generator

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.sink.segments import Segment
    from dagster_kafka_flip.sink.table_versions import TableVersions

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
    """Translates errors of Spark: versions are gone, have no change data, or can't be read for another reason.

    Raises:
        VersionsGoneError: Files of the versions are gone, or Delta reads none so old.
        ChangeDataFeedError: The table recorded no changes in them.
        IncompatibleVersionsError: Their schemas are too different to be read together.
        ConfigurationError: The transform changed a column that says what the change is.
        PublishFailedError: Spark failed for another reason, maybe in the transform.
    """
    try:
        yield
    except Exception as error:
        # Spark may say of it that a user raised it in SQL.
        if marked := MARK.search(error_text(error)):
            raise ConfigurationError(marked[1]) from error
        if not is_from_spark(error):
            raise
        raise _translated(error, versions, segment) from error


def _translated(error: Exception, versions: TableVersions, segment: Segment) -> KafkaFlipError:
    text = error_text(error) if is_sparks_own(error) else ""
    if _NO_FEED.search(text):
        return versions.no_feed_in(segment)
    if _TOO_OLD in text:
        return versions.too_old(segment)
    if _GONE.search(text) and not _NOT_OPENED.search(text):
        return versions.gone(segment.first, segment.last, "files of them are gone (VACUUM, or log retention)")
    if _INCOMPATIBLE.search(text):
        return versions.incompatible(segment)
    return versions.unreadable(segment, explained(error))
