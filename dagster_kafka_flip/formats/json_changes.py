r"""Detects values that Spark's JSON parser changes without an error; such records are rejected.

Spark rounds `1.239` to fit a DECIMAL(5,2), makes infinity of `1e400`, zero of `1e-400`, a question mark of half a
surrogate pair, and -128 of 128 in a TINYINT. A time without a date becomes that time of the day on which it is read,
and a bare number of 16 digits any TIMESTAMP, since its microseconds overflow.

An exact check costs as much as parsing the record again. So there are two checks: a cheap one for every record
(`doubt`), with false positives but no false negatives, and an exact one (`exact`) for suspected records. Changes that
the parsed values show (`changes`) need neither.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, cast

from dagster_kafka_flip.formats.number_texts import (
    fraction_digits,
    has_long_exponent,
    is_lost,
    without_long_exponents,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

    Rules = list[tuple[str, Column]]
    Look = Callable[[DataType, Column], Rules]

CORRUPT = "_dagster_kafka_flip_corrupt"
"""Where Spark's parser puts a record that it could not parse; taken out again before anyone sees it."""

OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    # A DATE would take the digits of a text, such as "03" or "1762300000", for days since 1970.
    "enableDateTimeParsingFallback": "false",
}
"""The options of Spark's parser."""

_MOST_DIGITS = 38
_MOST_DIGITS_OF_LONG = 18

# With fewer zeros or nines, too many valid records would be suspected.
_LEAST_ROOM = 8

# JSON text up to its next number outside of strings, with the number. Possessive, so that Java does not backtrack or
# recurse on long texts.
_NEXT_NUMBER = r'\G((?:[^"0-9-]++|-(?![0-9])|"(?:[^"\\]++|\\.)*+")*+)(-?[0-9][0-9.eE+-]*+)'

# For a text in which every backslash begins an escape other than \\.
_LONE_SURROGATE = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)

# The start of what Spark may take for another TIMESTAMP: a text of a time without a date, or a number whose
# microseconds exceed 64 bits. Spark leaves out white space before a text.
_OTHER_TIME = r'(?:"(?:[ \x7f]|\\[tnrbf])*+(?:T|[0-9]*+:)|-?(?:[0-9]{14}|9[2-9][0-9]{11}))'
_MOST_SECONDS = (2**63 - 1) // 10**6

# Names without JSON escapes, and without regular expression syntax except dots and dollars.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .:@$-]+")


def with_room(struct: StructType) -> StructType:
    """The type for parsing: decimals get additional digits and a TINYINT more bits, so that changes become visible."""
    return cast("StructType", _roomy(struct))


def as_declared(data_type: DataType, parsed: Column) -> Column:
    """Casts a value that was parsed `with_room` to the declared type. What is too long for it becomes null."""
    return parsed.try_cast(_nullable(data_type)) if _has_room(data_type) else parsed


def doubt(struct: StructType, text: Column, parsed: Column) -> Column | None:
    """Whether a value parsed `with_room` may have been changed; None if no declared type can be affected."""
    from pyspark.sql.types import TimestampType

    doubts: list[Column] = []
    if rooms := [room for _, _, room in _decimals(struct) if room]:
        doubts.append(_is_rounded(struct, parsed))
        # A number so close to the declared scale that the additional digits do not show the difference has, after that
        # scale, as many zeros or nines as there are additional digits; or an exponent.
        zeros, nines = "0" * min(rooms), "9" * min(rooms)
        many = text.contains(zeros) | text.contains(nines)
        doubts.append(many & text.rlike(rf"\.[0-9]*(?:{zeros}|{nines})"))
        doubts.append((text.contains("e-") | text.contains("E-")) & text.rlike(r'[":\[, \t\r\n][+-]?[0-9.]++[eE]-'))
    patterns = dict.fromkeys(
        [
            *(decimal_pattern(each, name) for each, name, room in _decimals(struct) if not room),
            *(time_pattern(name) for leaf, name, _ in _leaves(struct) if isinstance(leaf, TimestampType)),
        ]
    )
    # A name with escapes, such as "pr\u0069ce", does not match literally, and neither does such a time.
    escapes = [r"00[0-7]"] if patterns else []
    escapes += [r"[dD][89a-fA-F]"] if _only(struct, _is_text) is not None else []
    if escapes:
        # To look for a text costs far less than a regular expression.
        doubts.append(text.contains("\\u") & text.rlike(rf"\\u(?:{'|'.join(escapes)})"))
    doubts.extend(text.rlike(pattern) for pattern in patterns)
    if exponent := _least_exponent(struct):
        is_small = (text.contains("e-") | text.contains("E-")) & text.rlike(rf"[0-9.][eE]-{exponent}")
        zeros = _zeros(struct, parsed)
        # To look at the values costs far less than to search the text.
        doubts.append(is_small if zeros is None else reduce(lambda one, other: one | other, zeros) & is_small)
    return reduce(lambda one, other: one | other, doubts) if doubts else None


