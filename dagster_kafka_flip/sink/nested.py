"""Conversions: what is done with a value before it is serialized, at any depth, as Spark expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import SCALARS, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import Column
    from typing_extensions import Self

    from dagster_kafka_flip.formats.column_types import ColumnType

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

INSTEAD = "Name the other columns (columns=...), or publish a copy of the table without it"
"""What to do about a column that a format has no form for."""


def check_columns(columns: ColumnType, language: str, keys: Collection[str], *, any_name: bool = False) -> None:
    """Checks that each value of columns has an exact form in a format."""
    for path, field in parts_of(columns):
        kind = field.type
        if not any_name and not _NAME.fullmatch(field.name):
            msg = (
                f"the column {path} has a name that {language} does not allow: use letters, digits and _, without a "
                f"leading digit"
            )
        elif kind.name == "MAP" and (key := kind.fields[0].type).name not in keys:
            msg = f"the map {path} has keys of type {key}, which have no exact form in {language}"
        elif kind.name not in {*SCALARS, "ARRAY", "MAP", "STRUCT"}:
            msg = f"the column {path} is {kind}, which has no exact form in {language}"
        else:
            continue
        raise ConfigurationError(msg, INSTEAD)


@dataclass(frozen=True, kw_only=True)
class SchemaPath:
    """Path of a part of a schema.

    Attributes:
        what: The schema's name in an error.
        path: The column, and the path in it.
    """

    what: str
    path: str = ""

    def deeper(self, path: str) -> Self:
        """The path of a part of this one."""
        return replace(self, path=f"{self.path}{path}".lstrip("."))

    def misfit(self, why: str) -> ConfigurationError:
        """Creates the error about a column that does not fit the schema."""
        return ConfigurationError(f"{self.what} does not fit the table: {self.path or 'its root'} {why}")


@dataclass(frozen=True)
class Conversion:
    """What is done with the values of one type.

    Attributes:
        change: Returns the value to serialize; None for the value as it is.
        wrong: Returns why the value has no exact form, null if it has one; None if every value has.
    """

    change: Callable[[Column], Column] | None = None
    wrong: Callable[[Column], Column] | None = None

    def changed(self, value: Column) -> Column:
        """Returns the value to serialize."""
        return value if self.change is None else self.change(value)

    def required(self, path: str) -> Conversion:
        """The conversion for a value that must not be null."""
        from pyspark.sql import functions as f

        wrong = self.wrong

        def missing(value: Column) -> Column:
            found = f.when(value.isNull(), f.lit(f"{path} is null, which its schema does not allow"))
            return found if wrong is None else found.otherwise(wrong(value))

        return Conversion(self.change, missing)


def of_struct(fields: Sequence[tuple[str, Conversion]]) -> Conversion:
    """The conversion of a struct."""
    from pyspark.sql import functions as f

    def change(value: Column) -> Column:
        made = f.struct(*(conversion.changed(value.getField(name)).alias(name) for name, conversion in fields))
        return f.when(value.isNotNull(), made)

    doubtful = [(name, conversion.wrong) for name, conversion in fields if conversion.wrong is not None]

    def wrong(value: Column) -> Column:
        return f.when(value.isNotNull(), f.coalesce(*(test(value.getField(name)) for name, test in doubtful)))

    return Conversion(
        change if any(conversion.change for _, conversion in fields) else None, wrong if doubtful else None
    )


def of_array(element: Conversion) -> Conversion:
    """The conversion of an array."""
    from pyspark.sql import functions as f

    change, wrong = element.change, element.wrong
    return Conversion(
        None if change is None else lambda value: f.transform(value, change),
        None if wrong is None else lambda value: _first(f.transform(value, wrong)),
    )


def of_map(value: Conversion, key: Conversion = Conversion()) -> Conversion:
    """The conversion of a map; keys stay as they are."""
    from pyspark.sql import functions as f

    change = value.change
    tests = [
        (entries, conversion.wrong)
        for entries, conversion in ((f.map_keys, key), (f.map_values, value))
        if conversion.wrong is not None
    ]

    def wrong(each: Column) -> Column:
        return f.coalesce(*(_first(f.transform(entries(each), test)) for entries, test in tests))

    return Conversion(
        None if change is None else lambda each: f.transform_values(each, lambda _, inner: change(inner)),
        wrong if tests else None,
    )


def of_text(path: str) -> Conversion:
    """The conversion of a text: Spark takes any bytes as one, and would put other characters in their place."""
    from pyspark.sql import functions as f

    return without(lambda value: ~f.is_valid_utf8(value), f"{path} is not valid UTF-8")


def without(is_wrong: Callable[[Column], Column], why: str) -> Conversion:
    """The conversion of values some of which have no exact form. The reason shows no value: it may be a secret."""
    from pyspark.sql import functions as f

    return Conversion(wrong=lambda value: f.when(is_wrong(value), f.lit(why)))


def _first(reasons: Column) -> Column:
    from pyspark.sql import functions as f

    return f.get(f.filter(reasons, lambda each: each.isNotNull()), f.lit(0))
