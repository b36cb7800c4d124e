"""Decodes records into changes: rows that are marked as deletes or not, with the keys of tombstones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.changelog import DELETE
from dagster_kafka_flip.formats.decode import OP
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.table.changes import ChangeColumns, same_key
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns

IS_TOMBSTONE = "_dagster_kafka_flip_is_tombstone"
"""Column of records: whether the value is null."""

_KEY = "_dagster_kafka_flip_change_key"


def change_columns(columns: KafkaColumns) -> ChangeColumns:
    """The names of the columns that say where a change comes from, and what it does."""
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
    """Adds to records, as every reader gives them, whether they are tombstones, before they are staged."""
    return records.withColumn(IS_TOMBSTONE, records["value"].isNull())


def carried(decoder: Decoder) -> tuple[str, ...]:
    """The columns of records that `change_rows` needs besides those that are decoded."""
    return (IS_TOMBSTONE,) if decoder.changelog is None else (IS_TOMBSTONE, "key", "headers")


def change_rows(
    staged: DataFrame, decoder: Decoder, key: Sequence[str], *, leave_out_rejected: bool = False
) -> DataFrame:
    """The decoded records, each with whether it deletes the row of its key: tombstones and deletes do.

    A tombstone's value has no columns to take the key from. If the decoded key is a STRUCT with a field of the same
    name, it is taken from there; so it is from a key that is not decoded, if the value's format can.

    Args:
        staged: Staged records `with_tombstones`.
        decoder: The decoder.
        key: The columns that identify a row of the table.
        leave_out_rejected: See `Decoder.finish`.

    Raises:
        ConfigurationError: A key column has a type in the record's key that is not converted to that of the value.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    deleted, changelog = decoder.columns.name("deleted"), decoder.changelog
    staged = staged.select("*", _key(decoder, key).alias(_KEY))
    carry = {IS_TOMBSTONE: deleted, _KEY: _KEY}
    previous = None if changelog is None else changelog.previous_key(f.col("headers"), key)
    if previous is not None:
        name = decoder.columns.name("previous_key")
        staged, carry = staged.withColumn(name, previous), {**carry, name: name}
    rows = decoder.finish(staged, leave_out_rejected=leave_out_rejected, carry=carry, key=key)
    decoded = rows.schema[_KEY].dataType
    fields = {field.name.lower(): field for field in decoded.fields} if isinstance(decoded, StructType) else {}
    names = {name.lower() for name in key}
    is_tombstone = f.col(quoted(deleted))

    def column(name: str, data_type: DataType, metadata: dict[str, Any]) -> Column:
        found = f.col(quoted(name))
        if name == deleted and changelog is not None:
            found = is_tombstone | f.coalesce(f.col(OP) == f.lit(DELETE), f.lit(False))
        elif name.lower() in names & fields.keys():
            field = fields[name.lower()]
            value = same_key(f.col(_KEY)[field.name], field, data_type, "in the record's key")
            found = f.when(is_tombstone, value).otherwise(found)
        return found.alias(name, metadata=metadata)

    return rows.select(
        *(column(each.name, each.dataType, each.metadata) for each in rows.schema.fields if each.name not in {_KEY, OP})
    )


def _key(decoder: Decoder, key: Sequence[str]) -> Column:
    """The decoded key; of records whose key is not decoded the columns that a tombstone needs."""
    from pyspark.sql import functions as f

    changelog = decoder.changelog
    if changelog is not None and isinstance(decoder.key_format, RawFormat) and changelog.key_fields(key):
        # Other records have their key in their value.
        return f.when(f.col(IS_TOMBSTONE), changelog.key_of(f.col("key"), key))
    return decoder.landed_key()