def _least_exponent(struct: StructType) -> str | None:
    """A pattern of the exponents, without sign, that a number too small for its type may have; None without such types.

    A number with many zeros before its first digit has a smaller exponent. That many has none.
    """
    from pyspark.sql.types import DoubleType, FloatType

    kinds = {type(leaf) for leaf, _, _ in _leaves(struct)}
    if FloatType in kinds:
        return "0*+[1-9][0-9]"
    return "0*+[1-9][0-9]{2}" if DoubleType in kinds else None


def _zeros(data_type: DataType, parsed: Column) -> list[Column] | None:
    """Whether each DOUBLE and FLOAT is zero, as one that is too small becomes; None if one is in an array or a map."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, FloatType, StructType

    if isinstance(data_type, (DoubleType, FloatType)):
        return [parsed.eqNullSafe(f.lit(0.0).cast(data_type))]
    if not isinstance(data_type, StructType):
        return [] if _only(data_type, lambda leaf: isinstance(leaf, (DoubleType, FloatType))) is None else None
    found: list[Column] = []
    for field in data_type.fields:
        inside = _zeros(field.dataType, parsed.getField(field.name))
        if inside is None:
            return None
        found.extend(inside)
    return found


def _is_rounded(struct: StructType, parsed: Column) -> Column:
    """Whether a decimal uses its additional digits."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    affected = [field for field in struct.fields if any(room for _, _, room in _decimals(field.dataType))]
    declared = StructType([field for field in affected if _can_be_compared(field.dataType)])
    found: list[Column] = []
    if declared.fields:
        # As one value: Java does not compile methods of more than 8,000 bytes, and Spark creates a separate one for it.
        roomy = f.struct(*(parsed.getField(field.name).alias(field.name) for field in declared.fields))
        found.append(~roomy.eqNullSafe(as_declared(declared, roomy).try_cast(with_room(declared))))
    for field in affected:
        if field not in declared.fields:
            rules = _rules(field.dataType, parsed.getField(field.name), field.name, _rounded)
            found.extend(f.coalesce(is_so, f.lit(False)) for _, is_so in rules)
    return reduce(lambda one, other: one | other, found)


def _rounded(data_type: DataType, column: Column) -> Rules:
    """Whether a decimal uses its additional digits. In a MAP it has none."""
    from pyspark.sql.types import DecimalType

    if not isinstance(data_type, DecimalType):
        return []
    return [("", ~column.eqNullSafe(column.try_cast(data_type).try_cast(_roomy(data_type))))]


def _can_be_compared(data_type: DataType) -> bool:
    """Whether Spark compares such values."""
    from pyspark.sql.types import MapType, VariantType

    return _only(data_type, lambda inner: isinstance(inner, (MapType, VariantType))) is None


def quick(struct: StructType, text: Column) -> Column:
    """The text to parse: another one where Spark would calculate for minutes, null if a decimal there can't fit."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    decimals = _only(struct, _is_decimal)
    if decimals is None:
        return text
    short = without_long_exponents(text)
    # The rest is in quotes, and only its field shows whether it is a number.
    texts = cast("StructType", _with_leaves(decimals, _as_text, in_maps=_as_text))
    written = f.from_json(short, StructType(texts.fields).add(CORRUPT, StringType()), OPTIONS)
    found = f.transform(f.array(written), lambda each: _first(_rules(decimals, each, "", _long)))
    is_long = written.isNull() | written.getField(CORRUPT).isNotNull() | f.get(found, f.lit(0)).isNotNull()
    # Digits may be escaped.
    is_suspected = has_long_exponent(text) | (text.contains("\\u00") & text.rlike(r"\\u00[0-7]"))
    return f.when(is_suspected, f.when(~is_long, short)).otherwise(text)


def _long(data_type: DataType, written: Column) -> Rules:
    """Whether a decimal's text has a long exponent."""
    return [("", has_long_exponent(written))] if _is_decimal(data_type) else []


