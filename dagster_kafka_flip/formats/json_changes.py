r"""What Spark's JSON parser changes in a value without an error; such a record is rejected.

Spark rounds `1.239` to fit a DECIMAL(5,2), makes infinity of `1e400`, and a question mark of half a surrogate pair.

To look exactly costs as much as to parse the record once more. So there are two looks at numbers: a cheap one at every
record (`doubt`), which may suspect a record that is right but passes none that is wrong, and an exact one
(`numbers_as_text`, `changed_numbers`) at the records that it suspects.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

    Rules = list[tuple[str, Column]]
    Look = Callable[[DataType, Column], Rules]

_MOST_DIGITS = 38

# A JSON text up to its next number outside of strings, and that number. Possessive, so that Java neither goes back nor
# recurses, however long the text.
_NEXT_NUMBER = r'\G((?:[^"0-9-]++|-(?![0-9])|"(?:[^"\\]++|\\.)*+")*+)(-?[0-9][0-9.eE+-]*+)'

# Of a text in which every backslash begins an escape other than \\.
_LONE_SURROGATE = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)

# Names that need no escapes in JSON, and none in a regular expression but for dots and dollars.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .:@$-]+")


def doubt(struct: StructType, parsed: Column, text: Column) -> Column | None:
    """Whether a number of a record may have been changed; None if no declared type can change one.

    Args:
        struct: The declared fields.
        parsed: As Spark parsed them.
        text: What was parsed.
    """
    doubts = [_false_if_null(is_infinite) for _, is_infinite in _rules(struct, parsed, "", _infinite)]
    patterns = list(dict.fromkeys(_decimal_patterns(struct, None)))
    if patterns:
        # A name that is written with escapes, such as "pr\u0069ce", is not found by its letters.
        doubts.append(text.contains("\\u00") & text.rlike(r"\\u00[2-7]"))
        doubts.extend(text.rlike(pattern) for pattern in patterns)
    return reduce(lambda one, other: one | other, doubts) if doubts else None


def numbers_as_text(struct: StructType, text: Column, options: dict[str, str]) -> Column:
    """The numbers that Spark may change, each as it is written, as a STRING in its place.

    Args:
        struct: The declared fields.
        text: What was parsed.
        options: How it was parsed.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    # As a STRING field takes a number, Spark would write the nearest double; as it takes a string, nothing is changed.
    quoted = f.regexp_replace(text, _NEXT_NUMBER, '$1"$2"')
    return f.from_json(quoted, _leaves_as(_numbers(struct), StringType()), options)  # pyright: ignore[reportArgumentType]


def changed_numbers(struct: StructType, texts: Column) -> Rules:
    """What is wrong with numbers, and on which records.

    Args:
        struct: The declared fields.
        texts: From `numbers_as_text`.
    """
    return _rules(_numbers(struct), texts, "", _changed_number)


def other_changes(struct: StructType, parsed: Column, text: Column, options: dict[str, str]) -> Rules:
    """What is wrong with everything but numbers, and on which records.

    Args:
        struct: The declared fields.
        parsed: As Spark parsed them.
        text: What was parsed.
        options: How it was parsed.
    """
    rules = _rules(struct, parsed, "", _changed_other)
    texts = _only(struct, _is_text)
    if texts is not None:
        rules.append(("a text has half of a surrogate pair", _lone_surrogate(texts, text, options)))
    return rules


def _decimal_patterns(data_type: DataType, name: str | None) -> Iterator[str]:
    """Patterns that find each decimal whose digits may be too many.

    Args:
        data_type: What is declared.
        name: The name by which it is found; None if it is an element of an array or of a map.
    """
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(data_type, DecimalType):
        yield decimal_pattern(data_type, name)
    elif isinstance(data_type, StructType):
        for field in data_type.fields:
            yield from _decimal_patterns(field.dataType, field.name)
    elif isinstance(data_type, ArrayType):
        yield from _decimal_patterns(data_type.elementType, None)
    elif isinstance(data_type, MapType):
        yield from _decimal_patterns(data_type.valueType, None)


def decimal_pattern(data_type: DecimalType, name: str | None) -> str:
    """A pattern that is found in each JSON text in which a decimal may have too many digits.

    Args:
        data_type: The decimal's type.
        name: The name of its field; None if it is an element of an array or of a map.
    """
    scale = data_type.scale
    if name is None or not _PLAIN_NAME.fullmatch(name):
        return rf"\.\p{{Nd}}{{{scale + 1}}}|[\p{{Nd}}.][eE]"
    # It begins with literal text, which Java finds by skipping most of what is before it.
    fraction = rf"(?:\.[0-9]{{1,{scale}}}+0*+)?+" if scale else r"(?:\.0++)?+"
    return rf'"{re.escape(name)}"[ \t\r\n]*+:(?![ \t\r\n]*+(?:("?+)-?[0-9]++{fraction}\1[ \t\r\n]*+[,}}]|null))'


def _infinite(data_type: DataType, column: Column) -> Rules:
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, FloatType

    if not isinstance(data_type, (DoubleType, FloatType)):
        return []
    return [("is infinite", f.abs(column) == f.lit(float("inf")).cast(data_type))]


