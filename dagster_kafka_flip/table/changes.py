"""A batch of changes: rows with a key, some of which delete. Finds the last change of each key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.table.change_errors import (
    CHANGED_KEY,
    CHANGED_PARTITION,
    NULL_DELETED,
    NULL_KEY,
    NULL_ORDER,
    NULL_TIME,
    SAME_ORDER,
    TWO_PARTITIONS,
    TWO_ROWS,
    place,
    unless,
)
from dagster_kafka_flip.table.layout import changed_in_partitions, partition_texts
from dagster_kafka_flip.table.mode import Scd2, Upsert, written
from dagster_kafka_flip.table.schema import shaped
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import Column, DataFrame, WindowSpec
    from pyspark.sql.types import DataType, StructField, StructType

# The columns of a history: since when a row is valid, until when, and whether it still is.
VALID_FROM, VALID_TO, IS_CURRENT = VALIDITY = ("valid_from", "valid_to", "is_current")

ORIGIN = "_dagster_kafka_flip_origin"
"""Column of changes, where deleted rows stay: the place in the log of the values; null if the batch has none."""

UNRESOLVED = "_dagster_kafka_flip_unresolved"
"""Column of changes: the columns whose value was left out, and the batch does not have."""

BEGAN = "_dagster_kafka_flip_began"
"""Column of changes: the offset with which the row began in the batch; null if it was there before."""

_LAST = "_dagster_kafka_flip_last"
_NEXT = "_dagster_kafka_flip_next"
_OTHER = "_dagster_kafka_flip_other"
_VALUES = "_dagster_kafka_flip_values"


# The maximum precision of a DECIMAL in Spark.
_MOST_DIGITS = 38


class ChangeColumns(NamedTuple):
    """Names of the columns that say where a change comes from, and what it does."""

    topic: str
    partition: str
    offset: str
    deleted: str
    timestamp: str
    unavailable: str
    previous_key: str


@dataclass(frozen=True)
class Changes:
    """A batch of changes: rows with the table's columns, and whether each is a delete.

    `texts` are columns with texts by which the table is partitioned.
    `left_out` are columns whose value some rows lack, and the batch does not have; see `merge.filled`.
    """

    rows: DataFrame
    mode: Upsert | Scd2
    columns: ChangeColumns
    key: tuple[str, ...]
    texts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def order_by(self) -> str | None:
        """The column that says which change of a key is newer; None if the offset does."""
        return self.mode.order_by if isinstance(self.mode, Upsert) else None

    @property
    def keeps_deleted(self) -> bool:
        return isinstance(self.mode, Upsert) and self.mode.soft_delete

    @property
    def is_history(self) -> bool:
        return isinstance(self.mode, Scd2)

    def check(self, table: str) -> None:
        fields = {field.name.lower(): field for field in self.rows.schema.fields}
        order = () if self.order_by is None else (self.order_by,)
        time = (self.columns.timestamp,) if self.is_history else ()
        needed = (*self.key, *order, *self.columns[:4], *time)
        if missing := [name for name in needed if name.lower() not in fields]:
            what = "topic, partition, offset and timestamp" if time else "topic, partition and offset"
            raise ConfigurationError(
                f"the rows of {table} have no column {', '.join(missing)}, which its mode needs: {written(self.mode)} "
                f"takes the key, the record's {what}, and {self.columns.deleted} from each row",
                "Keep them in the transform",
            )
        if taken := [name for name in VALIDITY if self.is_history and name in fields]:
            raise ConfigurationError(
                f"the rows of {table} have a column {', '.join(taken)}, which Scd2 adds to each row",
                "Rename it in the transform",
            )
        if set(map(str.lower, order)) & {name.lower() for name in self.columns[:4]}:
            raise ConfigurationError(
                f"order_by={self.order_by!r} says where a change was read, not which change is newer",
                f"Name a column of the value, or {self.columns.timestamp}",
            )
        deleted = fields[self.columns.deleted.lower()].dataType
        if deleted.typeName() != "boolean":
            raise ConfigurationError(
                f"the column {self.columns.deleted} of the rows of {table} is {deleted.simpleString()}, not boolean",
                "It marks deletes: convert it in the transform",
            )

    def fitted(self, schema: StructType, partition_columns: Callable[[], Collection[str]], table: str) -> Changes:
        """Checks that keys mean the same; gives STRUCTs the table's fields, in its order, as a MERGE would not."""
        fields = {field.name.lower(): field for field in self.rows.schema.fields}
        columns = {field.name.lower(): field for field in schema.fields}
        # As the rows spell them, perhaps by a transform: names are compared below, and by a case-sensitive session.
        key = tuple(fields[name.lower()].name for name in self.key)
        named = ChangeColumns(*(fields[name.lower()].name if name.lower() in fields else name for name in self.columns))
        order = () if self.order_by is None else (self.order_by,)
        if unknown := [name for name in (*key, *order) if name.lower() not in columns]:
            raise SchemaMismatchError(
                f"the table {table} has no column {', '.join(unknown)}, which identifies its rows, so no change would "
                "find its row",
                "If it was renamed, rename it back, or use a new table",
            )
        for name in key:
            _check_key_type(fields[name.lower()].dataType, columns[name.lower()], table)
        for name in order:
            _check_compares(
                fields[name.lower()].dataType,
                columns[name.lower()],
                f"the column {name} of {table}, which order_by names,",
                "a change would count as older than the one before it",
            )
        rows = self.rows
        changed = [
            shaped(field.dataType, columns[name].dataType, rows[quoted(field.name)]) if name in columns else None
            for name, field in fields.items()
        ]
        if any(column is not None for column in changed):
            rows = rows.select(
                *(
                    rows[quoted(field.name)] if column is None else column.alias(field.name)
                    for field, column in zip(fields.values(), changed, strict=True)
                )
            )
        texts = tuple(partition_texts(rows.columns, schema, partition_columns))
        return replace(self, rows=rows, columns=named, key=key, texts=texts)

    @property
    def landed(self) -> DataFrame:
        deleted = () if self.keeps_deleted else (self.columns.deleted,)
        rows = self.rows.drop(*deleted, self.columns.unavailable, self.columns.previous_key, UNRESOLVED, BEGAN)
        kinds = {VALID_FROM: "timestamp_ltz", VALID_TO: "timestamp_ltz", IS_CURRENT: "boolean"}
        added = kinds.items() if self.is_history else ()
        return rows.select("*", *(f.lit(None).cast(kind).alias(name) for name, kind in added))

    def checked(self) -> DataFrame:
        """Returns the rows. Their query fails on one that lacks what a change needs, such as its key."""
        lacks = [f.col(quoted(name)).isNull() for name in (*self.key, *self.columns[:3])]
        wrong = [(f.greatest(*lacks), NULL_KEY), (f.col(quoted(self.columns.deleted)).isNull(), NULL_DELETED)]
        lands = ~f.col(quoted(self.columns.deleted))
        for name in self.texts:
            is_changed = changed_in_partitions(f.col(quoted(name)))
            # A delete's other values are not stored.
            wrong.append((is_changed, CHANGED_KEY) if name in self.key else (lands & is_changed, CHANGED_PARTITION))
        if self.order_by is not None:
            wrong.append((f.col(quoted(self.order_by)).isNull(), NULL_ORDER))
        time = self.columns.timestamp
        if self.is_history or (self.order_by or "").lower() == time.lower():
            # Kafka's "no timestamp" is -1 (KIP-32).
            no_time = f.timestamp_millis(f.lit(-1))
            wrong.append((f.coalesce(f.col(quoted(time)), no_time) == no_time, NULL_TIME))
        rows = self.rows
        for is_wrong, mark in wrong:
            rows = rows.where(unless(is_wrong, mark, place(*self.columns[:3])))
        return rows

    def latest(self) -> DataFrame:
        """Fails as `checked`, and where it is unknown which change is last. A kept delete has the values before it."""
        last = self._numbered()
        if self.keeps_deleted:
            last = self._with_last_values(last)
        return self._certain(last.where(f.col(_LAST) == 1)).drop(_LAST, _NEXT, _OTHER)

    def in_order(self) -> DataFrame:
        return self._certain(self._numbered()).drop(_LAST, _NEXT, _OTHER)

    def _newest_first(self) -> WindowSpec:
        from pyspark.sql import Window

        names = (*(() if self.order_by is None else (self.order_by,)), *self.columns[:3])
        return Window.partitionBy(*map(quoted, self.key)).orderBy(*(f.col(quoted(name)).desc() for name in names))

    def _numbered(self) -> DataFrame:
        """The changes of each key from the last to the first, with the next one, and one whose order is in question."""
        from pyspark.sql import Window

        newest_first = self._newest_first()
        equal = newest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        if self.order_by is not None:
            topic, partition = (f.col(quoted(name)) for name in self.columns[:2])
            equal = Window.partitionBy(*map(quoted, (*self.key, self.order_by))).orderBy(topic.desc(), partition.desc())
            equal = equal.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        return self.checked().select(
            "*",
            f.row_number().over(newest_first).alias(_LAST),
            f.lead(self._record).over(newest_first).alias(_NEXT),
            f.last(self._record).over(equal).alias(_OTHER),
        )

    @property
    def _record(self) -> Column:
        names = zip(self.columns[:3], ("topic", "partition", "offset"), strict=True)
        return f.struct(*(f.col(quoted(name)).alias(field) for name, field in names))

    def _certain(self, numbered: DataFrame) -> DataFrame:
        other, record = f.col(_OTHER), self._record
        here = place(*self.columns[:3])
        both = f.concat(here, f.lit(" and "), place(other["topic"], other["partition"], other["offset"]))
        is_elsewhere = (other["topic"] != record["topic"]) | (other["partition"] != record["partition"])
        mark = TWO_PARTITIONS if self.order_by is None else SAME_ORDER
        certain = numbered.where(unless(is_elsewhere, mark, both))
        return certain.where(unless(f.coalesce(f.col(_NEXT) == record, f.lit(False)), TWO_ROWS, here))

    def values(self) -> list[str]:
        """The columns of a row that a delete leaves as they are."""
        own = {name.lower() for name in (*self.key, self.order_by or "", *self.columns)}
        return [name for name in self.landed.columns if name.lower() not in own]

    def _with_last_values(self, rows: DataFrame) -> DataFrame:
        """Adds to the last change of each key the values before it if it deletes, and the place they are from."""
        from pyspark.sql import Window

        deleted = f.col(quoted(self.columns.deleted))
        names = [*self.values(), *(name for name in (UNRESOLVED, BEGAN) if name in rows.columns)]
        order = () if self.order_by is None else (self.order_by,)
        origin = f.struct(*(f.col(quoted(name)) for name in (*self.columns[:3], *order)))
        known_values = f.when(~deleted, f.struct(origin.alias("origin"), *(f.col(quoted(name)) for name in names)))
        # From the current row on, Spark would go through all that follow for each row: hours, for one busy key.
        whole = self._newest_first().rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        rows = rows.withColumn(_VALUES, f.first(known_values, ignorenulls=True).over(whole))
        return rows.select(
            *(
                f.when(deleted, f.col(_VALUES)[name]).otherwise(f.col(quoted(name))).alias(name)
                if name in names
                else f.col(quoted(name))
                for name in rows.columns
                if name != _VALUES
            ),
            f.col(_VALUES)["origin"].alias(ORIGIN),
        )


