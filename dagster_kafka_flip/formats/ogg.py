"""OggFormat: changes of a database's rows, as Oracle GoldenGate's JSON formatter writes them."""

from __future__ import annotations

from typing import Literal

from dagster_kafka_flip.formats.changelog import TruncatingFormat
from dagster_kafka_flip.formats.json_envelope import JsonEnvelope

OggMetadata = Literal["before", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"]


class OggFormat(TruncatingFormat, JsonEnvelope):
    """Decodes the records of Oracle GoldenGate's JSON formatter: the rows of a database, as they change.

    The columns are those of the row in `after`, and of a delete in `before`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a GoldenGate record, lacks the row, if
    the row breaks the rules of JsonFormat, or if an update lacks a column or its previous values. NOT NULL does not
    hold for deletes.

    Args:
        schema: The columns, as DDL (`id BIGINT NOT NULL, name STRING`) or a StructType.
        metadata: Columns to add: `before` (the row before, a STRUCT), `source_table`, `source_timestamp` (`op_ts`) and
            `ingestion_timestamp` (`current_ts`), both TIMESTAMP_NTZ, and `primary_key` (the names of its columns).
            Default: nothing.
        on_truncate: See DebeziumFormat.
        on_error: See Format.
        show_values: Whether errors about rejected records, in tables too, quote the first 40 characters of the value.
            Default: no.

    Attributes:
        declared: The schema, as it was given.
    """

    function = "decode_ogg"

    show_values: bool = False
    metadata: tuple[OggMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
