"""Errors of reading a table's versions, derived from Spark's errors if they are gone or have no change data."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, error_text
from dagster_kafka_flip.sink.row_transform import MARK
from dagster_kafka_flip.table.spark_error import is_sparks_own

if TYPE_CHECKING:
    from collections.abc import Generator

    from dagster_kafka_flip.sink.segments import Segment
    from dagster_kafka_flip.sink.table_versions import TableVersions

_NO_FEED = re.compile(r"DELTA_MISSING_CHANGE_DATA|DELTA_CHANGE_TABLE_FEED_DISABLED|change data was not recorded")
_GONE = re.compile(
    r"DELTA_CHANGE_DATA_FILE_NOT_FOUND|DELTA_FILE_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException"
    r"|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_NO_RECREATABLE_HISTORY_FOUND|VersionNotFound"
    r"|DELTA_CANNOT_FIND_VERSION|DELTA_VERSION_NOT_FOUND|Cannot time travel"
)

_INCOMPATIBLE = re.compile(r"DELTA_CHANGE_DATA_FEED_INCOMPATIBLE|PARQUET_COLUMN_DATA_TYPE_MISMATCH")


@contextlib.contextmanager
def reading(versions: TableVersions, segment: Segment) -> Generator[None]:
    """Translates errors of Spark that mean that versions are gone, or have no change data.

    Raises:
        VersionsGoneError: Files of the versions are gone.
        ChangeDataFeedError: The table recorded no changes in them.
        IncompatibleVersionsError: Their schemas are too different to be read together.
        ConfigurationError: The transform changed a column that says what the change is.
    """
    try:
        yield
    except Exception as error:
        # Spark may say of it that a user raised it in SQL.
        if marked := MARK.search(error_text(error)):
            raise ConfigurationError(marked[1]) from error
        if not is_sparks_own(error):
            raise
        if _NO_FEED.search(error_text(error)):
            raise versions.no_feed_in(segment) from error
        if _GONE.search(error_text(error)):
            why = "files of them are gone (VACUUM, or log retention)"
            raise versions.gone(segment.first, segment.last, why) from error
        if _INCOMPATIBLE.search(error_text(error)):
            raise versions.incompatible(segment) from error
        raise
