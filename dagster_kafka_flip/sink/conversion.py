"""Conversions: what is done with a value before it is serialized, at any depth, as Spark expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import SCALARS, WHOLE, parts_of
from dagster_kafka_flip.runtime.spark_functions import f

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import Column

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


@dataclass(frozen=True)
class SchemaPath:
    """The path of a part of a schema, and what errors call the schema."""

    what: str
    path: str = ""

    def deeper(self, path: str) -> SchemaPath:
        return replace(self, path=f"{self.path}{path}".lstrip("."))

    def misfit(self, why: str) -> ConfigurationError:
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
        return value if self.change is None else self.change(value)

    def problem(self, value: Column) -> Column | None:
        """Why a value has no exact form; None if every value has one."""
        return None if self.wrong is None else self.wrong(value)

    def required(self, why: str) -> Conversion:
        """The conversion for a value that must not be null, and why it is wrong if it is."""
        wrong = self.wrong or (lambda _: f.lit(None).cast("string"))
        return replace(self, wrong=lambda value: f.when(value.isNull(), f.lit(why)).otherwise(wrong(value)))


NOT_NULL = "which its schema does not allow"

Inside: TypeAlias = "tuple[Any, str | None]"
"""What a schema has for a part of a column: its type there, and why null is wrong; None if it isn't."""

Fit: TypeAlias = "Callable[[ColumnType, Any, SchemaPath], Sequence[Inside] | Conversion]"
"""What a format makes of a column's type and the schema's: what each part of it becomes, or how a single value is."""


def conversion_of(kind: ColumnType, given: Any, at: SchemaPath, fit: Fit) -> Conversion:
    """How the values of a column are written as the schema's type has them, without the loss of a digit."""
    found = fit(kind, given, at)
    if isinstance(found, Conversion):
        return found
    inner: list[Conversion] = []
    for (mark, field), (part, why) in zip(kind.inside(), found, strict=True):
        inside = at.deeper(mark)
        conversion = conversion_of(field.type, part, inside, fit)
        inner.append(conversion.required(f"{inside.path} is null, {why}") if field.is_null and why else conversion)
    if kind.name == "STRUCT":
        return _of_struct([*zip(kind.names, inner, strict=True)])
    return _of_map(*inner) if kind.name == "MAP" else _of_array(*inner)


# The digits of whole numbers.
_DIGITS = {"TINYINT": (3, 0), "SMALLINT": (5, 0), "INT": (10, 0), "BIGINT": (19, 0)}


def widened(kind: ColumnType, wanted: ColumnType) -> Conversion | None:
    """The conversion to a type that has each value of another one exactly; None if it does not."""
    digits = kind.digits if kind.name == "DECIMAL" else _DIGITS.get(kind.name)
    if wanted.name == "DECIMAL" and digits is not None:
        precision, scale = wanted.digits
        fits = scale >= digits[1] and precision - scale >= digits[0] - digits[1]
    elif wanted.name in WHOLE:
        fits = kind.name in WHOLE[: WHOLE.index(wanted.name) + 1]
    else:
        fits = kind == wanted or (wanted.name == "DOUBLE" and kind.name in {"FLOAT", *WHOLE[:-1]})
    if not fits:
        return None
    return Conversion() if kind == wanted else Conversion(lambda value: value.cast(str(wanted)))


def _of_struct(fields: Sequence[tuple[str, Conversion]]) -> Conversion:
    def change(value: Column) -> Column:
        made = f.struct(*(conversion.changed(value.getField(name)).alias(name) for name, conversion in fields))
        return f.when(value.isNotNull(), made)

    doubtful = [(name, conversion.wrong) for name, conversion in fields if conversion.wrong is not None]

    def wrong(value: Column) -> Column:
        return f.when(value.isNotNull(), f.coalesce(*(test(value.getField(name)) for name, test in doubtful)))

    return Conversion(
        change if any(conversion.change for _, conversion in fields) else None, wrong if doubtful else None
    )


def _of_array(element: Conversion) -> Conversion:
    change, wrong = element.change, element.wrong
    return Conversion(
        None if change is None else lambda value: f.transform(value, change),
        None if wrong is None else lambda value: _first(f.transform(value, wrong)),
    )


def _of_map(key: Conversion, value: Conversion) -> Conversion:
    sides = (f.map_keys, key.wrong), (f.map_values, value.wrong)
    tests = [(entries, wrong) for entries, wrong in sides if wrong is not None]

    def change(each: Column) -> Column:
        with_keys = f.transform_keys(each, lambda inner, _: key.changed(inner))
        return f.transform_values(with_keys, lambda _, inner: value.changed(inner))

    def wrong(each: Column) -> Column:
        return f.coalesce(*(_first(f.transform(entries(each), test)) for entries, test in tests))

    return Conversion(change if key.change or value.change else None, wrong if tests else None)


def of_text(path: str) -> Conversion:
    """The conversion of a text: Spark takes any bytes as one, and would put other characters in their place."""
    return without(lambda value: ~f.is_valid_utf8(value), f"{path} is not valid UTF-8")


def without(
    is_wrong: Callable[[Column], Column], why: str, change: Callable[[Column], Column] | None = None
) -> Conversion:
    """The conversion of values some of which have no exact form. The reason shows no value: it may be a secret."""
    return Conversion(change, lambda value: f.when(is_wrong(value), f.lit(why)))


def _first(reasons: Column) -> Column:
    return f.get(f.filter(reasons, lambda each: each.isNotNull()), f.lit(0))
