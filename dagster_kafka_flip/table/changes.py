"""A batch of changes: rows with a key, of which some delete. Finds the last change of each key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError
from dagster_kafka_flip.table.change_errors import (
    EMPTY_KEY,
    NULL_DELETED,
    NULL_KEY,
    TWO_PARTITIONS,
    TWO_ROWS,
    place,
    unless,
)
from dagster_kafka_flip.table.schema import shaped_as
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_LAST = "_dagster_kafka_flip_last"
_NEXT = "_dagster_kafka_flip_next"
_FIRST = "_dagster_kafka_flip_first"

# Where Spark keeps the type of a CHAR column, which it reads as a STRING.
_CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"

# As values of a partition column, Delta stores these texts as null.
_NULL_AS_PARTITION = ("", "__HIVE_DEFAULT_PARTITION__")


class ChangeColumns(NamedTuple):
    """Names of the columns that tell where a change comes from, and what it is."""

    topic: str
    partition: str
    offset: str
    deleted: str
    unavailable: str
    previous_key: str


@dataclass(frozen=True)
class Changes:
    """A batch of changes.

    Attributes:
        rows: One row for each change: the columns of the table, and whether it deletes.
        key: The columns that identify a row of the table.
        columns: The columns that tell where a change comes from, and what it is.
        partitioned_by: Those key columns with texts by which the table is partitioned.
        left_out: Columns whose value is left out in some rows, and not found in the batch; see `unavailable`.
    """

    rows: DataFrame
    key: Sequence[str]
    columns: ChangeColumns
    partitioned_by: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def check(self, table: str) -> None:
        """Checks that the rows have all columns that a change needs.

        Args:
            table: The table's name, for messages.

        Raises:
            ConfigurationError: A column is missing, or its type does not fit.
        """
        fields = {field.name.lower(): field for field in self.rows.schema.fields}
        missing = [name for name in (*self.key, *self.columns[:4]) if name.lower() not in fields]
        if missing:
            msg = (
                f"the rows of {table} have no column {', '.join(missing)}, which its mode needs: Upsert(key=["
                f"{', '.join(map(repr, self.key))}]) takes the key, the record's topic, partition and offset, and "
                f"{self.columns.deleted} from each row. Nothing was written. Keep them in the transform"
            )
            raise ConfigurationError(msg)
        deleted = fields[self.columns.deleted.lower()].dataType
        if deleted.typeName() != "boolean":
            msg = (
                f"the column {self.columns.deleted} of the rows of {table} is {deleted.simpleString()}, not boolean. "
                "Nothing was written. It tells whether a row deletes: change it in the transform"
            )
            raise ConfigurationError(msg)
        for name in self.key:
            kind = fields[name.lower()].dataType
            if not _is_comparable(kind):
                msg = (
                    f"the key column {name} of {table} is {kind.simpleString()}, which Spark can't compare. Nothing "
                    "was written. Make a column of another type in the transform"
                )
                raise ConfigurationError(msg)

    def fitted(self, schema: StructType, partition_columns: Callable[[], Collection[str]], table: str) -> Changes:
        """Checks that keys mean the same in the batch and in the table; returns the changes in the table's shape.

        Fields of STRUCTs that only the table has are null: a MERGE, unlike an append, does not add them.

        Args:
            schema: The table's columns.
            partition_columns: Returns the names of the table's partition columns; only asked if a key can be a text.
            table: The table's name, for messages.

        Raises:
            SchemaMismatchError: A STRUCT in the key has other fields than the table's, or in another order: Spark
                compares them by their place, but writes them by their name. Or a key column is a CHAR.
        """
        fields = {field.name.lower(): field for field in self.rows.schema.fields}
        columns = {field.name.lower(): field for field in schema.fields}
        # By the names that the rows have, which a session with spark.sql.caseSensitive needs.
        key = tuple(fields[name.lower()].name for name in self.key)
        for name in key:
            existing = columns.get(name.lower())
            if existing is not None:
                _check_key_type(fields[name.lower()].dataType, existing, table)
        rows = self.rows
        shaped = [
            shaped_as(field.dataType, columns[name].dataType, field.name) if name in columns else None
            for name, field in fields.items()
        ]
        if any(column is not None for column in shaped):
            rows = rows.select(
                *(
                    rows[quoted(field.name)] if column is None else column.alias(field.name)
                    for field, column in zip(fields.values(), shaped, strict=True)
                )
            )
        texts = [name for name in key if fields[name.lower()].dataType.typeName() in {"string", "binary"}]
        partitions = {name.lower() for name in partition_columns()} if texts else set[str]()
        return replace(
            self, rows=rows, key=key, partitioned_by=tuple(name for name in texts if name.lower() in partitions)
        )

    @property
    def landed(self) -> DataFrame:
        """The rows with the columns of the table."""
        return self.rows.drop(self.columns.deleted, self.columns.unavailable, self.columns.previous_key)

    def checked(self) -> DataFrame:
        """Returns the rows. Their query fails on one without a key, or without whether it deletes."""
        from pyspark.sql import functions as f

        topic, partition, offset, deleted = (f.col(quoted(name)) for name in self.columns[:4])
        at = place(topic, partition, offset)
        lacks = [f.col(quoted(name)).isNull() for name in (*self.key, *self.columns[:3])]
        rows = self.rows.where(unless(f.greatest(*lacks), NULL_KEY, at))
        rows = rows.where(unless(deleted.isNull(), NULL_DELETED, at))
        for name in self.partitioned_by:
            is_empty = f.col(quoted(name)).cast("string").isin(*_NULL_AS_PARTITION)
            rows = rows.where(unless(is_empty, EMPTY_KEY, at))
        return rows

    def latest(self) -> DataFrame:
        """Returns the last change of each key.

        Its execution fails on a row without a key or without whether it deletes, on a record with several rows of one
        key, and on a key in two topic partitions: Kafka does not tell which of them is the last.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        topic, partition, offset = (f.col(quoted(name)) for name in self.columns[:3])
        keys = [f.col(quoted(name)) for name in self.key]
        at = place(topic, partition, offset)
        record = f.struct(topic.alias("topic"), partition.alias("partition"), offset.alias("offset"))
        newest_first = Window.partitionBy(*keys).orderBy(topic.desc(), partition.desc(), offset.desc())
        all_of_it = newest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        numbered = self.checked().select(
            "*",
            f.row_number().over(newest_first).alias(_LAST),
            f.lead(record).over(newest_first).alias(_NEXT),
            f.last(record).over(all_of_it).alias(_FIRST),
        )
        first, following = f.col(_FIRST), f.col(_NEXT)
        both = f.concat(at, f.lit(" and "), place(first["topic"], first["partition"], first["offset"]))
        is_elsewhere = (first["topic"] != topic) | (first["partition"] != partition)
        last = numbered.where(f.col(_LAST) == 1)
        last = last.where(unless(is_elsewhere, TWO_PARTITIONS, both))
        last = last.where(unless(f.coalesce(following == record, f.lit(False)), TWO_ROWS, at))
        return last.drop(_LAST, _NEXT, _FIRST)


def _is_comparable(data_type: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(data_type, StructType):
        return all(_is_comparable(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _is_comparable(data_type.elementType)
    return not isinstance(data_type, (MapType, VariantType))


def _check_key_type(batch: DataType, field: StructField, table: str) -> None:
    if _shape(batch) != _shape(field.dataType):
        msg = (
            f"the key column {field.name} of the table {table} is {field.dataType.simpleString()}, but "
            f"{batch.simpleString()} in the batch, and Spark compares the fields of a key by their order. Nothing was "
            "written. Declare these fields in the table's order"
        )
        raise SchemaMismatchError(msg)
    declared = str((field.metadata or {}).get(_CHAR_TYPE, ""))
    if declared.startswith("char"):
        msg = (
            f"the key column {field.name} of the table {table} is {declared}, which Spark fills up with spaces, so "
            "keys would not match. Nothing was written. Use a table with a STRING there; the first run creates one"
        )
        raise SchemaMismatchError(msg)


def _shape(data_type: DataType) -> object:
    """The names of all fields in their order."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(data_type, StructType):
        return [(field.name.lower(), _shape(field.dataType)) for field in data_type.fields]
    return [_shape(data_type.elementType)] if isinstance(data_type, ArrayType) else None
