"""Values that a connector left out because they did not change: taken from earlier changes, or from the table.

PostgreSQL does not log a large value that an update leaves unchanged (TOAST), so a connector can't send it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.remote import kept_rows
from dagster_kafka_flip.table.changes import BEGAN, UNRESOLVED, Changes, same_key
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from pyspark.sql import Column, DataFrame

    Fill: TypeAlias = Callable[[Callable[[], DataFrame]], Changes]

ENDED = "_dagster_kafka_flip_ended"
"""Column of the table's rows: whether the row was deleted, and is kept."""

_PREVIOUS = "_dagster_kafka_flip_previous"
_BEGINS = "_dagster_kafka_flip_begins"
_LIFE = "_dagster_kafka_flip_life"
_FROM = "_dagster_kafka_flip_from"

# Columns of the search for values under previous keys, beside which a table's own columns stand.
_ASKED = "_dagster_kafka_flip_asked"
_AT = "_dagster_kafka_flip_at"
_STATE = "_dagster_kafka_flip_state"
_LAST_ROW = "_dagster_kafka_flip_last_row"
_HAS_ENDED = "_dagster_kafka_flip_has_ended"

# How far the search for the values of a row under its previous keys is.
_GOES_ON = "goes on"
_IN_THE_TABLE = "in the table"
_NOT_ENDED = "not ended"
_OVER = "over"


def filled(changes: Changes) -> tuple[Changes, Fill | None]:
    """Fills in the values that were left out, as far as they are known, and says which are still missing.

    A row lives from its insert, or from the change of its key, to its delete. A value comes from the nearest earlier
    change of the same life. A life that began before the batch continues the table's row. One that begins with a
    changed key continues the row that was deleted under the previous key, in the same topic partition: only there it
    is certain which delete that is.

    Returns:
        The batch, with its rows kept; and if values were left out, what fills them in: from a function that returns the
        table's rows, as they are before the batch, with `ENDED`.
    """
    from pyspark.sql import functions as f

    columns = changes.columns
    there = {name.lower(): name for name in changes.rows.columns}
    if columns.unavailable.lower() not in there:
        return changes, None
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
        return replace(changes, rows=rows.drop(columns.unavailable, columns.previous_key)), None
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
    names = [name for name in landed if name.lower() in left_out_names]
    lives = kept_rows(_lives(changes, rows, names))
    changes = replace(changes, rows=rows, left_out=tuple(names))
    return changes, _under_previous_keys(changes, lives, names)


def _with_values(changes: Changes, lives: DataFrame, answers: DataFrame, names: Sequence[str]) -> Changes:
    """Takes values from the changes of the same life, or from the answers."""
    from pyspark.sql import functions as f

    columns = changes.columns
    found = [f"_dagster_kafka_flip_found_{index}" for index in range(len(names))]
    joined = lives.join(answers, lives[_FROM] == answers[_ASKED], "left")
    value = {
        name: f.coalesce(f.col(_value(index)), f.col(at))
        for index, (name, at) in enumerate(zip(names, found, strict=True))
    }
    deleted = f.col(quoted(columns.deleted))
    missing = f.array(*(f.when(value[name].isNull() & ~deleted, f.lit(name)) for name in names))
    return replace(
        changes,
        rows=joined.select(
            *(
                f.when(deleted, f.col(quoted(name))).otherwise(value[name]["value"]).alias(name)
                if name in value
                else f.col(quoted(name))
                for name in changes.rows.columns
                if name.lower() not in {columns.unavailable.lower(), columns.previous_key.lower()}
            ),
            f.filter(missing, lambda name: name.isNotNull()).alias(UNRESOLVED),
            f.col(BEGAN),
        ),
    )


def _value(index: int) -> str:
    """The column with the value of a column that was left out somewhere, as a STRUCT: null if it is not known."""
    return f"_dagster_kafka_flip_value_{index}"


def _key(index: int) -> str:
    return f"key_{index}"


