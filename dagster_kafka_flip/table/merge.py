"""The MERGE of a batch of changes: one statement that also carries the position and the fence."""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.remote import kept_rows
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.table.change_errors import SAME_ORDER, TWO_PARTITIONS, UNAVAILABLE, place, raising, unless
from dagster_kafka_flip.table.changes import BEGAN, IS_CURRENT, ORIGIN, UNRESOLVED, VALID_FROM, VALID_TO, Changes
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from dagster_kafka_flip.table.target import DeltaTarget

# Unlikely to be the name of a column, which would make `name.field` ambiguous.
_TABLE = "dagster_kafka_flip_table"
_CHANGES = "dagster_kafka_flip_changes"

# Types whose lowest and highest value Delta keeps for each file, and how a value is written: a literal, because Delta
# leaves out files by literals only.
_LITERALS = {"tinyint": "{}Y", "smallint": "{}S", "int": "{}", "bigint": "{}L", "date": "DATE '{}'", "string": "{}"}
_PLAIN_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LONGEST_BOUND = 256

# Of a session that only runs the MERGE: it takes fence and document from the session's configuration alone, and they
# would end up in whatever else the session writes.
# The statement contains values and names of columns: no setting may change their meaning, nor the table's columns.
# Without skipping Delta reads the table's newest version, not that of the MERGE; and what is looked up is read once.
SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.caseSensitive": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.stats.skipping": "true",
    "spark.databricks.delta.merge.materializeSource": "all",
}


@dataclass(frozen=True)
class LatestChanges:
    """What a merge applies: the last change of each key, of a history all of them, kept.

    The rows of all these keys fulfil the `bounds`: files of the table outside need not be read.
    """

    changes: Changes
    rows: DataFrame
    keys: int
    bounds: tuple[str, ...]


def read(changes: Changes) -> LatestChanges:
    """Reads the batch once: keeps the changes to apply, and returns what the merge needs to know about them."""
    changes = filled(changes)
    rows = kept_rows(changes.in_order() if changes.is_history else changes.latest())
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    columns = [(name, types[name]) for name in changes.key if types[name] in _LITERALS]
    ends = [(name, kind, operator) for name, kind in columns for operator in (">=", "<=")]
    (found,) = rows.agg(
        f.count_distinct(*map(quoted, changes.key)) if changes.is_history else f.count(f.lit(1)),
        *((f.min if operator == ">=" else f.max)(quoted(name)).cast("string") for name, _, operator in ends),
    ).collect()
    keys, *values = found
    bounds = tuple(bound for end, value in zip(ends, values, strict=True) if (bound := _bound(*end, value)) is not None)
    return LatestChanges(changes, rows, int(keys), bounds)


def _bound(name: str, kind: str, operator: str, value: str | None) -> str | None:
    if value is None or len(value) > _LONGEST_BOUND or (kind == "date" and not _PLAIN_DATE.fullmatch(value)):
        return None
    # Bytes that are not UTF-8 are U+FFFD here, and in what Delta keeps for each file: above all ASCII, as they are.
    if kind == "string" and not value.isascii():
        return None
    shown = _LITERALS[kind].format(literal(value) if kind == "string" else value)
    return f"{_TABLE}.{quoted(name)} {operator} {shown}"


def merge(session: SparkSession, target: DeltaTarget, latest: LatestChanges, table: Callable[[], DataFrame]) -> None:
    """What a history needs is looked up by the MERGE itself: it fails if another writer changes what was read."""
    rows = latest.rows
    if latest.changes.is_history:
        rows = versions(latest.changes, rows, table().alias(_TABLE).where(" AND ".join(latest.bounds) or "true"))
    view, spark = f"dagster_kafka_flip_{uuid.uuid4().hex}", rows.sparkSession
    # Only a global view is there in other sessions, too.
    rows.createGlobalTempView(view)
    try:
        place = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
        session.sql(statement(target, latest, f"{quoted(str(place))}.{quoted(view)}")).collect()
    finally:
        with contextlib.suppress(Exception):
            spark.catalog.dropGlobalTempView(view)


