"""Creates a table: the statement, and whether its path is free."""

from __future__ import annotations

import contextlib
import re
import shutil
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.document import STREAMS_PROPERTY, WINDOWS_PROPERTY
from dagster_kafka_flip.table.layout import check_layout, mode_properties
from dagster_kafka_flip.table.schema import check_can_be_stored, column_ddl
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.table.target import DeltaTarget

_DELETION_VECTORS = "delta.enableDeletionVectors"


def create_statement(spark: SparkSession, target: DeltaTarget, schema: StructType) -> str:
    check_layout(str(target), schema.names, partition_by=target.partition_by, cluster_by=target.cluster_by)
    check_can_be_stored(schema, str(target), target.partition_by)
    clauses = [f"CREATE TABLE {target.identifier} ({column_ddl(schema)}) USING delta"]
    if target.partition_by:
        clauses.append(f"PARTITIONED BY ({', '.join(quoted(name) for name in target.partition_by)})")
    if target.cluster_by:
        clauses.append(f"CLUSTER BY ({', '.join(quoted(name) for name in target.cluster_by)})")
    properties = {**target.properties}
    if WINDOWS_PROPERTY not in properties:
        properties[STREAMS_PROPERTY] = "true"
        # Rows to replace or merge are found by texts, too: a window's key, a row's key.
        if not target.key and not are_statistics_chosen(spark, target):
            columns = statistics_columns(target, schema)
            properties |= {} if columns is None else {STATISTICS_COLUMNS: columns}
    if target.key:
        properties |= mode_properties(target.mode)
        if _DELETION_VECTORS.lower() not in map(str.lower, properties):
            # A merge then marks the rows that it replaces, and doesn't write their files again.
            properties[_DELETION_VECTORS] = "true"
    pairs = (f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    clauses.append(f"TBLPROPERTIES ({', '.join(pairs)})")
    return " ".join(clauses)


@contextlib.contextmanager
def looking_at(target: DeltaTarget) -> Generator[None]:
    """Reports that this user may not look at a local path, or that it can be none."""
    try:
        yield
    except OSError as error:
        raise TableError(
            f"{target} can't be looked at: {error.filename or target}: {error.strerror or error}",
            "Correct the path, or give the user of this process the right to read and enter each of its folders",
        ) from error


def check_path_is_free(target: DeltaTarget) -> None:
    """Checks that a table can be created at a path where there is none. Without Spark, so only if the path is local."""
    path = target.local_path
    if path is None:
        return
    with looking_at(target):
        if path.is_file():
            raise TableError(f"{target} is a file, but a Delta table is a folder", "Use another path")
        if not is_free(path) and not (path / _LOG / _FIRST_COMMIT).exists():
            msg = f"{path} is not empty and not a Delta table; choose another path, or convert it with CONVERT TO DELTA"
            raise TableError(msg)
        outer = next((one for one in path.resolve().parents if has_log(one)), None)
    if outer is not None:
        raise TableError(
            f"{target} would be in the folder of the Delta table {outer}, whose VACUUM would delete its files",
            "Put the tables side by side",
        )


# Handles the remains of a run that dies while Delta creates a table on a local file system: a log without a commit.
#
# Delta sees neither a table nor a free location, so nothing could be written there again.
_LOG = "_delta_log"
_FIRST_COMMIT = f"{0:020}.json"
# From Delta's protocol: a table exists once its log has a commit or a checkpoint.
_MAKES_A_TABLE = re.compile(r"\d{20}\.(json|checkpoint.*\.(parquet|json))")


def is_free(path: Path) -> bool:
    """Whether a table can be created here: the location is empty, or has only an incomplete log."""
    return not path.is_dir() or all(
        entry.name.startswith(".") or (entry.name == _LOG and _is_incomplete(entry)) for entry in path.iterdir()
    )


def has_log(path: Path) -> bool:
    """Whether there is a log here that may be a table's; only Delta can confirm it."""
    return (path / _LOG).is_dir() and not _is_incomplete(path / _LOG)


def remove_incomplete_log(path: Path | None) -> None:
    """Deletes an incomplete log. Only call under the table's lock: another run may be about to write."""
    if path is not None and path.is_dir() and is_free(path) and (path / _LOG).is_dir():
        shutil.rmtree(path / _LOG)


def _is_incomplete(log: Path) -> bool:
    return log.is_dir() and not any(_MAKES_A_TABLE.fullmatch(entry.name) for entry in log.iterdir())


STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
_SETTINGS = (STATISTICS_COLUMNS, "delta.dataSkippingNumIndexedCols")
_DEFAULTS = "spark.databricks.delta.properties.defaults."

# Delta's default number of columns.
_MOST_COLUMNS = 32


def are_statistics_chosen(spark: SparkSession, target: DeltaTarget) -> bool:
    """Whether the user has chosen the columns, for the table or for all tables of the session."""
    given = {name.lower() for name in target.properties}
    return any(
        name.lower() in given or spark.conf.get(_DEFAULTS + name.removeprefix("delta."), None) is not None
        for name in _SETTINGS
    )


def statistics_columns(target: DeltaTarget, schema: StructType) -> str | None:
    """Not strings: costly to compare, and in the order of arrival each file has nearly all. None if there are none."""
    from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

    partitioning = {name.lower() for name in target.partition_by}
    named = {name.lower() for name in target.cluster_by}
    found: list[tuple[int, tuple[str, ...]]] = []
    for path, kind in _leaves(schema):
        if path[0].lower() in partitioning:
            continue
        if named & {path[0].lower(), ".".join(path).lower()}:
            if isinstance(kind, (NumericType, DateType, TimestampType, TimestampNTZType, StringType)):
                found.append((0, path))
        elif isinstance(kind, (DateType, TimestampType, TimestampNTZType)):
            found.append((1, path))
        elif isinstance(kind, NumericType):
            found.append((2, path))
    # The last ones first: a record's topic partition, offset and time come after its value.
    found.reverse()
    first = sorted(found, key=lambda each: each[0])[:_MOST_COLUMNS]
    return ",".join(".".join(map(quoted, path)) for _, path in first) or None


def _leaves(struct: StructType, parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], DataType]]:
    from pyspark.sql.types import StructType

    for field in struct.fields:
        path = (*parents, field.name)
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, path)
        else:
            yield path, field.dataType
