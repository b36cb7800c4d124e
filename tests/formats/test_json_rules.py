"""What the Java library takes for JSON, and for a number or a time in it: what plain Python does, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Context, Decimal, InvalidOperation
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from tests.formats.decoding import records
from tests.formats.library import decoded

pytestmark = pytest.mark.spark

_FEW = settings(max_examples=2, deadline=None)
_RANDOM = st.integers(0, 2**32).map(random.Random)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001


def _decoded(spark, schema, texts, *columns):
    """The columns of each record; None if it is rejected."""
    decoder = Decoder.of(None, JsonFormat(schema, on_error="null"), KafkaColumns(fields=("offset",)))
    rows = decoder.finish(decoder.stage(records(spark, texts)))
    found = rows.selectExpr("kafka_offset", "kafka_error IS NULL", *columns).collect()
    return [tuple(row[2:]) if row[1] else None for row in sorted(found, key=lambda row: row[0])]


_SEEDS = (
    '{"a":[1,2.5e3,"x\\u00e9\\n\\ud83d\\ude00",{"b":null,"c":true}],"d":"\u00fc\U0001f388"}',
    '{"a" : -0.0, "d": {}, "e": [[], [false]]}',
    '{ "k":"v" }\n',
)
_BYTES = b'{}[],:"\\0123456789eE+-.truefalsn \n\t\x00\x1f\x7f\x80\xc0\xc3\xed\xa0\xf4\xff'


def _damaged(numbers):
    text = bytearray(numbers.choice(_SEEDS).encode())
    for _ in range(numbers.randrange(4)):
        at = numbers.randrange(len(text))
        text[at : at + numbers.randrange(2)] = bytes([numbers.choice(_BYTES)] * numbers.randrange(2))
    return bytes(text)


def _is_object(text):
    def refuse(number):
        raise ValueError(number)

    try:
        return isinstance(json.loads(text.decode(), parse_constant=refuse), dict)
    except ValueError:
        return False


@_FEW
@given(numbers=_RANDOM)
def test_json_is_what_python_takes_for_it(spark, numbers):
    texts = [_damaged(numbers) for _ in range(2_000)]
    expected = [_is_object(text) for text in texts]
    assert 200 < sum(expected) < 1_800
    for schema in ("other INT", "a STRING, d STRING"):
        found = _decoded(spark, schema, texts)
        wrong = [text for text, row, is_so in zip(texts, found, expected, strict=True) if (row is not None) != is_so]
        # Half of a surrogate pair is JSON, and no STRING.
        assert [text for text in wrong if b"\\u" not in text] == []


def _number(numbers):
    whole = numbers.choice(["0", str(numbers.randrange(1, 10 ** numbers.randrange(1, 25)))])
    places = "".join(numbers.choice("000123456789") for _ in range(numbers.randrange(numbers.choice([4, 30]))))
    exponent = numbers.choice(
        ["", "", f"{numbers.choice('eE')}{numbers.choice(['', '+', '-'])}{numbers.randrange(40)}"]
    )
    return f"{numbers.choice(['', '-'])}{whole}{'.' + places if places else ''}{exponent}"


@_FEW
@given(numbers=_RANDOM, quote=st.sampled_from(["", '"']))
def test_decimals_land_exactly_or_not_at_all(spark, numbers, quote):
    written = [_number(numbers) for _ in range(2_000)]
    for precision, scale in ((5, 2), (18, 18), (38, 18), (9, 0)):
        texts = [f'{{"d": {quote}{each}{quote}}}'.encode() for each in written]
        found = _decoded(spark, f"d DECIMAL({precision}, {scale})", texts, "d")
        for each, row in zip(written, found, strict=True):
            value = Decimal(each)
            try:
                rounded = value.quantize(Decimal(1).scaleb(-scale), context=Context(prec=200))
                fits = rounded == value and abs(value) < Decimal(10) ** (precision - scale)
            except InvalidOperation:
                fits = False
            assert row == ((value,) if fits else None), (each, precision, scale)


_OFFSETS = {"": None, "Z": 0, "z": 0, " UTC": 0, "+01:00": 60, "-0530": -330, "+14": 840}


def _time(numbers):
    """A time, as it is written, as Python reads it, and its offset in minutes; None if there is no such time."""
    year = numbers.choice([2026, numbers.randrange(2, 9999)])
    month, day = numbers.choice([(3, 29), (10, 25), (numbers.randrange(14), numbers.randrange(33))])
    hour, minute, second = numbers.choice([2, numbers.randrange(26)]), numbers.randrange(61), numbers.randrange(61)
    micros = numbers.randrange(10**6)
    offset = numbers.choice(list(_OFFSETS))
    text = f"{year:04}-{month:02}-{day:02}{numbers.choice('T t')}{hour:02}:{minute:02}:{second:02}.{micros:06}{offset}"
    try:
        return text, dt.datetime(year, month, day, hour, minute, second, micros), _OFFSETS[offset]  # noqa: DTZ001
    except ValueError:
        return text, None, _OFFSETS[offset]


def _micros(local, minutes, zone):
    """Microseconds since 1970; None if the zone's clocks never show the time."""
    if minutes is not None:
        return (local - dt.timedelta(minutes=minutes) - _EPOCH) // dt.timedelta(microseconds=1)
    moment = local.replace(tzinfo=zone).astimezone(dt.timezone.utc)
    is_there = moment.astimezone(zone).replace(tzinfo=None) == local
    return (moment.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1) if is_there else None


