r"""What Spark's JSON parser changes in a value without an error; such a record is rejected.

Spark rounds `1.239` to fit a DECIMAL(5,2), makes infinity of `1e400`, and a question mark of half a surrogate pair.

To look exactly costs as much as to parse the record once more. So there are two looks at its text: a cheap one at every
record (`doubt`), which may suspect a record that is right but passes none that is wrong, and an exact one (`exact`) at
the records that it suspects. What the parsed values tell by themselves (`changes`) needs neither.
"""

from __future__ import annotations

import re
from functools import partial, reduce
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

    Rules = list[tuple[str, Column]]
    Look = Callable[[DataType, Column, str | None], Rules]

_MOST_DIGITS = 38
_MOST_DIGITS_OF_LONG = 18

# With fewer zeros or nines to look for, too many records that are right would be suspected.
_LEAST_ROOM = 8

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


def with_room(struct: StructType) -> StructType:
    """The type to parse with: a decimal has room for digits that would be rounded away, so that they show.

    Args:
        struct: What is declared.
    """
    return cast("StructType", _roomy(struct))


def as_declared(data_type: DataType, parsed: Column) -> Column:
    """A value that was parsed with room, in the type that was declared. Digits that don't fit make it a null.

    Args:
        data_type: What is declared.
        parsed: As it was parsed.
    """
    return parsed.try_cast(_nullable(data_type)) if _has_room(data_type) else parsed


def doubt(struct: StructType, text: Column, parsed: Column) -> Column | None:
    """Whether a value may have been changed; None if no declared type has values that can be.

    Args:
        struct: The declared fields.
        text: What was parsed.
        parsed: As it was parsed, with room.
    """
    doubts: list[Column] = []
    if rooms := [room for _, _, room in _decimals(struct, None) if room]:
        doubts.append(_is_rounded(struct, parsed))
        # What is so close to a number of the declared scale that the room does not show it has, behind that scale, as
        # many zeros or nines as there is room; or an exponent puts it there.
        zeros, nines = "0" * min(rooms), "9" * min(rooms)
        many = text.contains(zeros) | text.contains(nines)
        doubts.append(many & text.rlike(rf"\.[0-9]*(?:{zeros}|{nines})"))
        doubts.append((text.contains("e-") | text.contains("E-")) & text.rlike(r'[":\[, \t\r\n][+-]?[0-9.]++[eE]-'))
    patterns = dict.fromkeys(decimal_pattern(each, name) for each, name, room in _decimals(struct, None) if not room)
    if patterns:
        # A name that is written with escapes, such as "pr\u0069ce", is not found by its letters.
        doubts.append(text.contains("\\u00") & text.rlike(r"\\u00[2-7]"))
        doubts.extend(text.rlike(pattern) for pattern in patterns)
    if _only(struct, _is_text) is not None:
        doubts.append(text.contains("\\u") & text.rlike(r"\\u[dD][89a-fA-F]"))
    return reduce(lambda one, other: one | other, doubts) if doubts else None


