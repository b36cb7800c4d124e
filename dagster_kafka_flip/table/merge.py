"""The MERGE of a batch of changes: one statement that also carries the position and the fence."""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.isolated_session import isolated_session
from dagster_kafka_flip.runtime.kept_rows import kept_rows
from dagster_kafka_flip.table.change_errors import TWO_PARTITIONS, UNAVAILABLE, raising
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.unavailable import IN_TABLE, UNRESOLVED, filled

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

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

# The statement holds values and names of columns: they are to mean what they are, and the table's columns are to stay.
_TAKEN_LITERALLY = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.caseSensitive": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}


@dataclass(frozen=True)
class LatestChanges:
    """The last change of each key of a batch, read once.

    Attributes:
        rows: The changes.
        keys: Number of keys.
        bounds: SQL conditions that the rows of all these keys fulfil: files of the table outside need not be read.
        left_out: Columns whose value some changes don't have.
    """

    rows: DataFrame
    keys: int
    bounds: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def read(changes: Changes, table_rows: Callable[[], DataFrame]) -> LatestChanges:
    """Reads the batch once: keeps the last change of each key, and tells what the merge needs to know of them.

    Args:
        changes: The batch.
        table_rows: Returns the table's rows; see `filled`.

    Raises:
        ConfigurationError: A value was left out that can't be looked for; see `filled`.
    """
    from pyspark.sql import functions as f

    changes = filled(changes, table_rows)
    rows = kept_rows(changes.latest())
    types = {field.name.lower(): field.dataType.simpleString() for field in rows.schema.fields}
    columns = [(name, types[name.lower()]) for name in changes.key if types[name.lower()] in _LITERALS]
    ends = [(name, kind, operator) for name, kind in columns for operator in (">=", "<=")]
    (found,) = rows.agg(
        f.count(f.lit(1)),
        *((f.min if operator == ">=" else f.max)(quoted(name)).cast("string") for name, _, operator in ends),
    ).collect()
    keys, *values = found
    bounds = (_bound(*end, value) for end, value in zip(ends, values, strict=True))
    return LatestChanges(rows, int(keys), tuple(bound for bound in bounds if bound is not None), changes.left_out)


def _bound(name: str, kind: str, operator: str, value: str | None) -> str | None:
    if value is None or len(value) > _LONGEST_BOUND or (kind == "date" and not _PLAIN_DATE.fullmatch(value)):
        return None
    shown = _LITERALS[kind].format(literal(value) if kind == "string" else value)
    return f"{_TABLE}.{quoted(name)} {operator} {shown}"


@contextlib.contextmanager
def merging(
    spark: SparkSession, target: DeltaTarget, changes: Changes, latest: LatestChanges, settings: Mapping[str, str]
) -> Generator[tuple[SparkSession, str]]:
    """A session of its own with these settings, and the MERGE to run in it.

    A MERGE takes its fence and its user metadata from the session's configuration alone, and they would end up in
    whatever else is written by that session at the same time.

    Args:
        spark: The session of the changes.
        target: The table.
        changes: The batch.
        latest: What was read of it.
        settings: Spark settings.
    """
    view = f"dagster_kafka_flip_{uuid.uuid4().hex}"
    # Only a global view is there in other sessions, too.
    latest.rows.createGlobalTempView(view)
    try:
        place = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
        with isolated_session(spark, {**_TAKEN_LITERALLY, **settings}) as session:
            yield session, statement(target, changes, latest, f"{quoted(str(place))}.{quoted(view)}")
    finally:
        with contextlib.suppress(Exception):
            spark.catalog.dropGlobalTempView(view)


def statement(target: DeltaTarget, changes: Changes, latest: LatestChanges, source: str) -> str:
    """Returns the MERGE statement.

    Args:
        target: The table.
        changes: The batch.
        latest: What was read of it.
        source: Identifier of the view with the changes.
    """
    names = changes.landed.columns
    topic, partition, offset, deleted = (quoted(name) for name in changes.columns[:4])
    old, new = _TABLE, _CHANGES
    matches = [f"{old}.{quoted(name)} = {new}.{quoted(name)}" for name in changes.key]
    at = f"{new}.{topic}, '-', {new}.{partition}, ' offset ', {new}.{offset}"
    there = f"{old}.{topic}, '-', {old}.{partition}, ' offset ', {old}.{offset}"
    # A row without an offset was not written by a stream, and is older than every record.
    is_newer = (
        f"CASE WHEN {old}.{offset} IS NULL THEN true "
        f"WHEN {old}.{topic} <> {new}.{topic} OR {old}.{partition} <> {new}.{partition} "
        f"THEN {raising('boolean', TWO_PARTITIONS, at, literal(' and '), there)} "
        f"ELSE {new}.{offset} > {old}.{offset} END"
    )

    def updated(name: str) -> str:
        if name.lower() not in {each.lower() for each in latest.left_out}:
            return there_is(name, f"NOT {new}.{IN_TABLE}")
        is_missing = f"array_contains({new}.{UNRESOLVED}, {literal(name)})"
        return f"CASE WHEN {is_missing} THEN {old}.{quoted(name)} ELSE {new}.{quoted(name)} END"

    def there_is(name: str, is_nowhere: str = "true") -> str:
        """The value; fails where a value is missing. Not in a condition: Delta asks them of all rows."""
        if not latest.left_out or name.lower() != changes.columns.offset.lower():
            return f"{new}.{quoted(name)}"
        fails = raising("bigint", UNAVAILABLE, at, literal(": "), f"array_join({new}.{UNRESOLVED}, ', ')")
        return f"CASE WHEN size({new}.{UNRESOLVED}) > 0 AND {is_nowhere} THEN {fails} ELSE {new}.{quoted(name)} END"

    return " ".join(
        [
            f"MERGE INTO {target.identifier} AS {old} USING {source} AS {new}",
            f"ON {' AND '.join([*matches, *latest.bounds])}",
            f"WHEN MATCHED AND {new}.{deleted} AND ({is_newer}) THEN DELETE",
            f"WHEN MATCHED AND NOT {new}.{deleted} AND ({is_newer})",
            f"THEN UPDATE SET {', '.join(f'{quoted(name)} = {updated(name)}' for name in names)}",
            f"WHEN NOT MATCHED AND NOT {new}.{deleted}",
            f"THEN INSERT ({', '.join(map(quoted, names))})",
            f"VALUES ({', '.join(map(there_is, names))})",
        ]
    )
