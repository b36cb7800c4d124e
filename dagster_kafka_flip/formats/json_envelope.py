"""What Maxwell's, Canal's and GoldenGate's records share: a JSON object with a kind of change, and the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_kafka_flip.formats.changelog import DELETE, TRUNCATE, UPDATE, ChangelogFormat, TruncatingFormat
from dagster_kafka_flip.formats.ddl import field_names
from dagster_kafka_flip.formats.declared import DeclaredFormat
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

SCHEMA_CHANGE = "schema change"
"""The event of a record that changes a schema."""


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
        return first_row(parsed).getField("row").isNotNull()

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
            event = f.when(is_ddl & ~f.coalesce(op == f.lit(TRUNCATE), f.lit(False)), f.lit(SCHEMA_CHANGE)).otherwise(
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


class JsonRowEnvelope(JsonEnvelope):
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
        row = first_row(parsed).getField("row")
        has_none = (op != f.lit(TRUNCATE)) & row.isNull()
        problem = problem.when(has_none, wrong_event(op, "has no row"))
        is_empty = is_empty_object(text, self._row_text(op, text))
        problem = problem.when(is_empty, wrong_event(op, "has an empty row"))
        for path, is_missing in required(struct, row):
            wrong = (op != f.lit(DELETE)) & is_missing
            problem = problem.when(wrong, f.lit(f"the required field {path} is missing or null"))
        both = StructType(self._sides(struct))
        found = f.struct(*(data.getField("found").getField(side).alias(side) for side in self.sides))
        after, before = self.sides
        is_update = op == f.lit(UPDATE)
        problem = problem.when(is_update & found.getField(before).isNull(), f.lit(no_previous_values(before)))
        present = f.json_object_keys(f.get_json_object(text, f"$.{after}"))
        lacks = f.array_except(f.array(*map(f.lit, struct.names)), present)
        problem = problem.when(is_update & (f.size(lacks) > f.lit(0)), lacks_columns(f.array_join(lacks, ", ")))
        return with_changes(problem, text, [(both, found)], both)

    def explain(self, data: Column, problem: Column) -> Column:
        """Which columns the values don't fit. It parses the record once for each of them."""
        inside = [(side,) for side in self.sides]
        return explained(data, problem, self.struct(), show_values=self.show_values, inside=inside)

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Each declared column of the row, as it was parsed; of a STRUCT those inside of it."""
        return leaves(self.struct(), first_row(parsed).getField("row"))

    def undeclared(self, data: Column) -> Column | None:
        """The names of the row's columns that are not declared."""
        from pyspark.sql import functions as f

        names = f.json_object_keys(f.get_json_object(data.getField("text"), f"$.{self.sides[0]}"))
        return f.array_except(names, f.array(*map(f.lit, self.struct().names)))


def first_row(parsed: Column) -> Column:
    """The first row of a record."""
    from pyspark.sql import functions as f

    return f.get(parsed.getField("rows"), f.lit(0))


def fields_of(ddl: str) -> list[StructField]:
    """The fields that DDL declares."""
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl).fields  # pyright: ignore[reportAttributeAccessIssue]


def wrong_event(op: Column, what: str) -> Column:
    """The problem of a change of some kind."""
    from pyspark.sql import functions as f

    return f.concat(f.lit("the "), op, f.lit(f" event {what}"))


def lacks_columns(names: Column) -> Column:
    """The problem of an update without the values that did not change: nulls in their place would replace values."""
    from pyspark.sql import functions as f

    return f.concat(f.lit("the update lacks the column "), names, f.lit("; the connector must write whole rows"))


def no_previous_values(field: str) -> str:
    """The problem of an update without the row before it, which this field would have."""
    return f"the update has no previous values ({field}), so it is unknown whether its key changed"


def _meaning(kind: Column, meanings: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as f

    found: Any = f.when(f.lit(False), f.lit(None).cast("string"))
    for value, meaning in meanings.items():
        found = found.when(kind == f.lit(value), f.lit(meaning))
    return found
