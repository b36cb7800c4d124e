"""The cheap look at decimals and times: it may suspect one that is right, but misses none that is wrong."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.json_changes import decimal_pattern, time_pattern
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.reader.read import RECORD_SCHEMA

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


@given(
    name=st.sampled_from(["at", "a.b$c", "gr\u00f6\u00dfe", None]),
    time=st.from_regex(r"(?:T[0-9]{1,2}|T?[0-9]{1,2}:[0-9]{1,2})(?::[0-9]{1,2}(?:\.[0-9]{1,6})?)?Z?", fullmatch=True),
    before=st.text([" ", "\x7f", "\t", "\n"], max_size=3),
    space=_SPACE,
)
def test_every_time_without_a_date_is_suspected(name, time, before, space):
    written = json.dumps(before + time, ensure_ascii=False)
    assert re.search(time_pattern(name), f'{{"{name}"{space}:{space}{written}}}')


@given(name=st.sampled_from(["at", None]), seconds=st.integers(-(2**63), 2**63 - 1), space=_SPACE)
def test_every_number_whose_microseconds_overflow_is_suspected(name, seconds, space):
    is_suspected = re.search(time_pattern(name), f'{{"at":{space}{seconds}}}') is not None
    assert is_suspected or -(2**63) <= seconds * 10**6 < 2**63


@pytest.mark.parametrize(
    "value", ['"2026-01-31T12:00:00Z"', '" 2026-01-31 12:00"', "1762300000", "1762300000000", '""']
)
@pytest.mark.parametrize("name", ["at", None])
def test_a_usual_timestamp_is_not_suspected(name, value):
    assert not re.search(time_pattern(name), f'{{"at": {value}, "note": null}}')


# A date in full, or its start. Spark takes a year of four to six digits in a TIMESTAMP, and up to seven in a DATE.
_DATED = re.compile(r"[\t ]*[+]?[0-9]{4,7}(?:-[0-9]{1,2}(?:-[0-9]{1,2}(?:[ T].*)?)?)?[\t ]*")
_SOME_DAY = st.text("0123456789-:T +Z.", min_size=1, max_size=14)
_SOME_TIME = st.from_regex(
    r"[-+]?([0-9]{4}-)?([0-9]{1,2}-)?([0-9]{1,2}[ T])?T?[0-9]{1,2}(:[0-9]{1,2}){0,2}Z?", fullmatch=True
)
_SOME_SECONDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**14), 10**14) | st.integers(-(10**11), 10**12)


@pytest.mark.spark
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(values=st.lists(_SOME_DAY | _SOME_TIME | _SOME_SECONDS, min_size=300, max_size=300))
def test_values_neither_depend_on_the_day_of_the_run_nor_overflow(spark, values):
    for field in ("t TIMESTAMP", "n TIMESTAMP_NTZ", "d DATE", "ts ARRAY<TIMESTAMP>"):
        name = field.split()[0]
        texts = [json.dumps({name: [each] if name == "ts" else each}) for each in values]
        decoder = Decoder.of(None, JsonFormat(field, on_error="null"), KafkaColumns(fields=("offset",)))
        records = [(None, bytearray(text.encode()), "t", 0, number, None, 0, None) for number, text in enumerate(texts)]
        landed = decoder.finish(decoder.stage(spark.createDataFrame(records, RECORD_SCHEMA)))
        first = f"{name}[0]" if name == "ts" else name
        # A number is the seconds of a TIMESTAMP.
        kind = "bigint" if name in {"t", "ts"} else "string"
        rows = landed.selectExpr("kafka_offset", "kafka_error", f"CAST({first} AS {kind})")
        for number, why, found in rows.collect():
            each = values[number]
            if why is not None or found is None:
                continue
            if isinstance(each, int):
                assert int(found) == each
            else:
                assert _DATED.fullmatch(each), (field, each, found)
