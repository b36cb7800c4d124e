"""The MERGE of a batch of changes: one statement that also carries the position and the fence."""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.kept_rows import kept_rows
from dagster_kafka_flip.table.change_errors import SAME_ORDER, TWO_PARTITIONS, UNAVAILABLE, raising
from dagster_kafka_flip.table.changes import BEGAN, IS_CURRENT, ORIGIN, UNRESOLVED, VALID_TO
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.unavailable import filled
from dagster_kafka_flip.table.validity import ENDS, versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.table.changes import Changes
    from dagster_kafka_flip.table.target import DeltaTarget

# Unlikely to be the name of a column, which would make `name.field` ambiguous.
_TABLE = "dagster_kafka_flip_table"
_CHANGES = "dagster_kafka_flip_changes"

# Types whose lowest and highest value Delta keeps for each file, and how a value is written: a literal, because Delta
# leaves out files by literals only.
_LITERALS = {
    "tinyint": "{}Y",
    "smallint": "{}S",
    "int": "{}",
    "bigint": "{}L",
    "date": "DATE '{}'",
    "string": "{}",
}
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
    """What a merge applies: the last change of each key of a batch, or rows that begin and end.

    What they need of the table is looked up by the MERGE itself: a source that reads the MERGE's own table reads the
    version that it changes, and the MERGE fails if another writer changes what was read.

    Attributes:
        rows: Returns the rows; from a function that returns those of the table, as they are before the batch.
        keys: Number of keys of the batch.
        bounds: SQL conditions that the rows of all these keys fulfil: files of the table outside need not be read.
        left_out: Columns whose value some changes don't have.
    """

    rows: Callable[[Callable[[], DataFrame]], DataFrame]
    keys: int
    bounds: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def read(changes: Changes) -> LatestChanges:
    """Reads the batch once: keeps the changes to apply, and returns what the merge needs to know about them.

    Raises:
        ConfigurationError: A value was left out that can't be looked up; see `filled`.
    """
    from pyspark.sql import functions as f

    changes, fill = filled(changes)
    known = changes.rows
    if fill is None:
        known = kept_rows(changes.in_order() if changes.is_history else changes.latest())
    types = {field.name: field.dataType.simpleString() for field in known.schema.fields}
    columns = [(name, types[name]) for name in changes.key if types[name] in _LITERALS]
    ends = [(name, kind, operator) for name, kind in columns for operator in (">=", "<=")]
    is_latest = fill is None and not changes.is_history
    (found,) = known.agg(
        f.count(f.lit(1)) if is_latest else f.count_distinct(*map(quoted, changes.key)),
        *((f.min if operator == ">=" else f.max)(quoted(name)).cast("string") for name, _, operator in ends),
    ).collect()
    keys, *values = found
    bounds = tuple(bound for end, value in zip(ends, values, strict=True) if (bound := _bound(*end, value)) is not None)

    def rows(table_rows: Callable[[], DataFrame]) -> DataFrame:
        whole = changes if fill is None else fill(table_rows)
        if not changes.is_history:
            return known if fill is None else whole.latest()
        table = table_rows().alias(_TABLE).where(" AND ".join(bounds) or "true")
        return versions(whole, known if fill is None else whole.in_order(), table)

    return LatestChanges(rows, int(keys), bounds, changes.left_out)


def _bound(name: str, kind: str, operator: str, value: str | None) -> str | None:
    if value is None or len(value) > _LONGEST_BOUND or (kind == "date" and not _PLAIN_DATE.fullmatch(value)):
        return None
    shown = _LITERALS[kind].format(literal(value) if kind == "string" else value)
    return f"{_TABLE}.{quoted(name)} {operator} {shown}"


def merge(session: SparkSession, target: DeltaTarget, changes: Changes, latest: LatestChanges, rows: DataFrame) -> None:
    """Merges the rows of `latest` in a session with the settings `SETTINGS`, its fence and its document."""
    view, spark = f"dagster_kafka_flip_{uuid.uuid4().hex}", rows.sparkSession
    # Only a global view is there in other sessions, too.
    rows.createGlobalTempView(view)
    try:
        place = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
        session.sql(statement(target, changes, latest, f"{quoted(str(place))}.{quoted(view)}")).collect()
    finally:
        with contextlib.suppress(Exception):
            spark.catalog.dropGlobalTempView(view)


def statement(target: DeltaTarget, changes: Changes, latest: LatestChanges, source: str) -> str:
    """Returns the MERGE statement; `source` identifies the view with the changes."""
    old, new = _TABLE, _CHANGES
    matches = [f"{old}.{quoted(name)} = {new}.{quoted(name)}" for name in changes.key]
    clauses = _ending(changes) if changes.is_history else _replacing(changes, latest)
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
    """Ends the current rows of keys that changed, and adds the rows that follow them."""
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


def _replacing(changes: Changes, latest: LatestChanges) -> list[str]:
    """Replaces the rows of keys that changed, deletes them, or marks them as deleted."""
    names, old, new = changes.landed.columns, _TABLE, _CHANGES
    offset, deleted = (quoted(name) for name in changes.columns[2:4])
    is_newer = _is_newer(new, changes)
    # A delete that is kept leaves the values as they are, unless the batch has newer ones.
    stays = f"{new}.{deleted} AND ({new}.{ORIGIN} IS NULL OR NOT ({_is_newer(f'{new}.{ORIGIN}', changes)}))"
    values = set(changes.values()) if changes.keeps_deleted else set[str]()

    def updated(name: str) -> str:
        value = f"{new}.{quoted(name)}"
        if name in latest.left_out:
            is_missing = f"array_contains({new}.{UNRESOLVED}, {literal(name)})"
            value = f"CASE WHEN {is_missing} THEN {old}.{quoted(name)} ELSE {value} END"
        if name in values:
            return f"CASE WHEN {stays} THEN {old}.{quoted(name)} ELSE {value} END"
        if not latest.left_out or quoted(name) != offset:
            return value
        is_nowhere = f"coalesce({old}.{offset} < {new}.{BEGAN}, {old}.{offset} IS NULL AND {new}.{BEGAN} IS NOT NULL)"
        # A connector does not leave out a null: where the table has one, it does not know the value.
        is_nowhere = " OR ".join(
            (
                is_nowhere,
                *(
                    f"array_contains({new}.{UNRESOLVED}, {literal(name)}) AND {old}.{quoted(name)} IS NULL"
                    for name in latest.left_out
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
        return unless_missing(value) if latest.left_out and quoted(name) == offset else value

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
