"""Checks the keys of a table: which have several rows, which rows have none, and whether histories overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.table.changes import IS_CURRENT, VALID_FROM, VALID_TO
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from dagster_kafka_flip.table.duplicates import RecordColumns


@dataclass(frozen=True)
class KeysSeen:
    """Result of a check of all rows.

    Attributes:
        rows: Number of rows.
        null_rows: Number of rows with a null in a key column.
        duplicate_keys: Number of keys with several rows; a null equals a null.
        surplus: Number of surplus rows.
        example: Records that two rows of one key come from; None if there is no such key.
    """

    rows: int
    null_rows: int
    duplicate_keys: int
    surplus: int
    example: str | None


def look_at_keys(table: DataFrame, key: Sequence[str], columns: RecordColumns) -> KeysSeen:
    """Counts keys in one pass."""
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)).alias(f"key_{index}") for index, name in enumerate(key)]
    record = _record(columns)
    names = [f"key_{index}" for index in range(len(key))]
    lacks = f.lit(False)
    for name in names:
        lacks |= f.col(name).isNull()
    counted = (
        table.select(*keys, record.alias("record"))
        .groupBy(*names)
        .agg(f.count(f.lit(1)).alias("copies"), f.min("record").alias("one"), f.max("record").alias("other"))
    )
    is_double = f.col("copies") > 1
    (found,) = counted.agg(
        f.coalesce(f.sum("copies"), f.lit(0)).alias("rows"),
        f.coalesce(f.sum(f.when(lacks, f.col("copies"))), f.lit(0)).alias("nulls"),
        f.count(f.when(is_double, 1)).alias("doubles"),
        f.coalesce(f.sum(f.when(is_double, f.col("copies") - 1)), f.lit(0)).alias("surplus"),
        f.min(f.when(is_double, f.struct("one", "other"))).alias("example"),
    ).collect()
    example = found["example"]
    return KeysSeen(
        rows=found["rows"],
        null_rows=found["nulls"],
        duplicate_keys=found["doubles"],
        surplus=found["surplus"],
        example=None if example is None else f"{example['one']} and {example['other']}",
    )


@dataclass(frozen=True)
class HistorySeen:
    """Result of a look at the history of all keys.

    Attributes:
        rows: Number of rows.
        overlaps: Number of rows that are valid until after the next one of their key begins, or that end before they
            begin, or whose `is_current` contradicts this.
        example: The record that one of them comes from; None if there is none.
    """

    rows: int
    overlaps: int
    example: str | None


def look_at_history(table: DataFrame, key: Sequence[str], columns: RecordColumns) -> HistorySeen:
    """Counts rows of a history that contradict each other, in one pass."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)) for name in key]
    since, until = f.col(VALID_FROM), f.col(VALID_TO)
    in_order = Window.partitionBy(*keys).orderBy(since, until.asc_nulls_last(), f.col(quoted(columns.offset)))
    following = f.lead(f.struct(since)).over(in_order)[VALID_FROM]
    is_wrong = (
        since.isNull()
        | f.coalesce(until < since, f.lit(False))
        | (following.isNotNull() & f.coalesce(following < until, f.lit(True)))
        | ~f.coalesce(f.col(IS_CURRENT) == until.isNull(), f.lit(False))
    )
    record = _record(columns)
    (found,) = (
        table.select(is_wrong.alias("is_wrong"), record.alias("record"))
        .agg(
            f.count(f.lit(1)), f.count(f.when(f.col("is_wrong"), 1)), f.min(f.when(f.col("is_wrong"), f.col("record")))
        )
        .collect()
    )
    return HistorySeen(*found)


def _record(columns: RecordColumns) -> Column:
    """Text for a row's record, such as `orders-0 offset 17`."""
    from pyspark.sql import functions as f

    topic, partition, offset = (f.col(quoted(name)) for name in (columns.topic, columns.partition, columns.offset))
    return f.concat_ws("", topic, f.lit("-"), partition, f.lit(" offset "), offset)
