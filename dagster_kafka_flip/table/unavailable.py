"""Values that a connector left out because they did not change: taken from earlier changes, or from the table's row.

PostgreSQL does not log a large value that an update leaves unchanged (TOAST), so a connector can't send it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.remote import kept_rows
from dagster_kafka_flip.table.changes import BEGAN, UNRESOLVED, Changes
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_BEGINS = "_dagster_kafka_flip_begins"
_LIFE = "_dagster_kafka_flip_life"


def filled(changes: Changes) -> Changes:
    """Fills in the values that were left out, as far as the batch has them, and says which are still missing.

    A row lives from its insert, or from the change of its key, to its delete. A value comes from the nearest earlier
    change of the same life. What is missing then is in the table's row, if the life began before the batch.
    """
    from pyspark.sql import functions as f

    columns = changes.columns
    there = {name.lower(): name for name in changes.rows.columns}
    if columns.unavailable.lower() not in there:
        return changes
    name = there[columns.unavailable.lower()]
    if (data_type := changes.rows.schema[name].dataType.simpleString()) != "array<string>":
        raise ConfigurationError(
            f"the column {name} must be an ARRAY<STRING>, the names of columns whose value the connector left out, but "
            f"the transform makes it {data_type.upper()}",
            "Keep it unchanged",
        )
    rows = kept_rows(changes.checked())
    left_out = f.col(quoted(columns.unavailable))
    left_out_names = {
        str(name).lower(): str(name) for (name,) in rows.select(f.explode(left_out)).distinct().collect() if name
    }
    if not left_out_names:
        return replace(changes, rows=rows.drop(columns.unavailable, columns.previous_key))
    landed = changes.landed.columns
    if changes.order_by is not None:
        raise ConfigurationError(
            f"the connector left out the value of {', '.join(left_out_names.values())}, and with order_by an older "
            "change may be read later, so the unchanged value is unknown",
            "Make the connector send all values (REPLICA IDENTITY FULL in PostgreSQL), or remove order_by: a connector "
            "writes all records of a key to one topic partition",
        )
    unknown = [left_out_names[name] for name in sorted(left_out_names.keys() - {name.lower() for name in landed})]
    if unknown:
        raise ConfigurationError(
            f"the connector left out the value of {', '.join(unknown)}, but the rows have no column with this name "
            f"(they have {', '.join(landed)}), so it is unknown which of their values are missing",
            f"A transform that renames or drops a column must do the same in {columns.unavailable}, for example with "
            "array_remove",
        )
    names = tuple(name for name in landed if name.lower() in left_out_names)
    return replace(changes, rows=_with_values(changes, rows, names), left_out=names)


def _with_values(changes: Changes, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Takes values from earlier changes of the same life."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = changes.columns
    topic, partition, offset, deleted = (f.col(quoted(name)) for name in columns[:4])
    row = (*(f.col(quoted(name)) for name in changes.key), topic, partition)
    in_order = Window.partitionBy(*row).orderBy(offset)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    begins = f.coalesce(f.lag(deleted).over(in_order), f.lit(False))
    if columns.previous_key.lower() in map(str.lower, rows.columns):
        # It continues the row of another key, whatever the table has under this one.
        begins |= ~deleted & f.col(quoted(columns.previous_key)).isNotNull()
    rows = rows.withColumn(_BEGINS, begins.cast("int"))
    rows = rows.withColumn(_LIFE, f.sum(_BEGINS).over(so_far))
    of_life = (
        Window.partitionBy(*row, f.col(_LIFE)).orderBy(offset).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    left_out = f.transform(f.coalesce(f.col(quoted(columns.unavailable)), f.array()), f.lower)

    def known(name: str) -> Column:
        """A STRUCT, so that a null is a value, too."""
        is_left_out = f.coalesce(f.array_contains(left_out, name.lower()), f.lit(False))
        return f.when(~deleted & ~is_left_out, f.struct(f.col(quoted(name)).alias("value")))

    values = {name: f"_dagster_kafka_flip_value_{index}" for index, name in enumerate(names)}
    rows = rows.select(
        "*",
        f.when(f.col(_LIFE) > 0, f.first(offset).over(of_life)).alias(BEGAN),
        *(f.last(known(name), ignorenulls=True).over(of_life).alias(value) for name, value in values.items()),
    )
    missing = f.array(*(f.when(~deleted & f.col(value).isNull(), f.lit(name)) for name, value in values.items()))
    inner = {columns.unavailable.lower(), columns.previous_key.lower(), _BEGINS, _LIFE, *values.values()}
    return rows.select(
        *(
            f.when(deleted, f.col(quoted(name))).otherwise(f.col(values[name])["value"]).alias(name)
            if name in values
            else f.col(quoted(name))
            for name in rows.columns
            if name.lower() not in inner
        ),
        f.filter(missing, lambda name: name.isNotNull()).alias(UNRESOLVED),
    )
