"""Checks partition and clustering columns against the table's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError
from dagster_kafka_flip.settings.names import meant_by
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

NULL_AS_PARTITION = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that Delta stores as null, as values of a partition column."""


def check_layout(
    table: str, columns: Collection[str], *, partition_by: Sequence[str], cluster_by: Sequence[str]
) -> None:
    """Checks that a table has its partition and clustering columns.

    Raises:
        ConfigurationError: A column is missing, or all columns are partition columns.
    """
    # Spark and Delta compare column names case-insensitively.
    there = {name.lower() for name in columns}
    for option, names in (("partition_by", partition_by), ("cluster_by", cluster_by)):
        for name in names:
            # A field of a STRUCT can be a clustering column.
            known = name.lower() in there or (option == "cluster_by" and name.partition(".")[0].lower() in there)
            if not known:
                near = meant_by(name, columns)
                msg = f"{option}: the rows of {table} have no column {name!r}; " + (
                    f"did you mean {near[0]}?" if near else f"columns: {', '.join(columns)}"
                )
                raise ConfigurationError(msg)
    if partition_by and len(partition_by) == len(there):
        msg = (
            f"partition_by: the rows of {table} have only the columns {', '.join(columns)}, and Delta needs at least "
            "one column that is not a partition column"
        )
        raise ConfigurationError(msg)


def check_binary_partitions(table: str, batch: StructType, partition_columns: Callable[[], Collection[str]]) -> None:
    """Checks that a batch writes no BINARY into a partition column of a table.

    Delta stores the values of partition columns as text, and replaces what is not UTF-8.

    Args:
        table: The table's name.
        batch: The batch's columns.
        partition_columns: Returns the table's partition columns; only asked if the batch has a BINARY.

    Raises:
        SchemaMismatchError: It does.
    """
    binary = [field.name for field in batch.fields if field.dataType.typeName() == "binary"]
    partitions = {name.lower() for name in partition_columns()} if binary else set[str]()
    for name in binary:
        if name.lower() in partitions:
            msg = (
                f"the table {table} is partitioned by the BINARY {name}, and Delta would change its bytes. Nothing was "
                "written. Use a table that is partitioned by a STRING, such as hex() makes in the transform, or drop "
                f"{name} in the transform"
            )
            raise SchemaMismatchError(msg)


def required_texts(
    names: Sequence[str], table: StructType, partition_columns: Callable[[], Collection[str]]
) -> list[str]:
    """Returns which columns of a batch are partition columns of a table, and texts that are NOT NULL.

    Args:
        names: The batch's columns.
        table: The table's columns.
        partition_columns: Returns the table's partition columns; only asked if a text is NOT NULL.
    """
    texts = {
        field.name.lower() for field in table.fields if not field.nullable and field.dataType.typeName() == "string"
    }
    required = texts & {name.lower() for name in partition_columns()} if texts else set[str]()
    return [name for name in names if name.lower() in required]


def with_nulls_as_stored(
    rows: DataFrame, table: StructType, partition_columns: Callable[[], Collection[str]]
) -> DataFrame:
    """Makes a null of each text that Delta stores as one, in partition columns that are NOT NULL.

    Delta then refuses the row. It checks NOT NULL before it stores the text, and could not read such a table again.

    Args:
        rows: The rows to write.
        table: The table's columns.
        partition_columns: See `required_texts`.
    """
    from pyspark.sql import functions as f

    texts = {name: f.col(quoted(name)) for name in required_texts(rows.columns, table, partition_columns)}
    kept = {name: f.when(~text.isin(*NULL_AS_PARTITION), text) for name, text in texts.items()}
    return rows.withColumns(kept) if kept else rows