def _check_key_type(batch: DataType, field: StructField, table: str) -> None:
    if not _means_the_same(batch, field.dataType):
        raise SchemaMismatchError(
            f"the key column {field.name} of the table {table} is {field.dataType.simpleString()}, but "
            f"{batch.simpleString()} in the batch, and Spark compares the fields of a key by their order",
            "Declare these fields in the table's order",
        )
    column = f"the key column {field.name} of the table {table}"
    _check_compares(batch, field, column, "changes would not find their rows")


def _check_compares(batch: DataType, field: StructField, column: str, otherwise: str) -> None:
    if (field.dataType.typeName(), batch.typeName()) == ("float", "double"):
        raise SchemaMismatchError(
            f"{column} is FLOAT, but DOUBLE in the batch. Widened, the 0.1 in the table is another number than the 0.1 "
            f"in a record, so {otherwise}",
            "Cast it to FLOAT in the transform, or read the topic into a new table",
        )


def same_key(column: Column, field: StructField, wanted: DataType, where: str) -> Column:
    """A key column from elsewhere in the type of the row's column; null if there it would be the key of another row."""
    from pyspark.sql.types import DecimalType, StringType

    kind = field.dataType
    if not _means_the_same(kind, wanted):
        raise ConfigurationError(
            f"the key column {field.name} is {kind.simpleString()} {where} and {wanted.simpleString()} in the value. "
            "Spark would convert it to another value, which would be the key of another row, or of none",
            "Give both the same type",
        )
    if kind == wanted:
        return column
    value = column.try_cast(wanted)
    if isinstance(kind, StringType) and isinstance(wanted, DecimalType):
        wide = DecimalType(_MOST_DIGITS, wanted.scale + _MOST_DIGITS - wanted.precision)
        return f.when(column.try_cast(wide).eqNullSafe(value.cast(wide)), value)
    # One value has several texts, such as 1 and 01.
    if StringType in (type(kind), type(wanted)):
        return value
    return f.when(value.try_cast(kind).eqNullSafe(column), value)


def _means_the_same(kind: DataType, wanted: DataType) -> bool:
    """Whether Spark converts a value of one type to the same one in another, or to null if there is none."""
    # It converts the fields of a STRUCT by their order, and takes every number for seconds.
    from pyspark.sql.types import ArrayType, NumericType, StringType, StructType

    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        names, others = ([name.lower() for name in each.names] for each in (kind, wanted))
        fields = zip(kind.fields, wanted.fields, strict=False)
        return names == others and all(_means_the_same(one.dataType, other.dataType) for one, other in fields)
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        return _means_the_same(kind.elementType, wanted.elementType)
    if kind == wanted or (isinstance(kind, NumericType) and isinstance(wanted, NumericType)):
        return True
    return isinstance(kind, StringType) or isinstance(wanted, StringType)