def _shown(clock: str) -> dt.datetime:
    """A clock as Spark writes it, with as many digits as it needs."""
    seconds, _, digits = clock.partition(".")
    return dt.datetime.fromisoformat(seconds) + dt.timedelta(microseconds=int(digits.ljust(6, "0")))


@_FEW
@given(numbers=_RANDOM)
def test_times_are_those_of_the_zone_and_none_is_moved(spark, numbers):
    times = [_time(numbers) for _ in range(2_000)]
    texts = [json.dumps({"t": text}).encode() for text, _, _ in times]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        moments = _decoded(spark, "t TIMESTAMP_LTZ", texts, "unix_micros(t)")
        clocks = _decoded(spark, "t TIMESTAMP_NTZ", texts, "string(t)")
        days = _decoded(spark, "t DATE", texts, "string(t)")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    for (text, local, minutes), moment, clock, day in zip(times, moments, clocks, days, strict=True):
        micros = None if local is None else _micros(local, minutes, ZoneInfo("Europe/Berlin"))
        assert moment == (None if micros is None else (micros,)), text
        assert (clock is None) == (local is None or minutes is not None), text
        assert clock is None or _shown(clock[0]) == local, text
        assert day == (None if local is None else (f"{local:%Y-%m-%d}".rjust(10, "0"),)), text


def test_names_that_no_two_records_share_are_read_like_others(spark):
    numbers = range(8_000)
    texts = [json.dumps({"id": number, "m": {f"k{number}": number}, f"u{number}": {}}).encode() for number in numbers]
    found = _decoded(spark, "id INT, m MAP<STRING, INT>", texts, "id", "m")
    assert found == [(number, {f"k{number}": number}) for number in numbers]


# Values of the kinds that JSONTestSuite has, between two blanks.
_JSON = r"""42  ""  " "  -0.1  [-0]  null  [ 4]  ["π"]  [0e+1]  [1E22]  [20e1]  {"":0}  [""]  ["\u2028"]  ["€𝄞"]
    ["\uFFFF"]  ["\uD834\uDd1e"]  ["\"\\\/\b\f\n\r\t"]  {"foo\u0000bar": 42}  {"a":"b","a":"c"}
    ["a/*b*/c/*d//e"]  123e65  [1,null,null,null,2]  [null, 1, "1", {}]  ["\\u0000"]  -123  [123.456e78]
    ["\u0022"]  true  [false]"""
_NO_JSON = r"""]  *  {  "  [,  {]  {[  1]  [x  ['  abc  [1,  {}}  ""x  [*]  [{}  [,]  <.>  [-]  [1]]  [1]x
    [\n]  [+1]  [1.]  [,1]  {🇨🇭}  [0E]  [1,]  [][]  {'a'  [1ea]  [tru]  [.-1]  [012]  [1:2]  [Inf]  [nul]  [0x1]
    ["\"]  [- 1]  [""],  {1:1}  [NaN]  [1,,]  [-1x]  [-01]  [-2.]  [1+2]  [-NaN]  ["\a"]  [True]  {:"b"}  ["\🌀"]
    [0.e1]  [3[4]]  [.123]  [1eE2]  ["": 1]  {'a':0}  ["\\\"]  [0e+-1]  [0.1.2]  {a: "b"}  [1 true]  ["\x00"]
    [++1]  {"a" "b"}  {[: "x"}  ["\u00A"]  {"id":0,}  [1 000.0]  [Infinity]  {"a":"b"}#  {"x"::"b"}  ["\uqqqq"]
    {"x", null}  {"a":"b"}//  ["\uD800\u1x"]  {"a":"b"}/**/  {9999E9999:1}  {"id":0,,,}  {null:null}  ['single']
    {"a":/*c*/"b"}  {"a": true} "x"  {"a":"b",,"c":"d"}"""


def test_every_value_of_json_lands_and_nothing_else(spark):
    def found(texts):
        values = [text.strip() for text in texts.replace("\n", "  ").split("  ") if text.strip()]
        rows = decoded(spark._jvm, JsonFormat("a STRING"), [f'{{"a": {value}}}'.encode() for value in values])
        return {value: row.get("problem") for value, row in zip(values, rows, strict=True)}

    assert {value: problem for value, problem in found(_JSON).items() if problem} == {}
    assert [value for value, problem in found(_NO_JSON).items() if not problem] == []
    ends = [b"\xff", b"\x00", b"\x0c", "\u2060".encode(), b"x", b"{}"]
    texts = [b"", b" ", "\ufeff{}".encode(), b'{"a": "\t"}', b'{"a": "\x00"}', *(b"{}" + end for end in ends)]
    assert all(row["problem"] for row in decoded(spark._jvm, JsonFormat("a STRING"), texts))
