"""Chooses the columns of a new table that Delta keeps statistics of: those by which a query may skip files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.table.target import DeltaTarget

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
    """Columns with statistics, as Delta's property names them; None if there are none.

    Numbers and times, but not strings: those are the most expensive to compare, and in the order of arrival every file
    has nearly all of them. A column of clustering has statistics in any case.
    """
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
    """The columns that hold no others, with their paths."""
    from pyspark.sql.types import StructType

    for field in struct.fields:
        path = (*parents, field.name)
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, path)
        else:
            yield path, field.dataType
