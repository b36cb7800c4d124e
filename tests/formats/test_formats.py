"""Formats on real Spark: what each makes of good records, of bad ones, and of none."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from pyspark.sql.types import StructType

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.decode import REJECTED, Decoder
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from tests.formats.decoding import problems
from tests.formats.decoding import records as made

spark_test = pytest.mark.spark

_WHEN = datetime(2026, 3, 29, 1, 30, tzinfo=timezone.utc)


@pytest.fixture
def records(spark):
    """Makes records out of (key, value) pairs."""
    return lambda *pairs: made(spark, [value for _, value in pairs], keys=[key for key, _ in pairs], at=_WHEN)


def _decode(records, value_format=None, key_format=None, fields=("offset",), prefix="kafka_"):
    decoder = Decoder(
        key_format or RawFormat(), value_format or RawFormat(), KafkaColumns(prefix=prefix, fields=fields)
    )
    return decoder.finish(decoder.stage(records))


def _rows(frame):
    return [tuple(row) for row in frame.orderBy("kafka_offset").drop("kafka_offset").collect()]


@spark_test
def test_raw_keeps_all_bytes_and_nulls(records):
    pairs = [(None, None), (b"", b""), (b"\xff\x00", bytes(range(256)))]
    frame = _decode(records(*pairs), fields=("offset", "key"))
    assert frame.columns == ["kafka_value", "kafka_offset", "kafka_key"]
    assert _rows(frame) == [(value, key) for key, value in pairs]
    assert problems(records(*pairs)) == [None, None, None]


@spark_test
def test_string_is_utf8_or_rejected(records):
    good = ["", "plain", "ü 漢字 🎈", "a\x00b", "\ufeffbom"]
    pairs = [(None, None), *((text.encode(), text.encode()) for text in good)]
    frame = _decode(records(*pairs), StringFormat(), StringFormat(), fields=("offset", "key"))
    assert _rows(frame) == [(None, None), *((text, text) for text in good)]
    # A lone continuation byte, an overlong form, half of a surrogate pair, and a text that ends too early.
    bad = [b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", "ü".encode()[:1]]
    assert problems(records(*((None, value) for value in bad)), StringFormat()) == ["not valid UTF-8"] * 5
    assert problems(records(*((key, None) for key in bad)), None, StringFormat()) == ["key: not valid UTF-8"] * 5


@spark_test
def test_json_becomes_typed_columns(records):
    schema = (
        "s STRING NOT NULL, i INT, l BIGINT, d DOUBLE, m DECIMAL(10,2), b BOOLEAN, day DATE, at TIMESTAMP, "
        "n STRUCT<x: INT, y: ARRAY<STRING>>, k MAP<STRING, INT>, raw STRING"
    )
    full = (
        '{"s": "ü🎈\\u00e9", "i": -2147483648, "l": 9223372036854775807, "d": 1.5e3, "m": 12.34, "b": true, "day": '
        '"2026-03-29", "at": "2026-03-29T03:30:00+02:00", "n": {"x": 1, "y": ["a", null]}, "k": {"p": 1}, "raw": '
        '{"any": [1, {"thing": null}]}, "undeclared": 1}'
    )
    sparse = ' \t\r\n{"s":"","i":null}'
    frame = _decode(records((None, full.encode()), (None, sparse.encode()), (None, None)), JsonFormat(schema))
    assert frame.columns == ["s", "i", "l", "d", "m", "b", "day", "at", "n", "k", "raw", "kafka_offset"]
    shown = frame.selectExpr("s", "i", "l", "d", "string(m)", "b", "string(day)", "string(at)", "to_json(n)", "k.p",
                             "raw", "kafka_offset")  # fmt: skip
    assert _rows(shown) == [
        (
            "ü🎈é",
            -(2**31),
            2**63 - 1,
            1500.0,
            "12.34",
            True,
            "2026-03-29",
            "2026-03-29 01:30:00",
            '{"x":1,"y":["a",null]}',
            1,
            '{"any": [1, {"thing": null}]}',
        ),
        ("", *[None] * 10),
        (None,) * 11,
    ]


@spark_test
def test_json_as_a_key_is_one_struct_without_the_parsers_own_field(records):
    frame = _decode(
        records((b'{"id": 7}', b"x"), (None, b"y"), (b"{}", b"z")), None, JsonFormat("id INT"), ("offset", "key")
    )
    assert frame.schema["kafka_key"].dataType.simpleString() == "struct<id:int>"
    assert [None if row[1] is None else tuple(row[1]) for row in _rows(frame)] == [(7,), None, (None,)]


_NO_JSON = "not valid JSON"
_OBJECT = "not a JSON object"
# Refused by Spark 4.2's Jackson, and behind an older one by the field.
_HALF_A_NAME = ("not valid JSON", "the value of m has half of a surrogate pair")
_TOO_MUCH = "nested more than 1000 levels deep, or with a number of more than 1000 characters"
_STRICT = "s STRING NOT NULL, i INT, b BOOLEAN, at TIMESTAMP, n STRUCT<x: INT>, a ARRAY<INT>"


def _misfit(path, kind):
    return f"the value of {path} does not fit {kind}"


@spark_test
def test_json_rejects_what_breaks_its_rules(records):
    cases = [
        (b'{"s": "a"}', None),
        (b'{"s": "a", "i": null, "n": null, "a": [null]}', None),
        (b"", _OBJECT),
        (b"  ", _OBJECT),
        (b"null", _OBJECT),
        (b"[]", _OBJECT),
        (b'[{"s": "a"}]', _OBJECT),
        (b'"text"', _OBJECT),
        (b"3", _OBJECT),
        (b"true", _OBJECT),
        (b"nonsense", _OBJECT),
        ("\ufeff{}".encode(), _OBJECT),
        (b"{", _NO_JSON),
        (b'{"s": "a"', _NO_JSON),
        (b'{"s": "a",}', _NO_JSON),
        (b'{"s" "a"}', _NO_JSON),
        (b"{'s': 'a'}", _NO_JSON),
        (b"{s: 1}", _NO_JSON),
        (b'{"s": "a", "z": NaN}', _NO_JSON),
        (b'{"s": "a", "z": 01}', _NO_JSON),
        (b'{"s": "a"}{"s": "b"}', f"{_NO_JSON}: text follows the object"),
        (b'{"s": "a"} \x00', f"{_NO_JSON}: text follows the object"),
        (b'{"s": "a"} \n\t\r', None),
        (b'{"s": "a", "i": "x"}', _misfit("i", "INT")),
        (b'{"s": "a", "i": 1.5}', _misfit("i", "INT")),
        (b'{"s": "a", "i": 2147483648}', _misfit("i", "INT")),
        (b'{"s": "a", "i": true}', _misfit("i", "INT")),
        (b'{"s": "a", "b": 1}', _misfit("b", "BOOLEAN")),
        (b'{"s": "a", "b": "true"}', _misfit("b", "BOOLEAN")),
        (b'{"s": "a", "at": "yesterday"}', _misfit("at", "TIMESTAMP")),
        (b'{"s": "a", "n": 1}', _misfit("n", "struct<x:int>")),
        (b'{"s": "a", "n": {"x": "y"}}', _misfit("n.x", "INT")),
        (b'{"s": "a", "a": {"x": 1}}', _misfit("a", "array<int>")),
        (b'{"s": "a", "a": ["x"]}', _misfit("a[]", "INT")),
        (b'{"s": "a", "z": ' + b"[" * 1001 + b"]" * 1001 + b"}", _TOO_MUCH),
        (b'{"s": "a", "z": ' + b"1" * 1001 + b"}", _TOO_MUCH),
        (b'{"s": "a", "z": ' + b"[" * 900 + b"1" * 1000 + b"]" * 900 + b"}", None),
        (b'{"s": "\xff"}', "not valid UTF-8"),
        (b'{"undeclared": "\xff", "s": "a"}', "not valid UTF-8"),
        (b"\xff", "not valid UTF-8"),
        (b"{}", "the required field s is missing or null"),
        (b'{"s": null}', "the required field s is missing or null"),
        (b'{"S": "a"}', "the required field s is missing or null"),
        (None, None),
    ]
    found = problems(records(*((None, value) for value, _ in cases)), JsonFormat(_STRICT))
    assert [(value, problem) for (value, _), problem in zip(cases, found, strict=True)] == cases
    as_keys = problems(records(*((value, None) for value, _ in cases)), None, JsonFormat(_STRICT))
    assert as_keys == [None if problem is None else f"key: {problem}" for _, problem in cases]


@spark_test
def test_json_requires_what_is_declared_not_null_at_any_depth(records):
    schema = (
        "n STRUCT<x: INT NOT NULL, deep: STRUCT<z: STRING NOT NULL>>, a ARRAY<STRUCT<x: INT NOT NULL, y: INT NOT "
        "NULL>>, m MAP<STRING, STRUCT<x: INT NOT NULL>>, aa ARRAY<ARRAY<STRUCT<q: INT NOT NULL>>>"
    )
    cases = [
        (b"{}", None),
        (b'{"n": null, "a": null, "m": null}', None),
        (b'{"n": {"x": 1}, "a": [], "m": {}}', None),
        (b'{"n": {"x": 1, "deep": {"z": ""}}, "a": [{"x": 1, "y": 2}, null], "m": {"k": {"x": 1}, "l": null}}', None),
        (b'{"n": {}}', "the required field n.x is missing or null"),
        (b'{"n": {"x": 1, "deep": {"z": null}}}', "the required field n.deep.z is missing or null"),
        (b'{"a": [{"x": 1, "y": 2}, {"x": 1}]}', "the required field a[].y is missing or null"),
        (b'{"m": {"k": {"x": 1}, "l": {}}}', "the required field m{}.x is missing or null"),
        (b'{"aa": [[{"q": 1}], [{}]]}', "the required field aa[][].q is missing or null"),
    ]
    found = problems(records(*((None, value) for value, _ in cases)), JsonFormat(schema))
    assert [(value, problem) for (value, _), problem in zip(cases, found, strict=True)] == cases


def test_a_schema_that_is_none_is_refused_without_spark():
    for schema in ("", "  ", StructType([])):
        with pytest.raises(ConfigurationError) as error:
            JsonFormat(schema)
        assert str(error.value) == "a JsonFormat needs a schema, such as 'carrier STRING NOT NULL, flight INT'"
    with pytest.raises(ConfigurationError) as error:
        JsonFormat(["carrier STRING"])  # pyright: ignore[reportArgumentType]
    assert str(error.value) == "a JsonFormat's schema is DDL text or a StructType, not list"
    with pytest.raises(ConfigurationError, match="the JsonFormat's JSON Schema: its values can't be columns"):
        JsonFormat({"carrier": "STRING"})
    with pytest.raises(ConfigurationError, match="JsonFormat needs a schema, or a registry"):
        JsonFormat()
    with pytest.raises(ConfigurationError, match=r"must be 'fail' or 'null'"):
        JsonFormat("a INT", on_error="drop")  # pyright: ignore[reportArgumentType]


@spark_test
def test_on_error_null_keeps_the_record_its_bytes_and_the_reason(records):
    given = records(
        (b"k", b'{"s": "a", "i": 1}'),
        (b"k", b'{"s": "a", "i": "x"}'),
        (b"\xff", b"\xfe"),
        (b"\xff", None),
        (None, b"{}"),
    )
    frame = _decode(
        given, JsonFormat("s STRING NOT NULL, i INT", on_error="null"), StringFormat(on_error="null"), ("offset", "key")
    )
    assert frame.columns == [
        "s", "i", "kafka_offset", "kafka_key", "kafka_rejected_value", "kafka_rejected_key", "kafka_error",
    ]  # fmt: skip
    missing = "the required field s is missing or null"
    assert _rows(frame) == [
        ("a", 1, "k", None, None, None),
        (None, None, "k", b'{"s": "a", "i": "x"}', None, _misfit("i", "INT")),
        (None, None, None, b"\xfe", b"\xff", "not valid UTF-8"),
        (None, None, None, None, b"\xff", "key: not valid UTF-8"),
        (None, None, None, b"{}", None, missing),
    ]


@spark_test
def test_one_format_may_fail_while_the_other_keeps(records):
    keeps_values = _decode(records((b"k", b"\xff")), StringFormat(on_error="null"), StringFormat())
    assert keeps_values.columns == ["kafka_value", "kafka_offset", "kafka_rejected_value", "kafka_error"]
    assert _rows(keeps_values) == [(None, b"\xff", "not valid UTF-8")]
    with pytest.raises(Exception, match=r"record rejected\] t-3 offset 0: key: not valid UTF-8") as error:
        _decode(records((b"\xff", b"\xff")), StringFormat(on_error="null"), StringFormat()).collect()
    assert is_rejection(error.value)


@spark_test
def test_a_rejected_record_fails_the_read_whatever_columns_are_kept(records):
    frame = _decode(records((None, b"a"), (None, b"\xff")), StringFormat())
    for wanted in (frame, frame.select("kafka_offset"), frame.where("kafka_value = 'a'"), frame.groupBy().count()):
        with pytest.raises(Exception, match=r"record rejected\] t-3 offset 1: not valid UTF-8") as error:
            wanted.collect()
        assert is_rejection(error.value)
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = ValueError(f"inner {REJECTED} t-0")
    assert is_rejection(wrapped)
    assert not is_rejection(RuntimeError("something else"))
    assert not is_rejection(None)


@spark_test
def test_the_first_rejected_records_are_named_and_all_are_counted(records):
    decoder = Decoder(RawFormat(), StringFormat(), KafkaColumns())
    given = records((None, b"fine"), *[(None, b"\xff")] * 7)
    named = "; ".join(f"t-3 offset {offset}: not valid UTF-8" for offset in range(1, 6))
    assert str(rejected_records(given, decoder)) == (
        f"7 records can't be decoded: "
        f"{named}; and 2 more. Correct the format or its schema; or "
        "send such records to a separate table with dead_letter=, or keep them with their bytes and the error with "
        "on_error='null'"
    )
    passing = rejected_records(records((None, b"fine")), decoder)
    assert not passing.is_lasting
    assert str(passing) == (
        "a record was rejected while the batch was written, but reading the batch again finds no rejected record. "
        "Retention or compaction may have deleted it meanwhile. Run again"
    )


@spark_test
def test_fields_and_their_order_and_prefix_are_chosen(records):
    frame = _decode(
        records((b"k", b'{"s": "a"}')),
        JsonFormat("s STRING"),
        fields=("value", "timestamp_type", "headers", "timestamp", "offset", "partition", "topic", "key"),
        prefix="_",
    )
    assert frame.columns == [
        "s",
        "_value",
        "_timestamp_type",
        "_headers",
        "_timestamp",
        "_offset",
        "_partition",
        "_topic",
        "_key",
    ]
    (row,) = frame.selectExpr("*", "string(_timestamp) AS shown").collect()
    assert (row["_value"], row["_timestamp_type"], row["_headers"], row["shown"]) == (
        b'{"s": "a"}',
        0,
        None,
        "2026-03-29 01:30:00",
    )
    assert (row["_offset"], row["_partition"], row["_topic"], row["_key"]) == (0, 3, "t", b"k")
    assert _decode(records((b"k", b"v")), fields=()).columns == ["kafka_value"]
    assert _decode(records((b"k", b"v")), fields=("value", "offset"), prefix="").columns == ["value", "offset"]


@spark_test
def test_two_columns_of_one_name_are_refused_whatever_their_case(records):
    given = records((None, b"{}"))
    for value_format, fields, prefix, name in (
        (JsonFormat("Offset INT"), ("offset",), "", "offset"),
        (JsonFormat("kafka_topic STRING"), ("topic",), "kafka_", "kafka_topic"),
        (JsonFormat("kafka_error INT", on_error="null"), (), "kafka_", "kafka_error"),
    ):
        with pytest.raises(ConfigurationError) as error:
            _decode(given, value_format, fields=fields, prefix=prefix)
        reported = (
            f"two columns would be named {name!r}: one comes from the value, one from the record itself. Rename the "
        )
        ways = "field, choose another prefix in KafkaColumns, or leave the field out of KafkaColumns.fields"
        if name == "kafka_error":
            ways = "field, or choose another prefix in KafkaColumns"
        assert str(error.value) == reported + ways


def test_a_field_is_named_once_and_known():
    with pytest.raises(ConfigurationError, match=r"duplicate field: topic, topic"):
        KafkaColumns(fields=("topic", "topic"))
    with pytest.raises(ConfigurationError, match=r"must be 'key', 'value', 'topic'"):
        KafkaColumns(fields=("tpoic",))  # pyright: ignore[reportArgumentType]


_SINGLE = (
    "d DECIMAL(5,2), whole DECIMAL(5,0), wei DECIMAL(38,18), x DOUBLE, y FLOAT, s STRING, t TIMESTAMP, "
    "n TIMESTAMP_NTZ, day DATE, b TINYINT, within STRUCT<x: DOUBLE, y: FLOAT>"
)
_NESTED = (
    "`d\u00fc` DECIMAL(5,2), d ARRAY<DECIMAL(5,2)>, n MAP<STRING, DECIMAL(5,2)>, e ARRAY<STRUCT<d: DECIMAL(5,2)>>, "
    "r STRUCT<d: DECIMAL(5,2) NOT NULL>, x ARRAY<DOUBLE>, a ARRAY<STRUCT<s: STRING>>, m MAP<STRING, INT>, "
    "ts ARRAY<TIMESTAMP>, mt MAP<STRING, TIMESTAMP>, st STRUCT<t: TIMESTAMP>, days ARRAY<DATE>, bs ARRAY<TINYINT>, "
    "with_map STRUCT<d: DECIMAL(5,2), m: MAP<STRING, TINYINT>>, with_variant ARRAY<STRUCT<d: DECIMAL(5,2), v: VARIANT>>"
)

_CHANGED = {
    _SINGLE: [
        ('{"d": 1.239}', "the value of d has more digits than DECIMAL(5,2) holds"),
        ('{"d":"1.239"}', "the value of d has more digits"),
        ('{"d": 0.30000000000000000000000000000000000000000004}', "the value of d has more digits"),
        ('{"d": 1239e-3}', "the value of d has more digits"),
        ('{"d": 1e-50}', "the value of d has more digits"),
        ('{"d": -0.001 }', "the value of d has more digits"),
        ('{"\\u0064": 1.239}', "the value of d has more digits"),
        ('{"d": 1.2, "e": {"d": 1}, "d": 1.239}', "the value of d has more digits"),
        ('{"d": "1.23\\u0039"}', "the value of d has more digits"),
        ('{"d": 1.20000}', None),
        ('{"d": 1.2, "e": {"d": 1.239}, "f": "d\\": 1.239"}', None),
        ('{"d": 1e2, "e": -1.5, "f": "-", "g": "5 \\" 6"}', None),
        ('{"d": 12.0e-1}', None),
        ('{"d": "1,2.30"}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": "1,50"}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": " 1.5"}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": null, "e": 1.239}', None),
        ('{"d": 9999.9}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"whole": 1.5}', "the value of whole has more digits"),
        ('{"whole": 1.0}', None),
        ('{"wei": 1.2345678901234567891}', "the value of wei has more digits"),
        ('{"wei": 1.234567890123456789}', None),
        ('{"x": 1e400}', "the value of x is beyond the range of DOUBLE"),
        ('{"z": "Infinity", "x": -1e400}', "the value of x is beyond the range of DOUBLE"),
        ('{"x": "Infinity", "z": 1e400}', None),
        ('{"x": "-Infinity", "z": "1e400"}', None),
        ('{"x": -Infinity}', "not valid JSON"),
        ('{"x": 1.7e308}', None),
        ('{"x": "NaN"}', None),
        ('{"x": NaN}', "not valid JSON"),
        ('{"x": "INF"}', "the value of x does not fit DOUBLE"),
        ('{"y": -1e39}', "the value of y is beyond the range of FLOAT"),
        ('{"s": "\\ud800"}', "half of a surrogate pair"),
        ('{"s": "\\uDC00\\uD800"}', "half of a surrogate pair"),
        ('{"s": "\\ud83d\\ude00\\ude00"}', "half of a surrogate pair"),
        ('{"s": "\\\\\\ud800"}', "half of a surrogate pair"),
        ('{"s": "\\ud83d\\ude00 \\\\ud800 ?"}', None),
        ('{"s": "x", "z": "\\ud800"}', None),
        ('{"s": "12345678901234567890.123"}', None),
        ('{"t": 1700000000000}', "the value of t is not in the years 1 to 9999 (a bare number is seconds since 1970)"),
        ('{"t": -99999999999}', "the value of t is not in the years 1 to 9999"),
        # Its microseconds overflow.
        ('{"t": 1770889131076116}', "the value of t is not in the years 1 to 9999"),
        ('{"t" : -9223372036855}', "the value of t is not in the years 1 to 9999"),
        ('{"t": 1762300000, "z": 1770889131076116}', None),
        ('{"t": "9999-12-31T12:00:00Z"}', None),
        ('{"t": "12345-01-01"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "0000-12-31"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "2024"}', None),
        ('{"t": "2024-01"}', None),
        ('{"t": "03:04:05Z"}', "the value of t does not fit TIMESTAMP"),
        ('{"t":"3:4"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "T03"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "03:04:05 America/New_York"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "\\t 03:04"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "\\u00303:04"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "03\\u003a04"}', "the value of t does not fit TIMESTAMP"),
        ('{"\\u0074": "03:04"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "2024-01-01", "t": "03:04"}', "the value of t does not fit TIMESTAMP"),
        ('{"t": "2024-01-01", "s": "03:04", "z": {"t": "03:04"}}', None),
        ('{"n": "03:04"}', "the value of n does not fit TIMESTAMP_NTZ"),
        ('{"n": "9999-12-31T23:59:59.999999"}', None),
        ('{"n": "10000-01-01"}', "the value of n does not fit TIMESTAMP_NTZ"),
        ('{"day": "1762300000"}', "the value of day does not fit DATE"),
        ('{"day": "03"}', "the value of day does not fit DATE"),
        ('{"day": "00017623"}', "the value of day does not fit DATE"),
        ('{"day": "12345"}', "the value of day does not fit DATE"),
        ('{"day": "-2024-01-01"}', "the value of day does not fit DATE"),
        ('{"day": "0001-01-01"}', None),
        ('{"day": "today"}', "the value of day does not fit DATE"),
        # To round these, Java would calculate for minutes, or hours.
        ('{"d": 1e9999999}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": "1e999999999"}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": "1e-999999999"}', "the value of d has more digits"),
        ('{"d": "1\\u0065999999999"}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": "1e999999999"', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": -1e-999999999, "s": "1e999999999"}', "the value of d has more digits"),
        ('{"d": 1e-99999999999, "d": 1e-999999999}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": 100e2147483647}', "the value of d does not fit DECIMAL(5,2)"),
        ('{"d": 1e-400}', "the value of d has more digits"),
        ('{"d": "1e-400"}', "the value of d has more digits"),
        ('{"d": 0e999999999}', None),
        ('{"d": 1.5, "s": "1e999999999", "z": 1e999999999, "e": {"d": "1e999999999"}}', None),
        ('{"d": 1.5e00000001, "s": "\\u0041"}', None),
        ('{"x": 1e-400}', "the value of x is beyond the range of DOUBLE"),
        ('{"x": 1e-9999999}', "the value of x is beyond the range of DOUBLE"),
        ('{"y": 1e-46}', "the value of y is beyond the range of FLOAT"),
        ('{"x": 1e-300, "y": 1e-40}', None),
        ('{"x": 0e-400, "s": "1e-400"}', None),
        ('{"x": 1e-400, "x": 2}', "the value of x is beyond the range of DOUBLE"),
        ('{"x": null, "y": 1.5, "within": {"x": -1e-400}}', "the value of within.x is beyond the range of DOUBLE"),
        ('{"x": 2, "within": {"x": 0.5, "y": 1E-46}}', "the value of within.y is beyond the range of FLOAT"),
        ('{"x": 0, "within": {"x": 1e-300, "y": -0.0}}', None),
        ('{"b": 128}', "the value of b does not fit TINYINT"),
        ('{"b": 255}', "the value of b does not fit TINYINT"),
        ('{"b": 256}', "the value of b does not fit TINYINT"),
        ('{"b": -129}', "the value of b does not fit TINYINT"),
        ('{"b": 40000}', "the value of b does not fit TINYINT"),
        ('{"b": -128}', None),
        ('{"b": 127}', None),
    ],
    _NESTED: [
        ('{"d\u00fc": 1.239}', "the value of d\u00fc has more digits"),
        ('{"d": [1.2, 1.239]}', "the value of d[] has more digits"),
        ('{"d": [1.2, null, 1.200]}', None),
        ('{"n": {"a": 123e-3}}', "the value of n{} has more digits"),
        ('{"e": [{"d": 1.2}, {"d": 1.239}]}', "the value of e[].d has more digits"),
        ('{"r": {"d": 1.239}}', "the value of r.d has more digits"),
        ('{"r": {"d": 1.5}}', None),
        ('{"x": [1.5, null, 1e400]}', "the value of x[] is beyond the range of DOUBLE"),
        ('{"a": [{"s": "\\ud800"}]}', "half of a surrogate pair"),
        ('{"m": {"\\ud800": 1}}', _HALF_A_NAME),
        ('{"m": {"a": 1, "a": 2}}', "the value of m has a key twice"),
        ('{"m": {"a": 1, "b": 1}}', None),
        ('{"ts": ["2024-01-01", "03:04"]}', "the value of ts[] does not fit TIMESTAMP"),
        ('{"ts": [1770889131076116]}', "the value of ts[] is not in the years 1 to 9999"),
        ('{"mt": {"a": "03:04"}}', "the value of mt{} does not fit TIMESTAMP"),
        ('{"mt": {"03:04": 1770889131076116}}', "the value of mt{} is not in the years 1 to 9999"),
        ('{"mt": {"03:04": "2024-01-01T03:04:05Z"}}', None),
        ('{"st": {"t": "T03:04"}}', "the value of st.t does not fit TIMESTAMP"),
        ('{"days": ["2024-01-01", "12345"]}', "the value of days[] does not fit DATE"),
        ('{"e": [{"d": 1e999999999}]}', "the value of e[].d does not fit DECIMAL(5,2)"),
        ('{"n": {"a": "1e-999999999"}}', "the value of n{} has more digits"),
        ('{"x": [1e-400]}', "the value of x[] is beyond the range of DOUBLE"),
        ('{"bs": [1, 128]}', "the value of bs[] does not fit TINYINT"),
        ('{"with_map": {"m": {"a": 200}}}', "the value of with_map.m{} does not fit TINYINT"),
        ('{"with_map": {"d": 1.239}}', "the value of with_map.d has more digits"),
        ('{"with_map": {"d": 1.2, "m": {"a": -128}}}', None),
        ('{"with_variant": [{"d": 1.5, "v": 7}, {"d": 1.239}]}', "the value of with_variant[].d has more digits"),
        ('{"with_variant": [{"d": 1.2, "v": {"d": 1.239}}]}', None),
    ],
}


@spark_test
@pytest.mark.parametrize("schema", [_SINGLE, _NESTED], ids=["single", "nested"])
def test_json_whose_value_a_column_would_change_is_rejected_and_no_other(records, schema):
    cases = _CHANGED[schema]
    found = problems(records(*((None, text.encode()) for text, _ in cases)), JsonFormat(schema))
    for (text, wanted), problem in zip(cases, found, strict=True):
        assert (problem is None) == (wanted is None), f"{text}: {problem}"
        texts = wanted if isinstance(wanted, tuple) else (wanted,)
        assert problem is None or any(each in problem for each in texts), f"{text}: {problem}"


@spark_test
def test_a_value_lands_as_it_was_sent(records):
    schema = "s STRING, v VARIANT, b BINARY, x DOUBLE, t TIMESTAMP"
    cases = [
        (b'{"s": 1.50, "v": [1.5, 7]}', "1.50", "[1.5,7]"),
        (b'{"s": {"a":  1e400}, "v": {"b": 1}}', '{"a":  1e400}', '{"b":1}'),
        (b'{"s": [12345678901234567890.10, "\\u00fc"]}', '[12345678901234567890.10, "\\u00fc"]', None),
        (b'{"s": true, "v": null}', "true", "null"),
    ]
    frame = _decode(records(*((None, text) for text, _, _ in cases)), JsonFormat(schema))
    assert _rows(frame.selectExpr("s", "to_json(v)", "kafka_offset")) == [tuple(case[1:]) for case in cases]
    zeros = records((None, b'{"x": -0, "y": -0}'), (None, b'{"x": -0.0, "y": -0e5}'), (None, b'{"x": 0, "y": 0.0}'))
    signs = _decode(zeros, JsonFormat("x DOUBLE, y FLOAT")).selectExpr("string(x)", "string(y)", "kafka_offset")
    assert _rows(signs) == [("-0.0", "-0.0"), ("-0.0", "-0.0"), ("0.0", "0.0")]
    bad = [
        (b'{"v": NaN}', "not valid JSON"),
        (b'{"v": 1e400}', "the value of v has a number beyond the range of DOUBLE"),
        (b'{"v": ["\\ud800"]}', "the value of v has half of a surrogate pair"),
        (b'{"v": {"a": 1, "a": 2}}', "the value of v has a key twice"),
        (b'{"b": "\\u0000"}', "the value of b does not fit BINARY"),
        (b'{"b": "YQ"}', "the value of b does not fit BINARY"),
        (b'{"t": " 2026-01-01"}', "the value of t does not fit TIMESTAMP"),
        (b'{"t": "2026-01-01 12:00 Europe/Berlin"}', "the value of t does not fit TIMESTAMP"),
    ]
    assert problems(records(*((None, text) for text, _ in bad)), JsonFormat(schema)) == [each for _, each in bad]


@spark_test
def test_a_time_is_of_the_time_zone_of_the_session_when_its_decoder_was_made(spark, records):
    texts = ["2026-03-29 02:30", "2026-03-29T03:30", "2026-10-25 02:30", "2026-03-29T02:30Z"]
    given = records(*((None, f'{{"t": "{text}"}}'.encode()) for text in texts))
    decoder = Decoder.of(None, JsonFormat("t TIMESTAMP", on_error="null"), KafkaColumns(fields=("offset",)))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = decoder.finish(decoder.stage(given))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    shown = frame.orderBy("kafka_offset").selectExpr("string(t)", "kafka_error").collect()
    assert [tuple(row) for row in shown] == [
        (None, "the value of t is a time that the time zone Europe/Berlin skips"),
        ("2026-03-29 01:30:00", None),
        # Of the two, the first.
        ("2026-10-25 00:30:00", None),
        ("2026-03-29 02:30:00", None),
    ]


@spark_test
def test_a_named_record_says_which_field_its_value_or_key_does_not_fit(records):
    given = {
        b'{"n": "x", "d": 1.5}': "the value of n does not fit INT",
        b'{"n": 1, "d": 1.23}': "the value of d has more digits than DECIMAL(4,1) holds",
        b'{"n": 1, "r": {"a": "x"}}': "the value of r.a does not fit INT",
        b'{"n": ': "not valid JSON",
    }
    decoder = Decoder(JsonFormat("k INT"), JsonFormat("n INT, d DECIMAL(4,1), r STRUCT<a: INT>"), KafkaColumns())
    reported = str(rejected_records(records((b'{"k": "x"}', None), *((None, each) for each in given)), decoder))
    wanted = ["key: the value of k does not fit INT", *given.values()]
    assert "; ".join(f"t-3 offset {offset}: {problem}" for offset, problem in enumerate(wanted)) in reported


@spark_test
def test_an_error_quotes_values_only_where_it_may(records):
    long = f'{{"a": "{"x" * 41}"}}'
    rejected = records((None, b'{"n": "4 2"}'), (None, f'{{"n": {long}}}'.encode()))
    quoting = Decoder(RawFormat(), JsonFormat("n INT", show_values=True), KafkaColumns())
    reported = str(rejected_records(rejected, quoting))
    assert "offset 0: the value of n does not fit INT: 4 2; " in reported
    assert f"offset 1: the value of n does not fit INT: {long[:40]}.... Correct" in reported
    assert "4 2" not in str(rejected_records(rejected, Decoder(RawFormat(), JsonFormat("n INT"), KafkaColumns())))


@spark_test
@pytest.mark.parametrize(
    ("value_format", "columns"),
    [
        (RawFormat(), KafkaColumns()),
        (StringFormat(on_error="null"), KafkaColumns(fields=("value", "offset"))),
        (
            JsonFormat("a INT, `b``c` STRUCT<d: INT>", on_error="null"),
            KafkaColumns(prefix="k_", fields=("offset", "value")),
        ),
        (JsonFormat("STRUCT<a: INT, b: STRUCT<c: INT>>"), KafkaColumns(fields=())),
    ],
)
def test_the_columns_that_are_reported_without_spark_are_those_that_it_gives(spark, value_format, columns):
    decoder = Decoder.of(StringFormat(on_error="null"), value_format, columns)
    assert decoder.finish(decoder.stage(made(spark, []))).columns == decoder.landed_names
