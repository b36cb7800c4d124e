"""Looks at the keys of a table: which have several rows, and which rows have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.table.duplicates import RecordColumns


@dataclass(frozen=True)
class KeysSeen:
    """Result of a look at all rows.

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
    """Counts keys in one pass.

    Args:
        table: The table.
        key: The columns that identify a row.
        columns: The columns that identify a row's record.
    """
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)).alias(f"key_{index}") for index, name in enumerate(key)]
    record = f.concat_ws(
        "",
        f.col(quoted(columns.topic)),
        f.lit("-"),
        f.col(quoted(columns.partition)),
        f.lit(" offset "),
        f.col(quoted(columns.offset)),
    )
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
