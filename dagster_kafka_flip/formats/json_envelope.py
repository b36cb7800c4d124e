"""What Maxwell's, Canal's and GoldenGate's records share: a JSON object with a kind of change, and the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.changelog import DELETE, UPDATE, ChangelogFormat, TruncatingFormat
from dagster_kafka_flip.formats.jvm_decoder import LibraryFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column


class JsonEnvelope(ChangelogFormat, LibraryFormat):
    """What these formats share: an object with a kind of change, the rows, and their previous values.

    `parse` gives `rows`: of each row `row`, and what it was `before` (of an update, with the values that did not
    change; null if it is not known). A record of a truncate has one row without values.
    """

    has_rows = True

    @property
    def function_options(self) -> dict[str, Any]:
        """The settings that decide what lands."""
        skips = isinstance(self, TruncatingFormat) and self.on_truncate == "skip"
        return {**self.model_dump(include={"metadata", "show_values", "database", "table"}), "skip_truncate": skips}

    @property
    def row_names(self) -> Sequence[str]:
        """The names of the declared columns."""
        return self.declared_names

    def has_row(self, parsed: Column) -> Column:
        """Whether a record has a row."""
        from pyspark.sql import functions as f

        return f.get(parsed.getField("rows"), f.lit(0)).getField("row").isNotNull()

    def rows(self, parsed: Column, key: Sequence[str]) -> Column:
        """The rows of a record, as an array of what `parse` gives, each with one `row`.

        With a key, an update that changes it also deletes the row of the previous one, and of the rows of one key the
        last is left.
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
        """The columns of a key as they are declared; the others are the same for all rows of a record."""
        wanted = {name.lower() for name in key}
        return [name for name in self.row_names if name.lower() in wanted]
