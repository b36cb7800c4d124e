"""KafkaColumns: which of a record's own fields become columns, and their names."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from dagster_kafka_flip.settings.base import Settings

KafkaField = Literal["key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers"]


class KafkaColumns(Settings):
    """The columns from the record itself, as opposed to its decoded value.

    Attributes:
        prefix: Prefix of the column names. Default: `kafka_`, as in `kafka_offset`.
        fields: The fields to keep, in column order. Formats with one column add `value`.
    """

    prefix: str = "kafka_"
    fields: tuple[KafkaField, ...] = (
        "key",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "headers",
    )

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: tuple[KafkaField, ...]) -> tuple[KafkaField, ...]:
        if len(set(fields)) != len(fields):
            raise ValueError(f"duplicate field: {', '.join(fields)}")
        return fields

    def name(
        self,
        field: KafkaField
        | Literal["op", "deleted", "unavailable", "previous_key", "error", "rejected_key", "rejected_value"],
    ) -> str:
        """The column of a field, of a rejected record's part, or of what a change says of its row."""
        return f"{self.prefix}{field}"