def statement(target: DeltaTarget, latest: LatestChanges, source: str) -> str:
    old, new, changes = _TABLE, _CHANGES, latest.changes
    matches = [f"{old}.{quoted(name)} = {new}.{quoted(name)}" for name in changes.key]
    clauses = _ending(changes) if changes.is_history else _replacing(changes)
    if changes.is_history:
        offset = quoted(changes.columns.offset)
        matches += [f"{new}.{quoted(ENDS)}", f"{old}.{quoted(IS_CURRENT)}", f"{old}.{offset} <=> {new}.{offset}"]
    return " ".join(
        [
            f"MERGE INTO {target.identifier} AS {old} USING {source} AS {new}",
            f"ON {' AND '.join([*matches, *latest.bounds])}",
            *clauses,
        ]
    )


def _ending(changes: Changes) -> list[str]:
    names, until = changes.landed.columns, quoted(VALID_TO)
    return [
        f"WHEN MATCHED THEN UPDATE SET {until} = {_CHANGES}.{until}, {quoted(IS_CURRENT)} = false",
        f"WHEN NOT MATCHED AND NOT {_CHANGES}.{quoted(ENDS)}",
        f"THEN INSERT ({', '.join(map(quoted, names))})",
        f"VALUES ({', '.join(f'{_CHANGES}.{quoted(name)}' for name in names)})",
    ]


def _place(row: str, changes: Changes) -> str:
    topic, partition, offset = (f"{row}.{quoted(name)}" for name in changes.columns[:3])
    return f"concat({topic}, '-', {partition}, ' offset ', {offset})"


def _is_newer(row: str, changes: Changes) -> str:
    """Whether a change, or the one that its values are from, is newer than the table's row; fails if it isn't known."""
    old = _TABLE
    topic, partition, offset = (quoted(name) for name in changes.columns[:3])
    is_elsewhere = f"{old}.{topic} <> {row}.{topic} OR {old}.{partition} <> {row}.{partition}"
    mark, by_order = TWO_PARTITIONS, ""
    if changes.order_by is not None:
        order = quoted(changes.order_by)
        mark = SAME_ORDER
        by_order = (
            f"WHEN {old}.{order} IS NULL THEN true WHEN {row}.{order} <> {old}.{order} "
            f"THEN {row}.{order} > {old}.{order} "
        )
    fails = raising("boolean", mark, _place(row, changes), literal(" and "), _place(old, changes))
    # A row without an offset was not written by a stream, and is older than every record, unless its order says more.
    return (
        f"CASE {by_order}WHEN {old}.{offset} IS NULL THEN true "
        f"WHEN {is_elsewhere} THEN {fails} ELSE {row}.{offset} > {old}.{offset} END"
    )


