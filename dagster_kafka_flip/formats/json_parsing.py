"""Parses JSON with declared fields by Spark, and says which fields do not fit or are missing."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.json_changes import CORRUPT, OPTIONS, changes, doubt, exact, quick, with_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

MISFIT = "not valid JSON, or a value does not fit its field's type"

# A longer type, of a STRUCT with many fields, is cut.
_LONGEST_TYPE = 60

# Characters of a value that an error quotes.
_LONGEST_VALUE = 40


def parsed_json(data: Column, fields: Sequence[StructField]) -> Column:
    """The fields of JSON, as text or bytes, parsed to a struct with a field for what could not be parsed."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    with_corrupt = StructType([*fields, StructField(CORRUPT, StringType())])
    text = quick(StructType(list(fields)), data.cast("string"))
    return f.from_json(text, with_corrupt, OPTIONS)


def is_corrupt(parsed: Column) -> Column:
    """Whether `parsed_json` could not parse a record."""
    return parsed.isNull() | parsed.getField(CORRUPT).isNotNull()


def is_empty_object(text: Column, inside: Column) -> Column:
    """Whether a part of a text, from `get_json_object`, is an object without fields.

    To look for one in the text costs far less than parsing it.
    """
    from pyspark.sql import functions as f

    # Only a writer that formats its JSON has space after a brace.
    has_space = f.lit(False)
    for space in " \n\r\t":
        has_space |= text.contains("{" + space)
    may_be = text.contains("{}") | (has_space & text.rlike(r"\{[ \t\r\n]+\}"))
    return f.when(may_be, inside == "{}").otherwise(False)


def unparsed(text: Column, parsed: Column) -> Column:
    """Why a record is not a JSON object with the declared fields; a CASE WHEN to which conditions can be added."""
    from pyspark.sql import functions as f

    # Spark accepts an empty text (as nulls) and an array (as one of its elements).
    # The first character is almost always enough, and costs far less than a regular expression.
    is_object = text.startswith("{") | text.rlike(r"\A[ \t\r\n]*\{")
    return (
        f.when(~f.is_valid_utf8(text), "not valid UTF-8")
        .when(~is_object, "not a JSON object")
        .when(is_corrupt(parsed), MISFIT)
    )


def with_changes(
    problem: Column, text: Column, images: Sequence[tuple[StructType, Column]], whole: StructType
) -> Column:
    """Adds to a problem what Spark's parser changed without an error.

    Args:
        problem: A CASE WHEN with the conditions that come before.
        text: The record's text.
        images: The declared fields and the parsed values of each part of the record.
        whole: The declared fields of the whole record.
    """
    from pyspark.sql import functions as f

    for struct, parsed in images:
        for message, is_so in changes(struct, parsed, text):
            problem = problem.when(is_so, message)
    doubts = [each for struct, parsed in images if (each := doubt(struct, text, parsed)) is not None]
    return problem.when(f.greatest(*doubts, f.lit(False)), exact(whole, text)) if doubts else problem


def explained(
    data: Column,
    problem: Column,
    struct: StructType,
    *,
    show_values: bool,
    inside: Sequence[tuple[str, ...]] = ((),),
) -> Column:
    """Which fields the values don't fit, in place of `MISFIT`. It parses the record once for each field.

    Args:
        data: The JSON.
        problem: The problem that is known.
        struct: The declared fields.
        show_values: Whether to quote the start of such a value.
        inside: The paths of the objects that have the fields. Default: the record itself.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField

    fits = [
        f.when(is_corrupt(parsed_json(data, _nested(field, path))), _misfit(data, declared, path, show_values))
        for path in inside
        for field, declared in zip(with_room(struct).fields, struct.fields, strict=True)
    ]
    # A text takes any JSON.
    is_no_json = is_corrupt(parsed_json(data, [StructField(f"{CORRUPT}_any", StringType())]))
    found = f.when(is_no_json, "not valid JSON").otherwise(f.concat_ws(", ", *fits))
    return f.when((problem == MISFIT) & (f.length(found) > 0), found).otherwise(problem)


def _nested(field: StructField, path: tuple[str, ...]) -> list[StructField]:
    from pyspark.sql.types import StructField, StructType

    for name in reversed(path):
        field = StructField(name, StructType([field]))
    return [field]


def _misfit(data: Column, field: StructField, path: tuple[str, ...], show_values: bool) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField

    message = f.lit(f"the value of {'.'.join((*path, field.name))} does not fit {_short(field)}")
    if not show_values:
        return message
    # As a text, a field takes any JSON.
    value = parsed_json(data, _nested(StructField(field.name, StringType()), path))
    for name in (*path, field.name):
        value = value.getField(name)
    cut = f.when(f.length(value) > _LONGEST_VALUE, f.concat(value.substr(1, _LONGEST_VALUE), f.lit("...")))
    return f.concat(message, f.lit(": "), f.coalesce(cut, value))


def _short(field: StructField) -> str:
    name = field.dataType.simpleString()
    # Names of fields inside of it keep their case.
    name = name if "<" in name else name.upper()
    return name if len(name) <= _LONGEST_TYPE else f"{name[:_LONGEST_TYPE]}..."


def leaves(struct: StructType, parent: Column, prefix: str = "") -> list[tuple[str, Column]]:
    """Each declared field by its path; of a STRUCT those inside of it."""
    from pyspark.sql.types import StructType

    found: list[tuple[str, Column]] = []
    for field in struct.fields:
        path, column = f"{prefix}{field.name}", parent.getField(field.name)
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            found.extend(leaves(field.dataType, column, f"{path}."))
        else:
            found.append((path, column))
    return found


def required(struct: StructType, parent: Column, prefix: str = "") -> list[tuple[str, Column]]:
    """For each NOT NULL field, at any depth: its path, and whether it is missing though its parent is there."""
    conditions: list[tuple[str, Column]] = []
    for field in struct.fields:
        path, column = f"{prefix}{field.name}", parent.getField(field.name)
        if not field.nullable:
            conditions.append((path, parent.isNotNull() & column.isNull()))
        conditions.extend(_required_inside(field.dataType, column, path))
    return conditions


def _required_inside(data_type: DataType, column: Column, path: str) -> list[tuple[str, Column]]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        return required(data_type, column, f"{path}.")
    if isinstance(data_type, ArrayType):
        element_type, elements, path = data_type.elementType, column, f"{path}[]"
    elif isinstance(data_type, MapType):
        element_type, elements, path = data_type.valueType, f.map_values(column), f"{path}{{}}"
    else:
        return []
    # Whether there are rules inside does not depend on the element, so any column will do to find out.
    paths = [inner for inner, _ in _required_inside(element_type, column, path)]
    if not paths:
        return []

    def broken(element: Column) -> Column:
        return reduce(lambda a, b: a | b, (rule for _, rule in _required_inside(element_type, element, path)))

    return [(" or ".join(paths), f.exists(elements, broken))]
