"""MaxwellFormat, CanalFormat, OggFormat: changes of a database's rows in JSON, as these connectors write them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.changelog import (
    DELETE,
    INSERT,
    READ,
    TRUNCATE,
    UPDATE,
    ChangelogFormat,
    OnTruncate,
    TruncatingFormat,
)
from dagster_kafka_flip.formats.csv_types import check_csv_types, problems, value_of
from dagster_kafka_flip.formats.ddl import check_ddl, field_names
from dagster_kafka_flip.formats.declared import DeclaredFormat
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_changes import as_declared, with_room
from dagster_kafka_flip.formats.json_parsing import (
    explained,
    is_corrupt,
    is_empty_object,
    leaves,
    parsed_json,
    required,
    unparsed,
    with_changes,
)
from dagster_kafka_flip.formats.json_types import check_json_types
from dagster_kafka_flip.formats.times import moment
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

MaxwellMetadata = Literal["before", "source_database", "source_table", "source_timestamp", "primary_key"]
OggMetadata = Literal["before", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"]
CanalMetadata = Literal[
    "before", "source_database", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"
]

_SCHEMA_CHANGE = "schema change"

# A connector may leave unchanged values out of an update. Nulls in their place would replace values.
_LACKS = "the update lacks the column "
_WHOLE_ROWS = "; the connector must write whole rows"
_EMPTY = " event has an empty row"


def _no_previous(field: str) -> str:
    return f"the update has no previous values ({field}), so it is unknown whether its key changed"


class JsonEnvelope(ChangelogFormat, DeclaredFormat):
    """What these formats share: an object with a kind of change, the rows, and their previous values.

    `parse` gives `rows`: of each row `row`, what it was `before` (of an update, with the values that did not change;
    null if it is not known), and what else is asked for. A record of a truncate, or without a row, has none.
    """

    has_rows = True

    kind_field: ClassVar[str]
    """The field that says what a change does."""

    ops: ClassVar[Mapping[str, str]]
    """What each of its values does."""

    events: ClassVar[Mapping[str, str]]
    """Its values of records without a row."""

    times: ClassVar[Mapping[str, str]]
    """The metadata that are times, and the fields that they are in."""

    @property
    def row_names(self) -> Sequence[str]:
        """The names of the declared columns."""
        return field_names(self.declared) if isinstance(self.declared, str) else self.declared.names

    def has_row(self, parsed: Column) -> Column:
        """Whether a record has a row."""
        return _only(parsed).getField("row").isNotNull()

    @abstractmethod
    def _fields(self) -> list[StructField]:
        """The fields of a record that are parsed, besides the one with the type of change."""

    @abstractmethod
    def _rows(self, found: Column, op: Column, text: Column) -> Column:
        """The rows of a record: an array of structs of `row` and `before`."""

    @abstractmethod
    def _row_problem(self, data: Column, parsed: Column, problem: Column) -> Column:
        """Adds to a problem what is wrong with the rows."""

    def _about(self, found: Column) -> dict[str, Column]:
        """The metadata but `before`, by name."""
        del found
        return {}

    def _is_left_out(self, found: Column) -> Column | None:
        """Whether the record is of another table; None if all are landed."""
        del found
        return None

    def prepared(self, data: Column) -> Column | None:
        """The text and the parsed record."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField

        text = data.cast("string")
        found = parsed_json(text, [StructField(self.kind_field, StringType()), *self._fields()])
        return f.when(data.isNotNull(), f.struct(text.alias("text"), found.alias("found")))

    def parse(self, data: Column) -> Column:
        """The record, as ChangelogFormat says, with its `rows`."""
        from pyspark.sql import functions as f

        found, text = data.getField("found"), data.getField("text")
        kind = found.getField(self.kind_field)
        op, event = _meaning(kind, self.ops), _meaning(kind, self.events)
        if (is_ddl := self._is_ddl(found)) is not None:
            event = f.when(is_ddl & ~f.coalesce(op == f.lit(TRUNCATE), f.lit(False)), f.lit(_SCHEMA_CHANGE)).otherwise(
                event
            )
        if isinstance(self, TruncatingFormat) and self.on_truncate == "skip":
            event = f.when(op == f.lit(TRUNCATE), f.lit("truncate")).otherwise(event)
        if (is_left_out := self._is_left_out(found)) is not None:
            event = f.when(is_left_out, f.lit("other table")).otherwise(event)
        about = [column.alias(name) for name, column in self._about(found).items() if name in self.metadata]
        return f.when(
            data.isNotNull(),
            f.struct(
                f.when(~is_corrupt(found) & f.is_valid_utf8(text), event).alias("event"),
                op.alias("op"),
                f.when(event.isNull(), self._rows(found, op, text)).alias("rows"),
                f.struct(f.lit(True).alias("is_there"), *about).alias("about"),
            ),
        )

    def _is_ddl(self, found: Column) -> Column | None:
        del found
        return None

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """The first rule that the record breaks."""
        from pyspark.sql import functions as f

        text, found = data.getField("text"), data.getField("found")
        kind, name = found.getField(self.kind_field), type(self).__name__.removesuffix("Format")
        problem = (
            unparsed(text, found)
            .when(parsed.getField("event").isNotNull(), f.lit(None).cast("string"))
            .when(kind.isNull(), f.lit(f"not a change of {name}: it has no {self.kind_field}"))
            .when(
                parsed.getField("op").isNull(),
                f.lit(f"not a change of {name}: its {self.kind_field} is unknown (expected {', '.join(self.ops)})"),
            )
        )
        about = self._about(found)
        for column, field in self.times.items():
            if column in self.metadata:
                misfits = found.getField(field).isNotNull() & about[column].isNull()
                problem = problem.when(misfits, f.lit(f"{field} does not fit {column}"))
        return f.when(data.isNotNull(), self._row_problem(data, parsed, problem))

    def rows(self, parsed: Column, key: Sequence[str]) -> Column:
        """The rows of a record, as an array of what `parse` gives, each with one `row`.

        Args:
            parsed: From `parse`.
            key: The key of the table; then an update that changes the key also deletes the row of the previous one, and
                of the rows of one key the last is left. Empty if rows are appended.
        """
        from pyspark.sql import functions as f

        op, about = parsed.getField("op"), parsed.getField("about")

        def change(op: Column, row: Column, before: Column) -> Column:
            return f.struct(op.alias("op"), row.alias("row"), before.alias("before"), about.alias("about"))

        def as_is(each: Column) -> Column:
            return change(op, each.getField("row"), each.getField("before"))

        names = self._key_names(key)
        if not names:
            return f.transform(parsed.getField("rows"), as_is)

        def with_previous(each: Column) -> Column:
            row, before = each.getField("row"), each.getField("before")
            is_other = f.greatest(
                *(~row.getField(name).eqNullSafe(before.getField(name)) for name in names), f.lit(False)
            )
            moved = (op == f.lit(UPDATE)) & before.isNotNull() & is_other
            return f.when(moved, f.array(change(f.lit(DELETE), before, before), as_is(each))).otherwise(
                f.array(as_is(each))
            )

        found = f.flatten(f.transform(parsed.getField("rows"), with_previous))

        def is_last(each: Column, place: Column) -> Column:
            def is_same(later: Column) -> Column:
                same = f.lit(True)
                for name in names:
                    same &= later.getField("row").getField(name).eqNullSafe(each.getField("row").getField(name))
                return same

            return ~f.exists(f.slice(found, place + f.lit(2), f.size(found)), is_same)

        return f.when(f.size(found) > f.lit(1), f.filter(found, is_last)).otherwise(found)

    def _key_names(self, key: Sequence[str]) -> list[str]:
        """The columns of a key as they are declared; none if one of them is not."""
        declared = {name.lower(): name for name in self.row_names}
        wanted = [declared.get(name.lower()) for name in key]
        return [name for name in wanted if name is not None] if None not in wanted else []

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """The columns of the row, and those of `metadata`."""
        row = [(field.name, self.column(field, parsed)) for field in self.struct().fields]
        about = parsed.getField("about")
        return [
            *row,
            *((name, self._before(parsed) if name == "before" else about.getField(name)) for name in self.metadata),
        ]

    def _before(self, parsed: Column) -> Column:
        from pyspark.sql import functions as f

        before = parsed.getField("before")
        return f.when(before.isNotNull(), as_declared(self.struct(), before))

    def column(self, field: StructField, parsed: Column) -> Column:
        """A column of the row."""
        return as_declared(field.dataType, parsed.getField("row").getField(field.name))


