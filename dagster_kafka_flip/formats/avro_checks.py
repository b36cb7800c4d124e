"""Finds invalid values that Spark's from_avro accepts: strings that are not UTF-8, and decimals that it truncates."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from dagster_kafka_flip.formats.avro_schema import inside, kind, map_types, member_name, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column

    from dagster_kafka_flip.formats.avro_schema import AvroSchema, AvroType

# Up to this precision Spark reads only the last eight bytes of a decimal.
_DIGITS_OF_A_LONG = 18

# The hexadecimal digits of a number that eight bytes hold: before them only its sign.
_FITS_A_LONG = "^((00)*[0-7]|(FF)*[89A-F])[0-9A-F]{15}$"
_LONG_DIGITS = 16


def has_wrong_text(schema: AvroSchema, column: Column) -> Column | None:
    """Whether a string anywhere in a decoded value is not UTF-8; None if the reader schema has no string."""
    from pyspark.sql import functions as f

    def check(avro_type: AvroType, text: Column) -> Column | None:
        return ~f.is_valid_utf8(text) if kind(avro_type) == "string" else None

    return _any(_found(schema.root, column, schema.named(), check))


def has_long_decimal(schema: AvroSchema, column: Column) -> Column | None:
    """Whether a decimal in a value has more bytes than Spark looks at; None if the schema has no such decimal.

    The value is decoded with `decimals_as_bytes`.
    """
    from pyspark.sql import functions as f

    def check(avro_type: AvroType, data: Column) -> Column | None:
        if not _is_cut(avro_type):
            return None
        digits = f.hex(data)
        return (f.length(digits) > f.lit(_LONG_DIGITS)) & ~digits.rlike(_FITS_A_LONG)

    return _any(_found(schema.root, column, schema.named(), check))


def has_cut_decimals(schema: AvroSchema) -> bool:
    """Whether a reader schema has decimals that Spark may cut."""
    return decimals_as_bytes(schema.root) != schema.root


def decimals_as_bytes(avro_type: AvroType) -> AvroType:
    """The reader schema with the bytes of each decimal that Spark may cut."""

    def plain(changed: dict[str, Any]) -> dict[str, Any]:
        if _is_cut(changed):
            del changed["logicalType"]
        return changed

    return map_types(avro_type, plain)


def as_every_spark_reads_it(avro_type: AvroType) -> AvroType:
    """The reader schema with what gives the same values and columns with each supported Spark.

    Doubles in arrays get unions: Avro 1.12.0 would read them as floats (AVRO-4108). A time in microseconds is a long:
    it is TIME(6) from Spark 4.1 on, and BIGINT before.
    """

    def changed_type(changed: dict[str, Any]) -> dict[str, Any]:
        if changed.get("logicalType") == "time-micros":
            del changed["logicalType"]
        if "items" in changed and kind(changed["items"]) == "double":
            # The double first: a default of the array has to fit the first branch.
            changed["items"] = [changed["items"], "null"]
        return changed

    return map_types(avro_type, changed_type)


def _is_cut(avro_type: AvroType) -> bool:
    return (
        isinstance(avro_type, dict)
        and avro_type.get("logicalType") == "decimal"
        and avro_type["precision"] <= _DIGITS_OF_A_LONG
        and avro_type.get("size", _LONG_DIGITS) > _LONG_DIGITS // 2
    )


def _found(
    avro_type: AvroType,
    column: Column,
    named: Mapping[str, dict[str, Any]],
    check: Callable[[AvroType, Column], Column | None],
) -> list[Column]:
    """The result of a check for a value of a type, and for everything inside it."""
    from pyspark.sql import functions as f

    avro_type = resolved(avro_type, named)
    own = check(avro_type, column)
    if own is not None:
        return [own]
    if isinstance(avro_type, list):
        return [each for branch, member in _members(avro_type, column) for each in _found(branch, member, named, check)]
    what = kind(avro_type)
    if what == "record":
        return [
            each
            for field in cast("dict[str, Any]", avro_type)["fields"]
            for each in _found(field["type"], column.getField(field["name"]), named, check)
        ]
    found: list[Column] = []
    if what == "map":
        found = _elements("string", f.map_keys(column), named, check)
        column = f.map_values(column)
    for _, element in inside(avro_type):
        found += _elements(element, column, named, check)
    return found


def _elements(
    avro_type: AvroType,
    column: Column,
    named: Mapping[str, dict[str, Any]],
    check: Callable[[AvroType, Column], Column | None],
) -> list[Column]:
    from pyspark.sql import functions as f

    # Whether there is anything to check does not depend on the column.
    if not _found(avro_type, column, named, check):
        return []

    def is_so(element: Column) -> Column:
        return cast("Column", _any(_found(avro_type, element, named, check)))

    return [f.exists(column, is_so)]


def _members(union: list[Any], column: Column) -> list[tuple[AvroType, Column]]:
    """The branches of a union that are not null, each with the column that Spark makes of it."""
    branches = [branch for branch in union if branch != "null"]
    if len(branches) == 1:
        return [(branches[0], column)]
    return [(branch, column.getField(member_name(branch))) for branch in branches]


def _any(found: Sequence[Column]) -> Column | None:
    from pyspark.sql import functions as f

    if not found:
        return None
    return reduce(lambda one, other: one | other, [f.coalesce(each, f.lit(False)) for each in found])