def exact(struct: StructType, text: Column) -> Column:
    """The exact check of suspected records; null if valid."""
    from pyspark.sql import functions as f

    problems: list[Column] = []
    numbers, texts = _only(struct, _is_number_or_time), _only(struct, _is_text)
    if numbers is not None:
        # For a number in a STRING field, Spark would write the nearest double; strings are unchanged.
        quoted = f.regexp_replace(text, _NEXT_NUMBER, '$1"$2"')
        texts_of_them = _with_leaves(numbers, _as_text, in_maps=_as_text)
        written = f.from_json(quoted, texts_of_them, OPTIONS)  # pyright: ignore[reportArgumentType]
        # A transform, so that this is parsed once for all fields, outside of Spark's generated code for each record:
        # Java does not compile methods of more than 8,000 bytes.
        found = f.transform(f.array(written), lambda each: _first(_rules(numbers, each, "", _changed_text)))
        problems.append(f.get(found, f.lit(0)))
    if texts is not None:
        lone = _lone_surrogate(texts, text)
        problems.append(f.when(lone, "a string has half of a surrogate pair"))
    return f.coalesce(*problems)


def _first(rules: Rules) -> Column:
    from pyspark.sql import functions as f

    problem: Column | None = None
    for message, is_so in rules:
        problem = (f if problem is None else problem).when(is_so, message)
    return f.lit(None).cast("string") if problem is None else problem


def changes(struct: StructType, parsed: Column, text: Column) -> list[tuple[str | Column, Column]]:
    """Problems that the parsed values show, with their conditions."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, FloatType

    rules: list[tuple[str | Column, Column]] = [*_rules(struct, parsed, "", _changed)]
    if infinite := _rules(struct, parsed, "", _infinite):
        names = {name for leaf, name, _ in _leaves(struct) if isinstance(leaf, (DoubleType, FloatType))}
        # "Infinity" is a valid value. The record may also have a number that is too large.
        has_infinity = text.contains("Infinity") | text.contains("INF")
        alone = "|".join(re.escape(name) for name in sorted(filter(None, names)))
        before = r"[:\[,]" if None in names else rf'"(?:{alone})"[ \t\r\n]*:'
        is_number = text.rlike(rf"{before}[ \t\r\n]*-?[0-9]+(\.[0-9]+)?([eE]\+?[0-9]|(?<=[0-9]{{39}}))")
        # Once for all fields: Java does not compile methods of more than 8,000 bytes.
        which = _first(infinite)
        rules.append((which, which.isNotNull() & f.coalesce(~has_infinity | is_number, f.lit(True))))
    return rules


def _leaves(
    data_type: DataType, name: str | None = None, *, is_in_map: bool = False
) -> Iterator[tuple[DataType, str | None, bool]]:
    """Each innermost type, the name of its field (None in an array or a map), and whether it is in a map."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        for field in data_type.fields:
            yield from _leaves(field.dataType, field.name, is_in_map=is_in_map)
    elif isinstance(data_type, ArrayType):
        yield from _leaves(data_type.elementType, is_in_map=is_in_map)
    elif isinstance(data_type, MapType):
        yield from _leaves(data_type.valueType, is_in_map=True)
    else:
        yield data_type, name, is_in_map


def _decimals(data_type: DataType) -> list[tuple[DecimalType, str | None, int]]:
    """Each decimal, the name of its field (None in an array or a map), and its additional digits."""
    from pyspark.sql.types import DecimalType

    return [
        (leaf, name, 0 if is_in_map else _room(leaf))
        for leaf, name, is_in_map in _leaves(data_type)
        if isinstance(leaf, DecimalType)
    ]


def _room(data_type: DecimalType) -> int:
    """Number of additional decimal places for parsing; 0 if the precision does not allow enough."""
    for most in (_MOST_DIGITS_OF_LONG, _MOST_DIGITS):
        if (room := most - data_type.precision) >= _LEAST_ROOM:
            return room
    return 0


def _has_room(data_type: DataType) -> bool:
    return _roomy(data_type) != _nullable(data_type)