class _JsonValues(JsonEnvelope):
    """An envelope with one row, whose values have the types of JSON."""

    sides: ClassVar[tuple[str, str]]
    """The fields with the row after a change, and before it."""

    show_values: bool = False

    @classmethod
    def check_types(cls, schema: str | StructType) -> None:
        """Refuses types that Spark can't read from JSON."""
        check_json_types(schema)

    def _sides(self, struct: StructType) -> list[StructField]:
        from pyspark.sql.types import StructField

        return [StructField(side, struct) for side in self.sides]

    def _fields(self) -> list[StructField]:
        return self._sides(with_room(self.struct()))

    def _row_text(self, op: Column, text: Column) -> Column:
        """The JSON of the row."""
        from pyspark.sql import functions as f

        del op
        return f.get_json_object(text, f"$.{self.sides[0]}")

    def _row_problem(self, data: Column, parsed: Column, problem: Column) -> Column:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        struct, text, op = self.struct(), data.getField("text"), parsed.getField("op")
        row = _only(parsed).getField("row")
        has_none = (op != f.lit(TRUNCATE)) & row.isNull()
        problem = problem.when(has_none, f.concat(f.lit("the "), op, f.lit(" event has no row")))
        is_empty = is_empty_object(text, self._row_text(op, text))
        problem = problem.when(is_empty, f.concat(f.lit("the "), op, f.lit(_EMPTY)))
        for path, is_missing in required(struct, row):
            wrong = (op != f.lit(DELETE)) & is_missing
            problem = problem.when(wrong, f.lit(f"the required field {path} is missing or null"))
        both = StructType(self._sides(struct))
        found = f.struct(*(data.getField("found").getField(side).alias(side) for side in self.sides))
        after, before = self.sides
        is_update = op == f.lit(UPDATE)
        problem = problem.when(is_update & found.getField(before).isNull(), f.lit(_no_previous(before)))
        present = f.json_object_keys(f.get_json_object(text, f"$.{after}"))
        lacks = f.array_except(f.array(*map(f.lit, struct.names)), present)
        missing = f.concat(f.lit(_LACKS), f.array_join(lacks, ", "), f.lit(_WHOLE_ROWS))
        problem = problem.when(is_update & (f.size(lacks) > f.lit(0)), missing)
        return with_changes(problem, text, [(both, found)], both)

    def explain(self, data: Column, problem: Column) -> Column:
        """Which columns the values don't fit. It parses the record once for each of them."""
        inside = [(side,) for side in self.sides]
        return explained(data, problem, self.struct(), show_values=self.show_values, inside=inside)

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Each declared column of the row, as it was parsed; of a STRUCT those inside of it."""
        return leaves(self.struct(), _only(parsed).getField("row"))

    def undeclared(self, data: Column) -> Column | None:
        """The names of the row's columns that are not declared."""
        from pyspark.sql import functions as f

        names = f.json_object_keys(f.get_json_object(data.getField("text"), f"$.{self.sides[0]}"))
        return f.array_except(names, f.array(*map(f.lit, self.struct().names)))


