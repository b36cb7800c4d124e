"""OggFormat: changes of a database's rows, as Oracle GoldenGate's JSON formatter writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dagster_kafka_flip.formats.changelog import OnTruncate, TruncatingFormat
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_envelope import JsonEnvelope
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

OggMetadata = Literal["before", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"]


class OggFormat(TruncatingFormat, JsonEnvelope):
    """Decodes the records of Oracle GoldenGate's JSON formatter: the rows of a database, as they change.

    The columns are those of the row in `after`, and of a delete in `before`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a GoldenGate record, lacks the row, if
    the row breaks the rules of JsonFormat, or if an update lacks a column or its previous values. NOT NULL does not
    hold for deletes.

    Args:
        schema: The columns, as DDL (`ID BIGINT NOT NULL, NAME STRING`) or a StructType.
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

    @check_arguments
    def __init__(
        self,
        schema: str | StructType,
        *,
        metadata: Sequence[OggMetadata] = (),
        on_truncate: OnTruncate = "fail",
        on_error: OnError = "fail",
        show_values: bool = False,
    ) -> None:
        super().__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            metadata=tuple(metadata),
            on_truncate=on_truncate,
            on_error=on_error,
            show_values=show_values,  # pyright: ignore[reportCallIssue]
        )
