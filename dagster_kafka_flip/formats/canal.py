"""CanalFormat: changes of a MySQL database's rows, in the flat JSON of Canal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dagster_kafka_flip.formats.changelog import TruncatingFormat
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.json_envelope import JsonEnvelope

if TYPE_CHECKING:
    from dagster_kafka_flip.formats.column_types import ColumnType

CanalMetadata = Literal[
    "before", "source_database", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"
]


class CanalFormat(TruncatingFormat, JsonEnvelope):
    """Decodes the flat JSON of Canal, a connector of MySQL: the rows of a database, as they change.

    The columns are those of the rows in `data`; a record may have several. Their values are strings, which are
    read like the fields of CsvFormat.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a Canal record, lacks rows, if a row
    has a value that does not fit its column's type, half of a surrogate pair, a column twice, or no value in a NOT NULL
    column (except of deletes), or if an update lacks a column or its previous values.

    Args:
        schema: The columns, as DDL or a StructType, without nested types and BINARY.
        database: The database whose changes land. Default: all.
        table: The database's table whose changes land. Default: all.
        metadata: Columns to add: `before` (the row before, a STRUCT), `source_database`, `source_table`,
            `source_timestamp` (`es`), `ingestion_timestamp` (`ts`) and `primary_key` (the names of its columns).
            Default: nothing.
        on_truncate: See DebeziumFormat.
        on_error: See Format.

    Attributes:
        declared: The schema, as it was given.
    """

    function = "decode_canal"

    database: str | None = Field(default=None, min_length=1)
    table: str | None = Field(default=None, min_length=1)
    metadata: tuple[CanalMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]

    @staticmethod
    def why_not(kind: ColumnType) -> str | None:
        """Why a column can't have a type: Canal writes bytes as strings in another encoding."""
        if kind.name == "BINARY":
            return (
                " in Canal's JSON, which has bytes as strings in ISO-8859-1; use STRING, and encode it in the transform"
            )
        return CsvFormat.why_not(kind)
