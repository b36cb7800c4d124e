"""DebeziumFormat: Debezium's change events in JSON, with schema or without."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from dagster_kafka_flip.formats.changelog import TruncatingFormat
from dagster_kafka_flip.formats.jvm_decoder import FunctionFormat, LibraryFormat, decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

DebeziumMetadata = Literal[
    "before",
    "ingestion_timestamp",
    "source_timestamp",
    "source_database",
    "source_schema",
    "source_table",
    "source_snapshot",
    "source_lsn",
    "source_pos",
    "source_gtid",
    "source_tx_id",
    "source_properties",
]

_OLD_KEY = "__debezium.oldkey"

PLACEHOLDER = "__debezium_unavailable_value"
"""What the connector writes by default for a value that it does not have, such as a large one that did not change."""


class DebeziumEvents(TruncatingFormat, FunctionFormat):
    """What Debezium's events mean, however they are encoded.

    Attributes:
        metadata: See DebeziumFormat.
        unavailable_value_placeholder: See DebeziumFormat.
    """

    leaves_out = True

    metadata: tuple[DebeziumMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    unavailable_value_placeholder: str = PLACEHOLDER

    @field_validator("unavailable_value_placeholder")
    @classmethod
    def _check_placeholder(cls, placeholder: str) -> str:
        if not placeholder:
            raise ValueError("the connector's setting is not empty")
        return placeholder

    @abstractmethod
    def row_struct(self) -> StructType:
        """The columns of the row."""

    @property
    def event_options(self) -> dict[str, Any]:
        """The settings that decide what lands of an event."""
        return {
            "metadata": self.metadata,
            "skip_truncate": self.on_truncate == "skip",
            "placeholder": self.unavailable_value_placeholder,
        }

    def key_fields(self, key: Sequence[str]) -> list[Any]:
        """The columns of the row that are in the key."""
        names = {name.lower() for name in key}
        return [field for field in self.row_struct().fields if field.name.lower() in names]

    def key_of(self, data: Column, key: Sequence[str]) -> Column:
        """The columns of a key from JSON, with its schema or without; null if one is missing, or would be changed."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructField, StructType

        bare = StructType([StructField(field.name, field.dataType, nullable=False) for field in self.key_fields(key)])
        whole = StructType([StructField("payload", bare, nullable=False)])
        # The converter's own fields may have the key's names.
        inside, top = (decoded("decode_json", data, struct).getField("row") for struct in (whole, bare))
        return f.coalesce(inside.getField("payload"), top)

    def previous_key(self, headers: Column, key: Sequence[str]) -> Column | None:
        """The key in the header that the connector adds to the insert under a changed key."""
        from pyspark.sql import functions as f

        if len(self.key_fields(key)) < len(key):
            return None
        named = f.filter(headers, lambda header: header.getField("key") == f.lit(_OLD_KEY))
        return self.key_of(f.get(named, f.lit(0)).getField("value"), key)


class DebeziumFormat(DebeziumEvents, LibraryFormat):
    """Decodes Debezium's change events in JSON: the rows of a database, as they change.

    Each record may have its schema with it or not (`schemas.enable` of Kafka Connect's JsonConverter). The columns are
    those of the database's table, with types that the JSON has: `after`, and of a delete `before`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a Debezium event, lacks the row, or if
    the row breaks the rules of JsonFormat, or `metadata` do not fit. NOT NULL does not hold for deletes, whose other
    columns may be null.

    Args:
        schema: The columns, as DDL (`id BIGINT NOT NULL, name STRING`) or a StructType.
        metadata: Columns to add: `before` (the row before, a STRUCT), `ingestion_timestamp` (when the connector
            processed it), `source_timestamp`, `source_database`, `source_schema`, `source_table`, `source_snapshot`,
            `source_lsn`, `source_pos`, `source_gtid`, `source_tx_id`, and all of it as `source_properties`, a MAP of
            STRINGs. Default: nothing.
        unavailable_value_placeholder: The connector's setting `unavailable.value.placeholder`.
        on_truncate: See TruncatingFormat.
        on_error: See Format.
        show_values: Whether errors about rejected records, in tables too, quote the first 40 characters of the value.
            Default: no.

    Attributes:
        declared: The schema, as it was given.
    """

    function = "decode_debezium"

    show_values: bool = False

    @property
    def row_names(self) -> Sequence[str]:
        """The names of the declared columns."""
        return self.declared_names

    @property
    def function_options(self) -> dict[str, Any]:
        """The settings that decide what lands."""
        return {**self.event_options, "show_values": self.show_values}

    def row_struct(self) -> StructType:
        """The declared columns."""
        return self.struct()