def _replacing(changes: Changes) -> list[str]:
    names, old, new = changes.landed.columns, _TABLE, _CHANGES
    offset, deleted = (quoted(name) for name in changes.columns[2:4])
    is_newer = _is_newer(new, changes)
    # A delete that is kept leaves the values as they are, unless the batch has newer ones.
    stays = f"{new}.{deleted} AND ({new}.{ORIGIN} IS NULL OR NOT ({_is_newer(f'{new}.{ORIGIN}', changes)}))"
    values = set(changes.values()) if changes.keeps_deleted else set[str]()

    def updated(name: str) -> str:
        value = f"{new}.{quoted(name)}"
        if name in changes.left_out:
            is_missing = f"array_contains({new}.{UNRESOLVED}, {literal(name)})"
            value = f"CASE WHEN {is_missing} THEN {old}.{quoted(name)} ELSE {value} END"
        if name in values:
            return f"CASE WHEN {stays} THEN {old}.{quoted(name)} ELSE {value} END"
        if not changes.left_out or quoted(name) != offset:
            return value
        is_nowhere = f"coalesce({old}.{offset} < {new}.{BEGAN}, {old}.{offset} IS NULL AND {new}.{BEGAN} IS NOT NULL)"
        # A connector does not leave out a null: where the table has one, it does not know the value.
        is_nowhere = " OR ".join(
            (
                is_nowhere,
                *(
                    f"array_contains({new}.{UNRESOLVED}, {literal(name)}) AND {old}.{quoted(name)} IS NULL"
                    for name in changes.left_out
                ),
            )
        )
        if changes.keeps_deleted:
            is_nowhere = f"NOT ({stays}) AND ({is_nowhere} OR {old}.{deleted})"
        return unless_missing(value, f"({is_nowhere})")

    def unless_missing(value: str, is_nowhere: str = "true") -> str:
        """Fails where a value is missing. Not in a condition: Delta asks those of all rows."""
        lacks = f"size({new}.{UNRESOLVED}) > 0 AND {is_nowhere}"
        where = (_place(new, changes), literal(": "), f"array_join({new}.{UNRESOLVED}, ', ')")
        return f"CASE WHEN {lacks} THEN {raising('bigint', UNAVAILABLE, *where)} ELSE {value} END"

    def inserted(name: str) -> str:
        value = f"{new}.{quoted(name)}"
        return unless_missing(value) if changes.left_out and quoted(name) == offset else value

    sets = ", ".join(f"{quoted(name)} = {updated(name)}" for name in names)
    inserts = f"THEN INSERT ({', '.join(map(quoted, names))})", f"VALUES ({', '.join(map(inserted, names))})"
    if changes.keeps_deleted:
        return [f"WHEN MATCHED AND ({is_newer}) THEN UPDATE SET {sets}", "WHEN NOT MATCHED", *inserts]
    return [
        f"WHEN MATCHED AND {new}.{deleted} AND ({is_newer}) THEN DELETE",
        f"WHEN MATCHED AND NOT {new}.{deleted} AND ({is_newer}) THEN UPDATE SET {sets}",
        f"WHEN NOT MATCHED AND NOT {new}.{deleted}",
        *inserts,
    ]


ENDS = "_dagster_kafka_flip_ends"
"""Column of rows for a merge: whether the row ends one of the table, with its key and offset, or is a new one."""

_BEFORE = "_dagster_kafka_flip_before"
_SINCE = "_dagster_kafka_flip_since"
_UNTIL = "_dagster_kafka_flip_until"
_NUMBER = "_dagster_kafka_flip_number"
_COUNTS = "_dagster_kafka_flip_counts"


def versions(changes: Changes, rows: DataFrame, table: DataFrame) -> DataFrame:
    """Changes up to the table's last are not applied again. A row is never valid before the one that it follows."""
    from pyspark.sql import Window

    columns = changes.columns
    topic, partition, offset, deleted, timestamp = (f.col(quoted(name)) for name in columns[:5])
    keys = [f.col(quoted(name)) for name in changes.key]
    joined = _with_last_rows(changes, rows, table)
    before = f.col(_BEFORE)
    here, there = place(*columns[:3]), place(before["topic"], before["partition"], before["offset"])
    is_elsewhere = (before["topic"] != topic) | (before["partition"] != partition)
    both = f.concat(here, f.lit(" and "), there)
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
        names = f.concat(here, f.lit(": "), f.array_join(UNRESOLVED, ", "))
        fresh = fresh.where(unless(lacks, UNAVAILABLE, names))

    def value(name: str) -> Column:
        column = f.col(quoted(name))
        if name not in left_out:
            return column
        return f.when(f.array_contains(UNRESOLVED, name), left_out[name]).otherwise(column)

    added = {
        **{name: value(name) for name in changes.landed.columns},
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


# Values that a connector left out because they did not change: taken from earlier changes, or from the table's row.
# PostgreSQL does not log a large value that an update leaves unchanged (TOAST), so a connector can't send it.
_BEGINS = "_dagster_kafka_flip_begins"
_LIFE = "_dagster_kafka_flip_life"


def filled(changes: Changes) -> Changes:
    """Fills in the values that were left out, as far as the batch has them, and says which are still missing.

    A row lives from its insert, or from the change of its key, to its delete. A value comes from the nearest earlier
    change of the same life. What is missing then is in the table's row, if the life began before the batch.
    """
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
            "Make the connector send all values (REPLICA IDENTITY FULL in PostgreSQL), or use a new table without "
            "order_by: a connector writes all records of a key to one topic partition",
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
    from pyspark.sql import Window

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
