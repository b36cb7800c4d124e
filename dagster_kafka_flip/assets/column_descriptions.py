"""Column metadata for Dagster: descriptions of record fields, and column lineage."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from dagster import TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from dagster_kafka_flip.formats.kafka_columns import KafkaField
from dagster_kafka_flip.table.changes import IS_CURRENT, VALID_FROM, VALID_TO
from dagster_kafka_flip.table.mode import Scd2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import AssetKey

    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.table.mode import Mode

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
    "topic": "The record's topic.",
    "partition": "The number of the record's topic partition.",
    "offset": "The record's offset in its topic partition.",
    "timestamp": "The record's timestamp in Kafka.",
    "timestamp_type": "Who set the timestamp: 0 the producer, 1 the broker.",
    "headers": "The record's headers.",
    "rejected_key": "The bytes of a key that can't be decoded.",
    "rejected_value": "The bytes of a value that can't be decoded.",
    "op": "What the change does: insert, update, delete, read (a row of a snapshot) or truncate.",
    "unavailable": "The columns whose value the connector left out, and which are null for it.",
    "previous_key": "The key that the row had before the change.",
    "deleted": "Whether the change deletes the row of its key.",
    "error": "Why the record can't be decoded.",
}

_OF_A_HISTORY: dict[str, str] = {
    VALID_FROM: "When the row became valid: the timestamp of the record.",
    VALID_TO: "When the next change ended it; null while it is current.",
    IS_CURRENT: "Whether no later change ended it.",
}


def record_schema() -> TableSchema:
    """A topic's columns: the fields of a record."""
    fields: tuple[KafkaField, ...] = get_args(KafkaField)
    return TableSchema(columns=[TableColumn(field, _TYPES[field], _DESCRIPTIONS[field]) for field in fields])


def described(schema: TableSchema, columns: KafkaColumns, mode: Mode) -> TableSchema:
    """Adds descriptions to the columns that come from a record's own fields, or that the mode adds."""
    # In lower case: a table that others made may spell a column differently.
    texts = {(columns.prefix + field).lower(): text for field, text in _DESCRIPTIONS.items()}
    if isinstance(mode, Scd2):
        texts |= _OF_A_HISTORY
    return TableSchema(
        columns=[
            TableColumn(
                each.name, each.type, each.description or texts.get(each.name.lower()), each.constraints, each.tags
            )
            for each in schema.columns
        ],
        constraints=schema.constraints,
    )


def column_lineage(
    schema: TableSchema, columns: KafkaColumns, mode: Mode, topics: Sequence[AssetKey]
) -> TableColumnLineage:
    """Returns the column lineage of a table."""
    fields: dict[str, tuple[KafkaField, ...]] = {columns.name(field): (field,) for field in get_args(KafkaField)}
    fields |= {
        columns.name("rejected_key"): ("key",),
        columns.name("rejected_value"): ("value",),
        columns.name("error"): ("key", "value"),
    }
    if isinstance(mode, Scd2):
        fields |= dict.fromkeys((VALID_FROM, VALID_TO), ("timestamp",))
    of_name = {name.lower(): found for name, found in fields.items()}
    return TableColumnLineage(
        {
            # All other columns are fields of the value.
            column.name: [
                TableColumnDep(asset_key=topic, column_name=field)
                for topic in topics
                for field in of_name.get(column.name.lower(), ("value",))
            ]
            for column in schema.columns
        }
    )