def _is_rounded(struct: StructType, parsed: Column) -> Column:
    """Whether a decimal has digits in the room that was made for them."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    declared = StructType([field for field in struct.fields if _has_room(field.dataType)])
    # As one value: Java compiles no method of more than 8,000 bytes, and Spark makes one of its own for it.
    roomy = f.struct(*(parsed.getField(field.name).alias(field.name) for field in declared.fields))
    return ~roomy.eqNullSafe(as_declared(declared, roomy).try_cast(with_room(declared)))


def exact(struct: StructType, text: Column, options: dict[str, str]) -> Column:
    """What is wrong with a record that is in doubt, by an exact look; null if nothing is.

    Args:
        struct: The declared fields.
        text: What is parsed.
        options: How it is parsed.
    """
    from pyspark.sql import functions as f

    problems: list[Column] = []
    decimals, texts = _only(struct, _is_decimal), _only(struct, _is_text)
    if decimals is not None:
        # As a STRING field takes a number, Spark would write the nearest double; of a string it changes nothing.
        quoted = f.regexp_replace(text, _NEXT_NUMBER, '$1"$2"')
        texts_of_them = _with_leaves(decimals, _as_text, in_maps=_as_text)
        written = f.from_json(quoted, texts_of_them, options)  # pyright: ignore[reportArgumentType]
        # A transform, so that this is parsed once for all fields, and is no part of the code that Spark makes for each
        # record: Java compiles no method of more than 8,000 bytes.
        found = f.transform(f.array(written), lambda each: _first(_rules(decimals, each, "", None, _changed_decimal)))
        problems.append(f.get(found, f.lit(0)))
    if texts is not None:
        lone = _lone_surrogate(texts, text, options)
        problems.append(f.when(lone, f.lit("a text has half of a surrogate pair")))
    return f.coalesce(*problems)


def _first(rules: Rules) -> Column:
    from pyspark.sql import functions as f

    problem: Column | None = None
    for message, is_so in rules:
        problem = (f if problem is None else problem).when(is_so, f.lit(message))
    return f.lit(None).cast("string") if problem is None else problem


def changes(struct: StructType, parsed: Column, text: Column) -> list[tuple[str | Column, Column]]:
    """What is wrong, and on which records, by what was parsed.

    Args:
        struct: The declared fields.
        parsed: As Spark parsed them.
        text: What was parsed.
    """
    from pyspark.sql import functions as f

    names: set[str | None] = set()
    infinite = _rules(struct, parsed, "", None, partial(_infinite, names))
    rules: list[tuple[str | Column, Column]] = [*_rules(struct, parsed, "", None, _changed)]
    if infinite:
        # "Infinity" is taken for what it says. A record that says so may have a number that is too large, too.
        is_told = text.contains("Infinity") | text.contains("INF")
        alone = "|".join(re.escape(name) for name in sorted(filter(None, names)))
        before = r"[:\[,]" if None in names else rf'"(?:{alone})"[ \t\r\n]*:'
        is_number = text.rlike(rf"{before}[ \t\r\n]*-?[0-9]+(\.[0-9]+)?([eE]\+?[0-9]|(?<=[0-9]{{39}}))")
        # Once for all fields: Java compiles no method of more than 8,000 bytes.
        which = _first(infinite)
        rules.append((which, which.isNotNull() & f.coalesce(~is_told | is_number, f.lit(True))))
    return rules


def _decimals(
    data_type: DataType, name: str | None, *, is_in_map: bool = False
) -> Iterator[tuple[DecimalType, str | None, int]]:
    """Each decimal, the name of its field (None if it is an element of an array or of a map), and its room."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(data_type, DecimalType):
        yield data_type, name, 0 if is_in_map else _room(data_type)
    elif isinstance(data_type, StructType):
        for field in data_type.fields:
            yield from _decimals(field.dataType, field.name, is_in_map=is_in_map)
    elif isinstance(data_type, ArrayType):
        yield from _decimals(data_type.elementType, None, is_in_map=is_in_map)
    elif isinstance(data_type, MapType):
        yield from _decimals(data_type.valueType, None, is_in_map=True)


def _room(data_type: DecimalType) -> int:
    """How many more digits behind the point are parsed; 0 if there is no room for enough of them."""
    for most in (_MOST_DIGITS_OF_LONG, _MOST_DIGITS):
        if (room := most - data_type.precision) >= _LEAST_ROOM:
            return room
    return 0


def _has_room(data_type: DataType) -> bool:
    return _roomy(data_type) != _nullable(data_type)


def _roomy(data_type: DataType) -> DataType:
    from pyspark.sql.types import DecimalType

    def roomy(leaf: DataType) -> DataType:
        if not isinstance(leaf, DecimalType):
            return leaf
        return DecimalType(leaf.precision + _room(leaf), leaf.scale + _room(leaf))

    # Spark does not compare maps.
    return _with_leaves(data_type, roomy, in_maps=_unchanged)