class MaxwellFormat(_JsonValues):
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
            _SCHEMA_CHANGE,
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
            *_some("database STRING, table STRING, ts BIGINT, primary_key_columns ARRAY<STRING>"),
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


class OggFormat(TruncatingFormat, _JsonValues):
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
    events: ClassVar[Mapping[str, str]] = {}
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
        return [*super()._fields(), *_some("table STRING, op_ts STRING, current_ts STRING, primary_keys ARRAY<STRING>")]

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
    events: ClassVar[Mapping[str, str]] = {}
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
        return _some(
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
            values = typed(texts, texts)
            before = f.when(op == f.lit(DELETE), values).when(
                (op == f.lit(UPDATE)) & old.isNotNull(), typed(old, texts)
            )
            return f.struct(
                f.when(texts.isNotNull(), values).alias("row"),
                before.alias("before"),
                self._wrong(texts, values, op).alias("wrong"),
            )

        # A truncate has no rows, and lands as one without values.
        none = f.array(f.create_map(f.lit(""), f.lit(None).cast("string")))
        return f.transform(f.when(op == f.lit(TRUNCATE), none).otherwise(found.getField("data")), row)

    def _wrong(self, texts: Column, values: Column, op: Column) -> Column:
        """What is wrong with a row."""
        from pyspark.sql import functions as f

        is_empty = (op != f.lit(TRUNCATE)) & (f.size(texts) == f.lit(0))
        wrong = f.when(texts.isNull(), f.lit("a row is null")).when(
            is_empty, f.concat(f.lit("the "), op, f.lit(_EMPTY))
        )
        for field in self.struct().fields:
            text = f.try_element_at(texts, f.lit(field.name))
            if not field.nullable:
                is_missing = ~op.isin(DELETE, TRUNCATE) & text.isNull()
                wrong = wrong.when(is_missing, f.lit(f"the required field {field.name} is missing or null"))
            for what, is_so in problems(field.dataType, text, values.getField(field.name)):
                wrong = wrong.when(text.isNotNull() & is_so, f.lit(f"the value of {field.name} {what}"))
        for name in self.struct().names:
            lacks = (op == f.lit(UPDATE)) & ~f.map_contains_key(texts, f.lit(name))
            wrong = wrong.when(lacks, f.lit(f"{_LACKS}{name}{_WHOLE_ROWS}"))
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
            problem.when(has_none, f.concat(f.lit("the "), op, f.lit(" event has no row")))
            .when(wrong.isNotNull(), wrong)
            .when((op == f.lit(UPDATE)) & ~has_previous, f.lit(_no_previous("old")))
        )
        whole = StructType(self._fields())
        return with_changes(problem, data.getField("text"), [(whole, found)], whole)

    def column(self, field: StructField, parsed: Column) -> Column:
        """A column of the row."""
        return parsed.getField("row").getField(field.name)

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Each declared column of a record's first row."""
        row = _only(parsed).getField("row")
        return [(name, row.getField(name)) for name in self.struct().names]


def _refuse_binary(field: str, name: str) -> None:
    if name == "BINARY":
        msg = (
            f"schema: {field}: unsupported type BINARY in Canal's JSON, which has bytes as strings in ISO-8859-1; use "
            "STRING, and encode it in the transform"
        )
        raise ConfigurationError(msg)


def _only(parsed: Column) -> Column:
    """The first row of a record."""
    from pyspark.sql import functions as f

    return f.get(parsed.getField("rows"), f.lit(0))


def _meaning(kind: Column, meanings: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as f

    found: Any = f.when(f.lit(False), f.lit(None).cast("string"))
    for value, meaning in meanings.items():
        found = found.when(kind == f.lit(value), f.lit(meaning))
    return found


def _some(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl).fields  # pyright: ignore[reportAttributeAccessIssue]
