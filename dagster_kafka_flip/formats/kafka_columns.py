"""Which of a record's own fields become columns, and under which names."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from dagster_kafka_flip.settings import Settings

KafkaField = Literal["key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers"]


class KafkaColumns(Settings):
    """The columns that come from the record itself rather than from decoding its value.

    Attributes:
        prefix: Put before each name. Default `kafka_`, as in `kafka_offset`.
        fields: The fields that are kept, in the order of the columns. Default: all but `value`, which is there anyway
            under a format that does not spread it over columns of its own.
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
            msg = f"a field is named twice: {', '.join(fields)}"
            raise ValueError(msg)
        return fields

    def name(self, field: KafkaField | Literal["error", "rejected_key", "rejected_value"]) -> str:
        """The column of a field, or of what is kept of a rejected record."""
        return f"{self.prefix}{field}"