def _nullable(data_type: DataType) -> DataType:
    return _with_leaves(data_type, _unchanged, in_maps=_unchanged)


def _as_text(_: DataType) -> DataType:
    from pyspark.sql.types import StringType

    return StringType()


def _unchanged(leaf: DataType) -> DataType:
    return leaf


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


def _changed_decimal(data_type: DataType, written: Column, name: str | None) -> Rules:
    """What is wrong with a decimal, by its text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType

    del name
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
    return [(f"has more digits than {data_type.simpleString().upper()} holds", has_more)]


def _infinite(names: set[str | None], data_type: DataType, column: Column, name: str | None) -> Rules:
    """Where a number is infinite; adds the field's name to the names."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, FloatType

    if not isinstance(data_type, (DoubleType, FloatType)):
        return []
    names.add(name)
    is_infinite = f.abs(column) == f.lit(float("inf")).cast(data_type)
    return [(f"is beyond the range of {data_type.simpleString().upper()}", is_infinite)]


def _changed(data_type: DataType, column: Column, name: str | None) -> Rules:
    """What is wrong with a value, by what was parsed."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import MapType, TimestampNTZType, TimestampType

    del name
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

    # Without backslashes that stand for themselves, each \u begins an escape.
    single = f.regexp_replace(text, r"\\\\", r"\\u005c")
    other = f.regexp_replace(single, _LONE_SURROGATE, r"\\ufffd")
    # An undeclared field is left out whatever it holds: then the other text makes no difference.
    before, after = (f.to_json(f.from_json(each, texts, options)) for each in (text, other))  # pyright: ignore[reportArgumentType]
    return single.rlike(_LONE_SURROGATE) & ~before.eqNullSafe(after)


def _rules(data_type: DataType, column: Column, path: str, name: str | None, look: Look) -> Rules:
    """What a look finds in a value and in all that is inside of it, each with the path where it is."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    rules = [(f"the value of {path} {what}", is_so) for what, is_so in look(data_type, column, name)]
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            inner = f"{path}.{field.name}" if path else field.name
            rules.extend(_rules(field.dataType, column.getField(field.name), inner, field.name, look))
    elif isinstance(data_type, ArrayType):
        rules.extend(_inside(data_type.elementType, column, f"{path}[]", look))
    elif isinstance(data_type, MapType):
        rules.extend(_inside(data_type.valueType, f.map_values(column), f"{path}{{}}", look))
    return rules


def _inside(element_type: DataType, elements: Column, path: str, look: Look) -> Rules:
    """The rules of an array's elements, each once for all of them."""
    from pyspark.sql import functions as f

    # How many rules there are does not depend on the element, so any column will do to find out.
    messages = [message for message, _ in _rules(element_type, elements, path, None, look)]

    def rule(number: int) -> Column:
        def breaks(element: Column) -> Column:
            return f.coalesce(_rules(element_type, element, path, None, look)[number][1], f.lit(False))

        return f.exists(elements, breaks)

    return [(message, rule(number)) for number, message in enumerate(messages)]


def _is_text(data_type: DataType) -> bool:
    from pyspark.sql.types import MapType, StringType, VariantType

    is_map_by_text = isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType)
    return is_map_by_text or isinstance(data_type, (StringType, VariantType))


def _is_decimal(data_type: DataType) -> bool:
    from pyspark.sql.types import DecimalType

    return isinstance(data_type, DecimalType)


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


def _with_leaves(
    data_type: DataType, change: Callable[[DataType], DataType], *, in_maps: Callable[[DataType], DataType]
) -> DataType:
    """The type with others in place of what is not nested, and nothing required.

    Args:
        data_type: The type.
        change: What to put in the place of each.
        in_maps: The same, for what is inside of a MAP.
    """
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
