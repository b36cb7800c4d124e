"""CanalFormat: changes of a MySQL database's rows, in the flat JSON of Canal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.changelog import DELETE, INSERT, TRUNCATE, UPDATE, OnTruncate, TruncatingFormat
from dagster_kafka_flip.formats.csv_types import check_csv_types, problems, value_of
from dagster_kafka_flip.formats.ddl import check_ddl
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_envelope import (
    JsonEnvelope,
    fields_of,
    first_row,
    lacks_columns,
    no_previous_values,
    wrong_event,
)
from dagster_kafka_flip.formats.json_parsing import with_changes
from dagster_kafka_flip.formats.times import moment
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

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
        schema: The columns, as DDL such as `id BIGINT NOT NULL, name STRING`, or as a StructType. Nested types and
            BINARY are refused.
        database: The database whose changes land. Default: all.
        table: The database's table whose changes land. Default: all.
        metadata: Parts of a change to land with its row: `before` (the row before it, as a STRUCT), `source_database`,
            `source_table`, `source_timestamp` (`es`), `ingestion_timestamp` (`ts`) and `primary_key` (the names of its
            columns). Each is a column of that name. Default: nothing.
        on_truncate: See DebeziumFormat.
        on_error: See Format.

    Attributes:
        declared: The schema, as it was given.
    """

    kind_field = "type"
    ops = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE, "TRUNCATE": TRUNCATE}  # noqa: RUF012
    events = {}  # noqa: RUF012
    times = {"source_timestamp": "es", "ingestion_timestamp": "ts"}  # noqa: RUF012

    database: str | None = Field(default=None, min_length=1)
    table: str | None = Field(default=None, min_length=1)
    metadata: tuple[CanalMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]

    @check_arguments
    def __init__(
        self,
        schema: str | StructType,
        *,
        database: str | None = None,
        table: str | None = None,
        metadata: Sequence[CanalMetadata] = (),
        on_truncate: OnTruncate = "fail",
        on_error: OnError = "fail",
    ) -> None:
        super().__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            database=database,  # pyright: ignore[reportCallIssue]
            table=table,  # pyright: ignore[reportCallIssue]
            metadata=metadata,
            on_truncate=on_truncate,
            on_error=on_error,
        )

    @classmethod
    def check_types(cls, schema: str | StructType) -> None:
        """Refuses nested types, and BINARY: Canal writes bytes as strings in another encoding."""
        check_csv_types(schema)
        if isinstance(schema, str):
            check_ddl(schema, lambda field, name, _: _refuse_binary(field, name))
        else:
            for field in schema.fields:
                _refuse_binary(field.name, field.dataType.typeName().upper())

    def _fields(self) -> list[StructField]:
        return fields_of(
            "data ARRAY<MAP<STRING, STRING>>, old ARRAY<MAP<STRING, STRING>>, isDdl BOOLEAN, database STRING, "
            "table STRING, es BIGINT, ts BIGINT, pkNames ARRAY<STRING>"
        )

    def _is_ddl(self, found: Column) -> Column | None:
        return found.getField("isDdl") & found.getField("data").isNull()

    def _is_left_out(self, found: Column) -> Column | None:
        from pyspark.sql import functions as f

        wanted = [(name, value) for name in ("database", "table") if (value := getattr(self, name)) is not None]
        if not wanted:
            return None
        return f.greatest(*(found.getField(name) != f.lit(value) for name, value in wanted), f.lit(False))

    def _about(self, found: Column) -> dict[str, Column]:
        return {
            "source_database": found.getField("database"),
            "source_table": found.getField("table"),
            "source_timestamp": moment(found.getField("es")),
            "ingestion_timestamp": moment(found.getField("ts")),
            "primary_key": found.getField("pkNames"),
        }

    def _rows(self, found: Column, op: Column, text: Column) -> Column:
        from pyspark.sql import functions as f

        del text
        fields = self.struct().fields

        def typed(texts: Column, others: Column) -> Column:
            """The values of a row; of what it lacks those of another one."""
            values: list[Column] = []
            for field in fields:
                own = f.try_element_at(texts, f.lit(field.name))
                value = f.when(f.map_contains_key(texts, f.lit(field.name)), own).otherwise(
                    f.try_element_at(others, f.lit(field.name))
                )
                values.append(value_of(field.dataType, value).alias(field.name))
            return f.struct(*values)

        def row(texts: Column, place: Column) -> Column:
            old = f.get(found.getField("old"), place)
            values, previous = typed(texts, texts), typed(old, texts)
            is_update = op == f.lit(UPDATE)
            before = f.when(op == f.lit(DELETE), values).when(is_update & old.isNotNull(), previous)
            return f.struct(
                f.when(texts.isNotNull(), values).alias("row"),
                before.alias("before"),
                self._wrong({"": (texts, values), "old.": (f.when(is_update, old), previous)}, op).alias("wrong"),
            )

        # A truncate has no rows, and lands as one without values.
        none = f.array(f.create_map(f.lit(""), f.lit(None).cast("string")))
        return f.transform(f.when(op == f.lit(TRUNCATE), none).otherwise(found.getField("data")), row)

    def _wrong(self, images: Mapping[str, tuple[Column, Column]], op: Column) -> Column:
        """What is wrong with a row, from the texts and the values after the change, and of an update before it."""
        from pyspark.sql import functions as f

        texts, _ = images[""]
        is_empty = (op != f.lit(TRUNCATE)) & (f.size(texts) == f.lit(0))
        wrong = f.when(texts.isNull(), f.lit("a row is null")).when(is_empty, wrong_event(op, "has an empty row"))
        for field in self.struct().fields:
            text = f.try_element_at(texts, f.lit(field.name))
            if not field.nullable:
                is_missing = ~op.isin(DELETE, TRUNCATE) & text.isNull()
                wrong = wrong.when(is_missing, f.lit(f"the required field {field.name} is missing or null"))
            for path, (image, values) in images.items():
                text = f.try_element_at(image, f.lit(field.name))
                for what, is_so in problems(field.dataType, text, values.getField(field.name)):
                    wrong = wrong.when(text.isNotNull() & is_so, f.lit(f"the value of {path}{field.name} {what}"))
        for name in self.struct().names:
            lacks = (op == f.lit(UPDATE)) & ~f.map_contains_key(texts, f.lit(name))
            wrong = wrong.when(lacks, lacks_columns(f.lit(name)))
        return wrong

    def _row_problem(self, data: Column, parsed: Column, problem: Column) -> Column:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        found, op, rows = data.getField("found"), parsed.getField("op"), parsed.getField("rows")
        for name in ("database", "table"):
            if getattr(self, name) is not None:
                problem = problem.when(found.getField(name).isNull(), f.lit(f"the record names no {name}"))
        has_none = f.coalesce(f.size(rows), f.lit(0)) <= f.lit(0)
        wrong = f.get(f.array_compact(f.transform(rows, lambda each: each.getField("wrong"))), f.lit(0))
        old = found.getField("old")
        has_previous = f.coalesce(f.size(old) == f.size(rows), f.lit(False)) & ~f.exists(
            old, lambda each: each.isNull()
        )
        problem = (
            problem.when(has_none, wrong_event(op, "has no row"))
            .when(wrong.isNotNull(), wrong)
            .when((op == f.lit(UPDATE)) & ~has_previous, f.lit(no_previous_values("old")))
        )
        whole = StructType(self._fields())
        return with_changes(problem, data.getField("text"), [(whole, found)], whole)

    def column(self, field: StructField, parsed: Column) -> Column:
        """A column of the row."""
        return parsed.getField("row").getField(field.name)

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Each declared column of a record's first row."""
        row = first_row(parsed).getField("row")
        return [(name, row.getField(name)) for name in self.struct().names]


def _refuse_binary(field: str, name: str) -> None:
    if name == "BINARY":
        msg = (
            f"schema: {field}: unsupported type BINARY in Canal's JSON, which has bytes as strings in ISO-8859-1; use "
            "STRING, and encode it in the transform"
        )
        raise ConfigurationError(msg)
