"""The cheap look at decimals: it may suspect one that is right, but misses none that is wrong."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from dagster_kafka_flip.formats.json_changes import decimal_pattern

_DIGITS = st.text("0123456789", min_size=1, max_size=6)
_SPACE = st.text(" \t\r\n", max_size=2)


@given(
    scale=st.integers(0, 4),
    whole=_DIGITS,
    fraction=st.none() | _DIGITS,
    exponent=st.none() | st.integers(-5, 5),
    sign=st.sampled_from(["", "-"]),
    quote=st.sampled_from(["", '"']),
    space=_SPACE,
    end=st.sampled_from(["}", ',"other": 1}']),
)
def test_every_decimal_with_too_many_digits_is_suspected(scale, whole, fraction, exponent, sign, quote, space, end):
    number = f"{sign}{whole}" + (f".{fraction}" if fraction else "") + ("" if exponent is None else f"e{exponent}")
    text = f'{{"note": "price", "price"{space}:{space}{quote}{number}{quote}{space}{end}'
    is_suspected = re.search(decimal_pattern(DecimalType(10, scale), "price"), text) is not None
    changes = Decimal(number) != round(Decimal(number), scale)
    assert is_suspected or not changes
    if exponent is None:
        # Numbers as most producers write them are not looked at twice.
        assert is_suspected == changes


@pytest.mark.parametrize("value", ["null", "0", "1.5", "-1.50000", '"1.5"'])
def test_a_decimal_that_fits_is_not_suspected(value):
    assert not re.search(decimal_pattern(DecimalType(10, 2), "a.b$c"), f'{{"a.b$c": {value}, "aXb$c": 1.239}}')


@pytest.mark.parametrize("value", ["+1", "true", "[1]", '"1.2\\u0039"', '"1,2.5"', "1.e5", "1E1"])
def test_whatever_is_not_plainly_a_decimal_is_suspected(value):
    assert re.search(decimal_pattern(DecimalType(10, 2), "d"), f'{{"d": {value}}}')