def _roomy(data_type: DataType) -> DataType:
    from pyspark.sql.types import ByteType, DecimalType, ShortType

    def roomy_in_map(leaf: DataType) -> DataType:
        return ShortType() if isinstance(leaf, ByteType) else leaf

    def roomy(leaf: DataType) -> DataType:
        if not isinstance(leaf, DecimalType):
            return roomy_in_map(leaf)
        return DecimalType(leaf.precision + _room(leaf), leaf.scale + _room(leaf))

    # Spark can't compare maps.
    return _with_leaves(data_type, roomy, in_maps=roomy_in_map)


def _nullable(data_type: DataType) -> DataType:
    return _with_leaves(data_type, _unchanged, in_maps=_unchanged)


def _as_text(_: DataType) -> DataType:
    from pyspark.sql.types import StringType

    return StringType()


def _unchanged(leaf: DataType) -> DataType:
    return leaf


def decimal_pattern(data_type: DecimalType, name: str | None) -> str:
    """A pattern that matches every JSON text in which a decimal may have too many digits.

    Args:
        data_type: The decimal's type.
        name: The name of its field; None in an array or a map.
    """
    scale = data_type.scale
    if name is None or not _PLAIN_NAME.fullmatch(name):
        return rf"\.\p{{Nd}}{{{scale + 1}}}|[\p{{Nd}}.][eE]"
    # Begins with literal text, which Java searches for quickly.
    fraction = rf"(?:\.[0-9]{{1,{scale}}}+0*+)?+" if scale else r"(?:\.0++)?+"
    return rf'"{re.escape(name)}"[ \t\r\n]*+:(?![ \t\r\n]*+(?:("?+)-?[0-9]++{fraction}\1[ \t\r\n]*+[,}}]|null))'


def time_pattern(name: str | None) -> str:
    """A pattern that matches every JSON text in which Spark may take a value for another TIMESTAMP."""
    if name is None or not _PLAIN_NAME.fullmatch(name):
        return rf"[:\[,][ \t\r\n]*+{_OTHER_TIME}"
    # Begins with literal text, which Java searches for quickly, and soon leaves a usual time.
    return rf'"{re.escape(name)}"(?!: ?+(?:"[0-9]{{4}}-|null))[ \t\r\n]*+:[ \t\r\n]*+{_OTHER_TIME}'


def _changed_text(data_type: DataType, written: Column) -> Rules:
    """Problems of a number or a TIMESTAMP, from its text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType, DoubleType, FloatType, TimestampType

    if isinstance(data_type, (DoubleType, FloatType)):
        lost = is_lost(written, written.try_cast(data_type))
        return [(f"is beyond the range of {data_type.simpleString().upper()}", lost)]
    if isinstance(data_type, TimestampType):
        # No number that the parser takes for seconds has more digits.
        seconds = f.abs(written.try_cast(DecimalType(_MOST_DIGITS, 0)))
        overflows = f.when(written.rlike(r"\A-?[0-9]{13,19}\z"), seconds > _MOST_SECONDS)
        return [
            ("is a time without a date", written.rlike(r"\A[\x00-\x20\x7f]*+(?:T|[0-9]*+:)")),
            ("is not in the years 1 to 9999 (Spark reads a bare number as seconds)", overflows),
        ]
    if not isinstance(data_type, DecimalType):
        return []
    scale = data_type.scale
    is_plain = written.rlike(r"\A-?[0-9]+(\.[0-9]+)?\z")
    # Spark removes the commas of a string.
    number = f.regexp_replace(written, ",", "")
    wide = DecimalType(_MOST_DIGITS, scale + _MOST_DIGITS - data_type.precision)
    # Doubles show digits beyond the wide type, as in 1e-40.
    differs = [
        ~number.try_cast(same).eqNullSafe(number.try_cast(data_type).try_cast(same)) for same in (wide, "double")
    ]
    has_more = (
        f.when(is_plain, written.rlike(rf"\.[0-9]{{{scale}}}[0-9]*[1-9]"))
        .when(has_long_exponent(number), number.rlike(r"\A[^eE]*+[eE]-") & number.rlike(r"\A[^eE]*[1-9]"))
        .when(number.rlike(r"\A[+-]?[0-9.]+[eE][+-]?[0-9]+\z"), fraction_digits(number) > scale)
        .otherwise(differs[0] | differs[1])
    )
    return [(f"has more digits than {data_type.simpleString().upper()} holds", has_more)]


def _infinite(data_type: DataType, column: Column) -> Rules:
    """Whether a number is infinite."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, FloatType

    if not isinstance(data_type, (DoubleType, FloatType)):
        return []
    is_infinite = f.abs(column) == f.lit(float("inf")).cast(data_type)
    return [(f"is beyond the range of {data_type.simpleString().upper()}", is_infinite)]