def _lives(changes: Changes, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Adds to each change the life of the row that it belongs to, where that comes from, and the values known in it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = changes.columns
    topic, partition, offset, deleted = (f.col(quoted(name)) for name in columns[:4])
    keys = [f.col(quoted(name)) for name in changes.key]
    in_order = Window.partitionBy(*keys, topic, partition).orderBy(offset)
    previous = f.when(~deleted, _previous_key(changes, rows))
    begins = f.coalesce(f.lag(deleted).over(in_order), f.lit(False)) | previous.isNotNull()
    rows = rows.select("*", previous.alias(_PREVIOUS), begins.cast("int").alias(_BEGINS))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn(_LIFE, f.sum(_BEGINS).over(so_far))
    of_life = (
        Window.partitionBy(*keys, topic, partition, f.col(_LIFE))
        .orderBy(offset)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    left_out = f.transform(f.coalesce(f.col(quoted(columns.unavailable)), f.array()), f.lower)

    def known(name: str) -> Column:
        is_left_out = f.coalesce(f.array_contains(left_out, name.lower()), f.lit(False))
        return f.when(~deleted & ~is_left_out, f.struct(f.col(quoted(name)).alias("value")))

    first = f.first(f.struct(f.col(_PREVIOUS).alias("key"), offset.alias("offset"))).over(of_life)
    origin = f.struct(
        *(first["key"][_key(index)].alias(_key(index)) for index in range(len(keys))),
        topic.alias("topic"),
        partition.alias("partition"),
        first["offset"].alias("offset"),
    )
    return rows.select(
        "*",
        f.when(f.col(_LIFE) > 0, first["offset"]).alias(BEGAN),
        f.when(first["key"].isNotNull(), origin).alias(_FROM),
        *(f.last(known(name), ignorenulls=True).over(of_life).alias(_value(index)) for index, name in enumerate(names)),
    )


def _previous_key(changes: Changes, rows: DataFrame) -> Column:
    """The key that a row had before, in the types of the key; null if it had none."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    fields = {field.name.lower(): field for field in rows.schema.fields}
    types = [fields[name.lower()].dataType for name in changes.key]
    given = fields.get(changes.columns.previous_key.lower())
    if given is None:
        return f.lit(None).cast(StructType([StructField(_key(index), kind) for index, kind in enumerate(types)]))
    inner = {field.name.lower(): field for field in getattr(given.dataType, "fields", ())}
    missing = [name for name in changes.key if name.lower() not in inner]
    if missing:
        raise ConfigurationError(
            f"the column {given.name}, a row's previous key, is {given.dataType.simpleString()} and has no field "
            f"{', '.join(missing)} of the key",
            "Keep it unchanged in the transform, with the key's columns under their names",
        )
    column, where = f.col(quoted(given.name)), f"in {given.name}"
    each = ((inner[name.lower()], kind) for name, kind in zip(changes.key, types, strict=True))
    parts = [
        same_key(column[field.name], field, kind, where).alias(_key(index)) for index, (field, kind) in enumerate(each)
    ]
    return f.when(column.isNotNull(), f.struct(*parts))


def _under_previous_keys(changes: Changes, lives: DataFrame, names: Sequence[str]) -> Fill:
    from pyspark.sql import functions as f

    kinds = dict(lives.dtypes)
    found = [f"_dagster_kafka_flip_found_{index}" for index in range(len(names))]
    nothing = [f.lit(None).cast(kinds[_value(index)]).alias(at) for index, at in enumerate(found)]
    is_missing = reduce(or_, (f.col(_value(index)).isNull() for index in range(len(names))))
    deleted = f.col(quoted(changes.columns.deleted))
    asked = kept_rows(
        lives.where(~deleted & f.col(_FROM).isNotNull() & is_missing)
        .select(f.col(_FROM).alias(_ASKED))
        .distinct()
        .select(_ASKED, f.col(_ASKED).alias(_AT), *nothing, f.lit(_GOES_ON).alias(_STATE))
    )
    if asked.isEmpty():
        return lambda _: _with_values(changes, lives, asked.select(_ASKED, *found), names)
    # Each step goes back by one change of the key.
    while not asked.where(f.col(_STATE) == _GOES_ON).isEmpty():
        asked = kept_rows(_a_key_back(changes, lives, asked, found))

    def fill(table_rows: Callable[[], DataFrame]) -> Changes:
        answers = _from_the_table(changes, asked, names, found, table_rows())
        return _with_values(changes, lives, answers, names)

    return fill


def _a_key_back(changes: Changes, lives: DataFrame, asked: DataFrame, found: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    topic, partition, offset, deleted = (lives[quoted(name)] for name in changes.columns[:4])
    at = f.col(_AT)
    earlier = reduce(
        and_,
        (
            at["topic"] == topic,
            at["partition"] == partition,
            offset < at["offset"],
            *(at[_key(index)] == lives[quoted(name)] for index, name in enumerate(changes.key)),
        ),
    )
    going_on = asked.where(f.col(_STATE) == _GOES_ON)
    last_row = f.struct(
        f.col(_FROM).alias("origin"),
        (f.col(_LIFE) == 0).alias("in_table"),
        *(f.col(_value(index)).alias(name) for index, name in enumerate(found)),
    )
    seen = (
        going_on.join(lives, earlier, "left")
        .groupBy(_ASKED)
        .agg(
            f.first(_AT).alias(_AT),
            *(f.first(name).alias(name) for name in found),
            f.max_by(deleted, offset).alias(_HAS_ENDED),
            f.max_by(last_row, f.when(~deleted, offset)).alias(_LAST_ROW),
        )
    )
    row, ended = f.col(_LAST_ROW), f.coalesce(f.col(_HAS_ENDED), f.lit(False))
    now = seen.select(
        _ASKED,
        f.when(ended & row["origin"].isNotNull(), row["origin"]).otherwise(f.col(_AT)).alias(_AT),
        *(f.coalesce(f.col(name), f.when(ended, row[name])).alias(name) for name in found),
        f.when(~ended, _NOT_ENDED)
        .when(row.isNull() | row["in_table"], _IN_THE_TABLE)
        .when(row["origin"].isNotNull(), _GOES_ON)
        .otherwise(_OVER)
        .alias(_STATE),
    )
    is_all = reduce(and_, (f.col(name).isNotNull() for name in found))
    now = now.withColumn(_STATE, f.when(is_all, _OVER).otherwise(f.col(_STATE)))
    return now.unionByName(asked.where(f.col(_STATE) != _GOES_ON))


def _from_the_table(
    changes: Changes, asked: DataFrame, names: Sequence[str], found: Sequence[str], table: DataFrame
) -> DataFrame:
    """Fills in what is still missing from the table's rows of the previous keys."""
    from pyspark.sql import functions as f

    columns, there = changes.columns, {name.lower(): name for name in table.columns}
    topic, partition, offset = (table[quoted(there[name.lower()])] for name in columns[:3])
    at, state, row = f.col(_AT), f.col(_STATE), f.col(_LAST_ROW)
    is_older = reduce(
        and_,
        (
            state.isin(_IN_THE_TABLE, _NOT_ENDED),
            offset.isNull() | ((topic == at["topic"]) & (partition == at["partition"]) & (offset < at["offset"])),
            *(at[_key(index)] == table[quoted(there[name.lower()])] for index, name in enumerate(changes.key)),
        ),
    )
    known = [(name, at_) for name, at_ in zip(names, found, strict=True) if name.lower() in there]
    # A connector does not leave out a null: where the table has one, it does not know the value.
    values = [
        f.when(column.isNotNull(), f.struct(column.alias("value"))).alias(at_)
        for column, at_ in ((table[quoted(there[name.lower()])], at_) for name, at_ in known)
    ]
    seen = (
        asked.join(table, is_older, "left")
        .groupBy(_ASKED)
        .agg(
            f.first(_STATE).alias(_STATE),
            *(f.first(name).alias(name) for name in found),
            f.max_by(f.struct(table[ENDED].alias("ended"), *values), f.coalesce(offset, f.lit(-1))).alias(_LAST_ROW),
        )
    )
    # A row that is kept after its delete is the one, even if an earlier batch deleted it.
    is_it = row["ended"].isNotNull() & ((state == _IN_THE_TABLE) | row["ended"])
    taken = {at_: f.when(is_it, row[at_]) for _, at_ in known}
    return seen.select(
        _ASKED, *(f.coalesce(f.col(name), taken[name]).alias(name) if name in taken else f.col(name) for name in found)
    )
