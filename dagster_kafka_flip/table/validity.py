"""The history of keys: which rows a batch of changes adds, and which ones it ends."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from dagster_kafka_flip.table.change_errors import TWO_PARTITIONS, UNAVAILABLE, place, unless
from dagster_kafka_flip.table.changes import BEGAN, IS_CURRENT, UNRESOLVED, VALID_FROM, VALID_TO
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from dagster_kafka_flip.table.changes import Changes

ENDS = "_dagster_kafka_flip_ends"
"""Column of rows for a merge: whether the row ends one of the table, with its key and offset, or is a new one."""

_BEFORE = "_dagster_kafka_flip_before"
_SINCE = "_dagster_kafka_flip_since"
_UNTIL = "_dagster_kafka_flip_until"
_NUMBER = "_dagster_kafka_flip_number"
_COUNTS = "_dagster_kafka_flip_counts"


def versions(changes: Changes, rows: DataFrame, table: DataFrame) -> DataFrame:
    """The rows that changes add to the history of their keys, and those that they end.

    Changes up to the last one in the table are not applied again. A row is never valid before the one that it follows:
    if a record has an earlier timestamp than the one before it, both changed at the later of these times.

    Args:
        changes: The batch, with what was left out filled in.
        rows: Its changes in order.
        table: The table's rows that may have one of the keys.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = changes.columns
    topic, partition, offset, deleted, timestamp = (f.col(quoted(name)) for name in columns[:5])
    keys = [f.col(quoted(name)) for name in changes.key]
    joined = _with_last_rows(changes, rows, table)
    before = f.col(_BEFORE)
    there = place(before["topic"], before["partition"], before["offset"])
    is_elsewhere = (before["topic"] != topic) | (before["partition"] != partition)
    both = f.concat(changes.place, f.lit(" and "), there)
    joined = joined.where(unless(before["offset"].isNotNull() & is_elsewhere, TWO_PARTITIONS, both))
    fresh = joined.where(before["offset"].isNull() | (offset > before["offset"]))
    in_order = Window.partitionBy(*keys).orderBy(offset)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    fresh = fresh.select("*", f.row_number().over(in_order).alias(_NUMBER))
    is_first = f.col(_NUMBER) == 1
    was_there = f.coalesce(
        f.when(is_first, before["is_current"]).otherwise(~f.lag(deleted).over(in_order)), f.lit(False)
    )
    fresh = fresh.select("*", (~deleted | was_there).alias(_COUNTS))
    # A delete of what is not there leaves nothing, so that a later batch would not know its time.
    counted_time = f.max(f.when(f.col(_COUNTS), timestamp)).over(so_far)
    fresh = fresh.select("*", f.greatest(counted_time, before["valid_from"], before["valid_to"]).alias(_SINCE))
    fresh = fresh.select("*", f.lead(_SINCE).over(in_order).alias(_UNTIL))
    left_out = {name: before[name] for name in changes.left_out}
    if left_out:
        goes_on = before["is_current"] & (f.col(BEGAN).isNull() | (before["offset"] >= f.col(BEGAN)))
        # A connector does not leave out a null: where the table has one, it does not know the value.
        unknown = reduce(or_, (f.array_contains(UNRESOLVED, name) & before[name].isNull() for name in changes.left_out))
        lacks = ~deleted & (f.size(UNRESOLVED) > 0) & (~f.coalesce(goes_on, f.lit(False)) | unknown)
        names = f.concat(changes.place, f.lit(": "), f.array_join(UNRESOLVED, ", "))
        fresh = fresh.where(unless(lacks, UNAVAILABLE, names))

    def value(name: str) -> Column:
        column = f.col(quoted(name))
        if name not in left_out:
            return column
        return f.when(f.array_contains(UNRESOLVED, name), left_out[name]).otherwise(column)

    own = [name for name in changes.landed.columns if name not in (VALID_FROM, VALID_TO, IS_CURRENT, UNRESOLVED, BEGAN)]
    added = {
        **{name: value(name) for name in own},
        VALID_FROM: f.col(_SINCE),
        VALID_TO: f.col(_UNTIL),
        IS_CURRENT: f.col(_UNTIL).isNull(),
        ENDS: f.lit(False),
    }
    fields = fresh.select(*(column.alias(name) for name, column in added.items())).schema.fields
    named = {name: f.col(quoted(name)) for name in changes.key}
    ended = {**named, columns.offset: before["offset"], VALID_TO: f.col(_SINCE), ENDS: f.lit(True)}

    def row(is_one: Column, values: Mapping[str, Column]) -> Column:
        # An array takes only elements of one type.
        ours = (values.get(each.name, f.lit(None)).cast(each.dataType).alias(each.name) for each in fields)
        return f.when(is_one, f.struct(*ours))

    # One look at the table: a union of both would be two.
    both = f.array(row(~deleted, added), row(is_first & f.coalesce(before["is_current"], f.lit(False)), ended))
    return fresh.select(f.inline(f.filter(both, lambda one: one.isNotNull())))


def _with_last_rows(changes: Changes, rows: DataFrame, table: DataFrame) -> DataFrame:
    """Adds to each change the last row of its key in the table."""
    from pyspark.sql import functions as f

    columns, there = changes.columns, {name.lower(): name for name in table.columns}

    def of_table(name: str) -> Column:
        return table[quoted(there[name.lower()])]

    keys = [f"_dagster_kafka_flip_key_{index}" for index in range(len(changes.key))]
    row = f.struct(
        of_table(columns.topic).alias("topic"),
        of_table(columns.partition).alias("partition"),
        of_table(columns.offset).alias("offset"),
        of_table(VALID_FROM).alias("valid_from"),
        of_table(VALID_TO).alias("valid_to"),
        of_table(IS_CURRENT).alias("is_current"),
        *(
            (of_table(name) if name.lower() in there else f.lit(None).cast(rows.schema[name].dataType)).alias(name)
            for name in changes.left_out
        ),
    )
    # A row without an offset was not written by a stream, and is older than every record.
    newest = f.struct(f.coalesce(of_table(columns.offset), f.lit(-1)), of_table(IS_CURRENT), of_table(VALID_FROM))
    asked = rows.select(
        *(f.col(quoted(name)).alias(key) for name, key in zip(changes.key, keys, strict=True))
    ).distinct()
    on = [f.col(key) == of_table(name) for key, name in zip(keys, changes.key, strict=True)]
    last = asked.join(table, on).groupBy(*keys).agg(f.max_by(row, newest).alias(_BEFORE))
    same = [rows[quoted(name)] == last[key] for key, name in zip(keys, changes.key, strict=True)]
    return rows.join(last, same, "left").drop(*keys)