def _changed_number(data_type: DataType, written: Column) -> Rules:
    """What is wrong with a number, by its text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType, DoubleType, FloatType

    name = data_type.simpleString().upper()
    if isinstance(data_type, (DoubleType, FloatType)):
        # A string may say that it is infinite: Spark takes that for what it says.
        is_infinite = f.abs(written.try_cast(data_type)) == f.lit(float("inf")).cast(data_type)
        return [(f"is beyond the range of {name}", written.rlike("[0-9]") & is_infinite)]
    if not isinstance(data_type, DecimalType):
        return []
    scale = data_type.scale
    is_plain = written.rlike(r"\A-?[0-9]+(\.[0-9]+)?\z")
    # Spark leaves the commas of a string out.
    number = f.regexp_replace(written, ",", "")
    wide = DecimalType(_MOST_DIGITS, scale + _MOST_DIGITS - data_type.precision)
    # The doubles tell where digits are beyond those that the wide type has, as for 1e-40.
    differs = [
        ~number.try_cast(same).eqNullSafe(number.try_cast(data_type).try_cast(same)) for same in (wide, "double")
    ]
    has_more = f.when(is_plain, written.rlike(rf"\.[0-9]{{{scale}}}[0-9]*[1-9]")).otherwise(differs[0] | differs[1])
    return [(f"has more digits than {name} holds", has_more)]


def _changed_other(data_type: DataType, column: Column) -> Rules:
    from pyspark.sql import functions as f
    from pyspark.sql.types import MapType, TimestampNTZType, TimestampType

    if isinstance(data_type, MapType):
        keys = f.map_keys(column)
        return [("has a key twice", f.size(keys) != f.size(f.array_distinct(keys)))]
    if isinstance(data_type, (TimestampType, TimestampNTZType)):
        last = f.lit("9999-12-31 23:59:59.999999").cast(data_type)
        return [("is beyond the year 9999 (Spark reads a bare number as seconds)", column > last)]
    return []


def _lone_surrogate(texts: DataType, text: Column, options: dict[str, str]) -> Column:
    r"""Whether a text of a declared field has a \uD800 to \uDFFF without its other half."""
    from pyspark.sql import functions as f

    may_have = text.contains("\\u") & text.rlike(r"\\u[dD][89a-fA-F]")
    # Without backslashes that stand for themselves, each \u begins an escape.
    single = f.regexp_replace(text, r"\\\\", r"\\u005c")
    other = f.regexp_replace(single, _LONE_SURROGATE, r"\\ufffd")
    # An undeclared field is left out whatever it holds: then the other text makes no difference.
    before, after = (f.to_json(f.from_json(each, texts, options)) for each in (text, other))  # pyright: ignore[reportArgumentType]
    return may_have & single.rlike(_LONE_SURROGATE) & ~before.eqNullSafe(after)


def _rules(data_type: DataType, column: Column, path: str, look: Look) -> Rules:
    """What a look finds in a value and in all that is inside of it, each with the path where it is."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    rules = [(f"the value of {path} {what}", is_so) for what, is_so in look(data_type, column)]
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            inner = f"{path}.{field.name}" if path else field.name
            rules.extend(_rules(field.dataType, column.getField(field.name), inner, look))
    elif isinstance(data_type, ArrayType):
        rules.extend(_inside(data_type.elementType, column, f"{path}[]", look))
    elif isinstance(data_type, MapType):
        rules.extend(_inside(data_type.valueType, f.map_values(column), f"{path}{{}}", look))
    return rules


def _inside(element_type: DataType, elements: Column, path: str, look: Look) -> Rules:
    """The rules of an array's elements, each once for all of them."""
    from pyspark.sql import functions as f

    # How many rules there are does not depend on the element, so any column will do to find out.
    messages = [message for message, _ in _rules(element_type, elements, path, look)]

    def rule(number: int) -> Column:
        def breaks(element: Column) -> Column:
            return _false_if_null(_rules(element_type, element, path, look)[number][1])

        return f.exists(elements, breaks)

    return [(message, rule(number)) for number, message in enumerate(messages)]


def _false_if_null(column: Column) -> Column:
    from pyspark.sql import functions as f

    return f.coalesce(column, f.lit(False))


def _is_text(data_type: DataType) -> bool:
    from pyspark.sql.types import MapType, StringType, VariantType

    is_map_by_text = isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType)
    return is_map_by_text or isinstance(data_type, (StringType, VariantType))


def _is_number(data_type: DataType) -> bool:
    from pyspark.sql.types import DecimalType, DoubleType, FloatType

    return isinstance(data_type, (DecimalType, DoubleType, FloatType))


def _numbers(struct: StructType) -> DataType:
    from pyspark.sql.types import StructType

    return _only(struct, _is_number) or StructType([])


def _only(data_type: DataType, wanted: Callable[[DataType], bool]) -> DataType | None:
    """The type with nothing but what is wanted, none of it required; None if nothing is."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if wanted(data_type):
        return data_type
    if isinstance(data_type, StructType):
        kept = ((field.name, _only(field.dataType, wanted)) for field in data_type.fields)
        fields = [StructField(name, inner) for name, inner in kept if inner is not None]
        return StructType(fields) if fields else None
    if isinstance(data_type, ArrayType):
        inner = _only(data_type.elementType, wanted)
        return None if inner is None else ArrayType(inner)
    if isinstance(data_type, MapType):
        inner = _only(data_type.valueType, wanted)
        return None if inner is None else MapType(data_type.keyType, inner)
    return None


def _leaves_as(data_type: DataType, leaf: DataType) -> DataType:
    """The type with another one in place of all that is not nested."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(data_type, StructType):
        return StructType([StructField(field.name, _leaves_as(field.dataType, leaf)) for field in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(_leaves_as(data_type.elementType, leaf))
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, _leaves_as(data_type.valueType, leaf))
    return leaf
