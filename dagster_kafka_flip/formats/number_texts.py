"""Numbers as strings: how many decimal places they need, and which ones are too expensive to calculate with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_HAS_DIGIT = "^[^eE]*[1-9]"

# An exponent of five digits or more. To round such a number to a DECIMAL, Java writes it out: for 1e-9999999 that takes
# most of a minute, and for larger ones all memory.
_LONG_EXPONENT = r"[eE][+-]?+0*+\p{Nd}{5}"

# JSON text up to its next number outside of strings with a long exponent, in two groups, and the exponent's digits.
# Possessive, so that Java does not backtrack or recurse on long texts.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_OTHER_NUMBER = r"(?!-?[0-9][0-9.]*+[eE][+-]?+0*+[0-9]{5})-?[0-9][0-9.eE+-]*+"
_NEXT_LONG = rf'\G((?:[^"0-9-]++|-(?![0-9])|{_STRING}|{_OTHER_NUMBER})*+)(-?[0-9][0-9.]*+[eE][+-]?+)[0-9]++'


def fraction_digits(text: Column) -> Column:
    """Number of decimal places that a number without a long exponent needs, without its last zeros."""
    from pyspark.sql import functions as f

    fraction = f.length(f.regexp_extract(text, r"\.([0-9]*?)0*(?:[eE]|$)", 1))
    last_zeros = f.length(f.regexp_extract(text, r"(0*)\.?0*(?:[eE]|$)", 1))
    exponent = f.coalesce(f.regexp_extract(text, "[eE](.*)", 1).try_cast("int"), f.lit(0))
    places = f.when(fraction > 0, fraction).otherwise(-last_zeros) - exponent
    return f.when(text.rlike(_HAS_DIGIT), places).otherwise(f.lit(0))


def is_lost(text: Column, value: Column) -> Column:
    """Whether a number became zero, because it is too small."""
    from pyspark.sql import functions as f

    return (value == f.lit(0)) & text.rlike(_HAS_DIGIT)


def has_long_exponent(text: Column) -> Column:
    """Whether a number with a long exponent is in a text, which may be JSON."""
    return text.rlike(_LONG_EXPONENT)


def without_long_exponents(text: Column) -> Column:
    """A JSON text whose numbers outside of strings have shorter exponents, if they were long.

    1e9999999 becomes 1e400: to every type of Spark the same, but quickly.
    """
    from pyspark.sql import functions as f

    return f.regexp_replace(text, _NEXT_LONG, "$1$2400")
