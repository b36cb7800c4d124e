"""What Dagster shows of a table's columns: what those of a record's own fields are, and where each comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from dagster import TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from dagster_kafka_flip.formats.kafka_columns import KafkaField

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import AssetKey

    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns

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


_DESCRIPTIONS: dict[str, str] = {
    "key": "The record's key.",
    "value": "The record's value.",
    "topic": "The topic that the record is from.",
    "partition": "Number of the record's topic partition.",
    "offset": "The record's offset in its topic partition.",
    "timestamp": "The record's timestamp in Kafka.",
    "timestamp_type": "Who set the timestamp: 0 the producer, 1 the broker.",
    "headers": "The record's headers.",
    "rejected_key": "The bytes of a key that can't be decoded.",
    "rejected_value": "The bytes of a value that can't be decoded.",
    "error": "Why the record can't be decoded.",
}


def record_schema() -> TableSchema:
    """The fields of a record, as a topic's columns."""
    fields: tuple[KafkaField, ...] = get_args(KafkaField)
    return TableSchema(columns=[TableColumn(field, _TYPES[field], _DESCRIPTIONS[field]) for field in fields])


def described(schema: TableSchema, columns: KafkaColumns) -> TableSchema:
    """The same schema, with descriptions of the columns that come from a record's own fields.

    Args:
        schema: The table's.
        columns: Under which names those fields are landed.
    """
    texts = {columns.prefix + field: text for field, text in _DESCRIPTIONS.items()}
    return TableSchema(
        columns=[
            TableColumn(each.name, each.type, each.description or texts.get(each.name), each.constraints, each.tags)
            for each in schema.columns
        ],
        constraints=schema.constraints,
    )


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
