"""Decodes records into changes: rows that say whether they delete, with the keys of tombstones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.table.changes import ChangeColumns
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns

IS_TOMBSTONE = "_dagster_kafka_flip_is_tombstone"
"""Column of records: whether the value is null."""

_KEY = "_dagster_kafka_flip_change_key"


def change_columns(columns: KafkaColumns) -> ChangeColumns:
    """The names of the columns that tell where a change comes from, and what it is.

    Args:
        columns: The record's columns.
    """
    return ChangeColumns(
        topic=columns.name("topic"),
        partition=columns.name("partition"),
        offset=columns.name("offset"),
        deleted=columns.name("deleted"),
        timestamp=columns.name("timestamp"),
        unavailable=columns.name("unavailable"),
        previous_key=columns.name("previous_key"),
    )


def with_tombstones(records: DataFrame) -> DataFrame:
    """Adds to records whether they are tombstones, before they are staged.

    Args:
        records: With the columns that every reader gives.
    """
    return records.withColumn(IS_TOMBSTONE, records["value"].isNull())


def change_rows(
    staged: DataFrame, decoder: Decoder, key: Sequence[str], *, leave_out_rejected: bool = False
) -> DataFrame:
    """The decoded records, each with whether it deletes the row of its key: a tombstone does.

    A tombstone's value has no columns to take the key from. If the decoded key is a STRUCT with a field of the same
    name, it is taken from there.

    Args:
        staged: Staged records `with_tombstones`.
        decoder: The decoder.
        key: The columns that identify a row of the table.
        leave_out_rejected: See `Decoder.finish`.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    deleted = decoder.columns.name("deleted")
    staged = staged.select("*", decoder.landed_key().alias(_KEY))
    rows = decoder.finish(staged, leave_out_rejected=leave_out_rejected, carry={IS_TOMBSTONE: deleted, _KEY: _KEY})
    decoded = rows.schema[_KEY].dataType
    fields = {field.name.lower(): field.name for field in decoded.fields} if isinstance(decoded, StructType) else {}
    names = {name.lower() for name in key}
    return rows.select(
        *(
            f.when(f.col(quoted(deleted)), f.col(_KEY)[fields[column.name.lower()]].cast(column.dataType))
            .otherwise(f.col(quoted(column.name)))
            .alias(column.name, metadata=column.metadata)
            if column.name.lower() in names & fields.keys()
            else f.col(quoted(column.name))
            for column in rows.schema.fields
            if column.name != _KEY
        )
    )