def _changed(data_type: DataType, column: Column) -> Rules:
    """Problems of a value, from its parsed form."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ByteType, DateType, MapType, TimestampNTZType, TimestampType

    if isinstance(data_type, ByteType):
        # Parsed as a SMALLINT: see `with_room`. Spark takes 128 to 255 for negative numbers.
        return [("does not fit TINYINT", (column < -(2**7)) | (column >= 2**7))]
    if isinstance(data_type, MapType):
        keys = f.map_keys(column)
        return [("has a key twice", f.size(keys) != f.size(f.array_distinct(keys)))]
    if isinstance(data_type, (DateType, TimestampType, TimestampNTZType)):
        first, last = (f.lit(text).cast(data_type) for text in ("0001-01-01", "9999-12-31 23:59:59.999999"))
        hint = " (Spark reads a bare number as seconds)" if isinstance(data_type, TimestampType) else ""
        return [(f"is not in the years 1 to 9999{hint}", (column < first) | (column > last))]
    return []


def _lone_surrogate(texts: DataType, text: Column) -> Column:
    r"""Whether a declared field's text has a \uD800 to \uDFFF without its other half."""
    from pyspark.sql import functions as f

    # Without escaped backslashes, each \u begins an escape.
    single = f.regexp_replace(text, r"\\\\", r"\\u005c")
    other = f.regexp_replace(single, _LONE_SURROGATE, r"\\ufffd")
    # Undeclared fields are ignored: then both texts are equal.
    before, after = (f.to_json(f.from_json(each, texts, OPTIONS)) for each in (text, other))  # pyright: ignore[reportArgumentType]
    return single.rlike(_LONE_SURROGATE) & ~before.eqNullSafe(after)


def _rules(data_type: DataType, column: Column, path: str, look: Look) -> Rules:
    """Applies a check to a value and everything inside it, with the paths."""
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
    """The rules of an array's elements, each once for all elements."""
    from pyspark.sql import functions as f

    # The number of rules does not depend on the element, so any column works here.
    messages = [message for message, _ in _rules(element_type, elements, path, look)]

    def rule(number: int) -> Column:
        def breaks(element: Column) -> Column:
            return f.coalesce(_rules(element_type, element, path, look)[number][1], f.lit(False))

        return f.exists(elements, breaks)

    return [(message, rule(number)) for number, message in enumerate(messages)]


def _is_text(data_type: DataType) -> bool:
    from pyspark.sql.types import MapType, StringType, VariantType

    is_map_by_text = isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType)
    return is_map_by_text or isinstance(data_type, (StringType, VariantType))


def _is_decimal(data_type: DataType) -> bool:
    from pyspark.sql.types import DecimalType

    return isinstance(data_type, DecimalType)


def _is_number_or_time(data_type: DataType) -> bool:
    from pyspark.sql.types import DecimalType, DoubleType, FloatType, TimestampType

    return isinstance(data_type, (DecimalType, DoubleType, FloatType, TimestampType))


def _only(data_type: DataType, wanted: Callable[[DataType], bool]) -> DataType | None:
    """The type reduced to the selected parts, all nullable; None if nothing is selected."""
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


def _with_leaves(
    data_type: DataType, change: Callable[[DataType], DataType], *, in_maps: Callable[[DataType], DataType]
) -> DataType:
    """The type with replaced leaf types, those inside maps by another function, all nullable."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(data_type, StructType):
        return StructType(
            [
                StructField(field.name, _with_leaves(field.dataType, change, in_maps=in_maps))
                for field in data_type.fields
            ]
        )
    if isinstance(data_type, ArrayType):
        return ArrayType(_with_leaves(data_type.elementType, change, in_maps=in_maps))
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, _with_leaves(data_type.valueType, in_maps, in_maps=in_maps))
    return change(data_type)
