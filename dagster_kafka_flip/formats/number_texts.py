"""Numbers as strings: how many decimal places they need, and which became zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_HAS_DIGIT = "^[^eE]*[1-9]"


def fraction_digits(text: Column) -> Column:
    """Number of decimal places that a number needs, without its last zeros."""
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
