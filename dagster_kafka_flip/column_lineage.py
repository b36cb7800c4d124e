"""Which part of a Kafka record each column of a table comes from, where no transform comes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from dagster import TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from dagster_kafka_flip.reader.columns import KafkaField

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import AssetKey

    from dagster_kafka_flip.reader.columns import KafkaColumns

COLUMN_LINEAGE = "dagster/column_lineage"

_TYPES: dict[KafkaField, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def record_schema() -> TableSchema:
    """The fields of a record, as a topic's columns."""
    return TableSchema(columns=[TableColumn(field, _TYPES[field]) for field in get_args(KafkaField)])


def column_lineage(schema: TableSchema, columns: KafkaColumns, topics: Sequence[AssetKey]) -> TableColumnLineage:
    """Where the columns of a table come from.

    Args:
        schema: The table's.
        columns: Which of a record's own fields are kept, and under which names.
        topics: Asset keys of what is read.
    """
    fields: dict[str, tuple[KafkaField, ...]] = {columns.name(field): (field,) for field in get_args(KafkaField)}
    fields |= {
        columns.name("rejected_key"): ("key",),
        columns.name("rejected_value"): ("value",),
        columns.name("error"): ("key", "value"),
    }
    return TableColumnLineage(
        {
            # What has another name is a field of the value.
            column.name: [
                TableColumnDep(asset_key=topic, column_name=field)
                for topic in topics
                for field in fields.get(column.name, ("value",))
            ]
            for column in schema.columns
        }
    )
