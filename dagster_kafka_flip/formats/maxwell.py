"""MaxwellFormat: changes of a MySQL database's rows, as Maxwell writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dagster_kafka_flip.formats.changelog import DELETE, INSERT, READ, UPDATE
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_envelope import SCHEMA_CHANGE, JsonRowEnvelope, fields_of
from dagster_kafka_flip.formats.times import moment
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

MaxwellMetadata = Literal["before", "source_database", "source_table", "source_timestamp", "primary_key"]


class MaxwellFormat(JsonRowEnvelope):
    """Decodes the records of Maxwell, a connector of MySQL: the rows of a database, as they change.

    The columns are those of the row in `data`. Bootstraps are snapshots: their rows are `read`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a Maxwell record, lacks the row, if the
    row breaks the rules of JsonFormat, or if an update lacks a column or its previous values. NOT NULL does not hold
    for deletes.

    Args:
        schema: The columns, as DDL such as `id BIGINT NOT NULL, name STRING`, or as a StructType.
        metadata: Parts of a change to land with its row: `before` (the row before an update, as a STRUCT),
            `source_database`, `source_table`, `source_timestamp` and `primary_key` (the names of its columns). Each is
            a column of that name. Default: nothing.
        on_error: See Format.
        show_values: Whether the error about a rejected record quotes the start of each value that does not fit its
            field, 40 characters at most. Default: no, since more people read logs than tables.

    Attributes:
        declared: The schema, as it was given.
    """

    kind_field = "type"
    ops = {"insert": INSERT, "update": UPDATE, "delete": DELETE, "bootstrap-insert": READ}  # noqa: RUF012
    events = {  # noqa: RUF012
        **dict.fromkeys(("bootstrap-start", "bootstrap-complete"), "bootstrap"),
        **dict.fromkeys(
            ("database-create", "database-alter", "database-drop", "table-create", "table-alter", "table-drop"),
            SCHEMA_CHANGE,
        ),
    }
    times = {"source_timestamp": "ts"}  # noqa: RUF012
    sides = ("data", "old")

    metadata: tuple[MaxwellMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]

    @check_arguments
    def __init__(
        self,
        schema: str | StructType,
        *,
        metadata: Sequence[MaxwellMetadata] = (),
        on_error: OnError = "fail",
        show_values: bool = False,
    ) -> None:
        super().__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            metadata=tuple(metadata),
            on_error=on_error,
            show_values=show_values,  # pyright: ignore[reportCallIssue]
        )

    def _fields(self) -> list[StructField]:
        return [
            *super()._fields(),
            *fields_of("database STRING, table STRING, ts BIGINT, primary_key_columns ARRAY<STRING>"),
        ]

    def _about(self, found: Column) -> dict[str, Column]:
        return {
            "source_database": found.getField("database"),
            "source_table": found.getField("table"),
            "source_timestamp": moment(found.getField("ts"), "seconds"),
            "primary_key": found.getField("primary_key_columns"),
        }

    def _rows(self, found: Column, op: Column, text: Column) -> Column:
        from pyspark.sql import functions as f

        row, old = found.getField("data"), found.getField("old")
        changed = f.json_object_keys(f.get_json_object(text, "$.old"))
        values = [
            f.when(f.array_contains(changed, name), old.getField(name)).otherwise(row.getField(name)).alias(name)
            for name in self.struct().names
        ]
        before = f.when(op == f.lit(DELETE), row).when((op == f.lit(UPDATE)) & old.isNotNull(), f.struct(*values))
        return f.array(f.struct(row.alias("row"), before.alias("before")))
