"""MaxwellFormat: changes of a MySQL database's rows, as Maxwell writes them."""

from __future__ import annotations

from typing import Literal

from dagster_kafka_flip.formats.json_envelope import JsonEnvelope

MaxwellMetadata = Literal["before", "source_database", "source_table", "source_timestamp", "primary_key"]


class MaxwellFormat(JsonEnvelope):
    """Decodes the records of Maxwell, a connector of MySQL: the rows of a database, as they change.

    The columns are those of the row in `data`. Bootstraps are snapshots: their rows are `read`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a Maxwell record, lacks the row, if the
    row breaks the rules of JsonFormat, or if an update lacks a column or its previous values. NOT NULL does not hold
    for deletes.

    Args:
        schema: The columns, as DDL (`id BIGINT NOT NULL, name STRING`) or a StructType.
        metadata: Columns to add: `before` (the row before an update, a STRUCT), `source_database`, `source_table`,
            `source_timestamp` and `primary_key` (the names of its columns). Default: nothing.
        on_error: See Format.
        show_values: Whether errors about rejected records, in tables too, quote the first 40 characters of the value.
            Default: no.

    Attributes:
        declared: The schema, as it was given.
    """

    function = "decode_maxwell"

    show_values: bool = False
    metadata: tuple[MaxwellMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
