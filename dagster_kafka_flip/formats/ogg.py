"""OggFormat: changes of a database's rows, as Oracle GoldenGate's JSON formatter writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dagster_kafka_flip.formats.changelog import DELETE, INSERT, TRUNCATE, UPDATE, OnTruncate, TruncatingFormat
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_envelope import JsonRowEnvelope, fields_of
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

OggMetadata = Literal["before", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"]


class OggFormat(TruncatingFormat, JsonRowEnvelope):
    """Decodes the records of Oracle GoldenGate's JSON formatter: the rows of a database, as they change.

    The columns are those of the row in `after`, and of a delete in `before`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a GoldenGate record, lacks the row, if
    the row breaks the rules of JsonFormat, or if an update lacks a column or its previous values. NOT NULL does not
    hold for deletes.

    Args:
        schema: The columns, as DDL such as `ID BIGINT NOT NULL, NAME STRING`, or as a StructType.
        metadata: Parts of a change to land with its row: `before` (the row before it, as a STRUCT), `source_table`,
            `source_timestamp` (`op_ts`) and `ingestion_timestamp` (`current_ts`), both TIMESTAMP_NTZ, since the record
            does not have their time zone, and `primary_key` (the names of its columns). Each is a column of that name.
            Default: nothing.
        on_truncate: See DebeziumFormat.
        on_error: See Format.
        show_values: Whether the error about a rejected record quotes the start of each value that does not fit its
            field, 40 characters at most. Default: no, since more people read logs than tables.

    Attributes:
        declared: The schema, as it was given.
    """

    kind_field = "op_type"
    ops = {"I": INSERT, "U": UPDATE, "D": DELETE, "T": TRUNCATE}  # noqa: RUF012
    events = {}  # noqa: RUF012
    times = {"source_timestamp": "op_ts", "ingestion_timestamp": "current_ts"}  # noqa: RUF012
    sides = ("after", "before")

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

    def _fields(self) -> list[StructField]:
        return [
            *super()._fields(),
            *fields_of("table STRING, op_ts STRING, current_ts STRING, primary_keys ARRAY<STRING>"),
        ]

    def _about(self, found: Column) -> dict[str, Column]:
        return {
            "source_table": found.getField("table"),
            "source_timestamp": found.getField("op_ts").try_cast("timestamp_ntz"),
            "ingestion_timestamp": found.getField("current_ts").try_cast("timestamp_ntz"),
            "primary_key": found.getField("primary_keys"),
        }

    def _row_text(self, op: Column, text: Column) -> Column:
        from pyspark.sql import functions as f

        after, before = (f.get_json_object(text, f"$.{side}") for side in self.sides)
        return f.when(op == f.lit(DELETE), before).otherwise(after)

    def _rows(self, found: Column, op: Column, text: Column) -> Column:
        from pyspark.sql import functions as f

        del text
        before = found.getField("before")
        row = f.when(op == f.lit(DELETE), before).otherwise(found.getField("after"))
        return f.array(f.struct(row.alias("row"), before.alias("before")))
