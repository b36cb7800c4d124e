"""CsvFormat on real Spark: what it reads, what it rejects, and that it reads what Python's csv module writes."""

from __future__ import annotations

import csv
import io
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.string import StringFormat
from tests.formats.decoding import landed, problems, records

spark_test = pytest.mark.spark

_TWO = "a STRING, b STRING"


def _outcomes(spark, value_format, texts) -> list[Any]:
    """Each record's values; or the reason why it is rejected, as a text."""
    found = landed(spark, value_format, texts)
    assert all(error is None or set(row.values()) == {None} for row, error in found)
    return [tuple(row.values()) if error is None else error for row, error in found]


_ROW = "not one row of CSV"


@spark_test
def test_a_row_is_cut_as_flink_cuts_it_or_rejected(spark):
    cases = {
        "a,b": ("a", "b"),
        "a,": ("a", ""),
        ",": ("", ""),
        '",",x': (",", "x"),
        " a , b ": (" a ", " b "),
        'a"b,c': ('a"b', "c"),
        '"a""b",""': ('a"b', ""),
        '"a\r\nb","\n\r"': ("a\r\nb", "\n\r"),
        "a,b\n": ("a", "b"),
        "a,b\r\n": ("a", "b"),
        "#a,b": ("#a", "b"),
        "a,\u2028": ("a", "\u2028"),
        "a\\,b": ("a\\", "b"),
        '"' + '""' * 50_000 + '",b': ('"' * 50_000, "b"),
        None: (None, None),
        b"": "empty",
        "\n": "empty",
        "a": "has 1 fields, but 2 are declared",
        "a,b,c": "has 3 fields, but 2 are declared",
        "a,b\r": _ROW,
        "a,b\nc,d": _ROW,
        "a,b\n\n": _ROW,
        '"a,b': _ROW,
        '"a"x,b': _ROW,
        '"a" ,b': _ROW,
        # Spark's parser would drop the quotes, Flink's keeps them.
        ' "a",b': _ROW,
        '"a\\"b",c': _ROW,
        "a\x00b,c": "contains U+0000",
        '"\x00a",b': "contains U+0000",
        "\ufeffa,b": "begins with a byte order mark",
        b"\xff,b": "not valid UTF-8",
        b"a,\xed\xa0\x80": "not valid UTF-8",
    }
    assert dict(zip(cases, _outcomes(spark, CsvFormat(_TWO), cases), strict=True)) == cases


@spark_test
def test_a_row_with_very_many_fields_is_rejected_and_no_other(spark):
    most = "," * 20_479
    cases = {
        f"a{most}": "has 20480 fields, but 2 are declared",
        f"a{most},": "has 20481 fields, but 2 are declared",
        f'"a",b"{most},c"': "has 20482 fields, but 2 are declared",
        f'"a"{most},\r': _ROW,
        f'a,"{most},b"': ("a", f"{most},b"),
        "a,b": ("a", "b"),
    }
    assert dict(zip(cases, _outcomes(spark, CsvFormat(_TWO), cases), strict=True)) == cases
    texts = [f'"a{most}"', f"a{most},", "a,b"]
    assert _outcomes(spark, CsvFormat(_TWO, quote=None), texts) == [
        "has 20480 fields, but 2 are declared",
        "has 20481 fields, but 2 are declared",
        ("a", "b"),
    ]


@spark_test
def test_characters_of_the_format_are_chosen(spark):
    escaped = {'"a\\"b",c': ('a"b', "c"), '"a\\\\",c': ("a\\", "c"), '"a""b",c': _ROW, '"a\\n",c': _ROW, "a\\,b": _ROW}
    assert dict(zip(escaped, _outcomes(spark, CsvFormat(_TWO, escape="\\"), escaped), strict=True)) == escaped
    unquoted = {'"a,b"': ('"a', 'b"'), 'a"b,""': ('a"b', '""'), "a\x00,b": "contains U+0000"}
    assert dict(zip(unquoted, _outcomes(spark, CsvFormat(_TWO, quote=None), unquoted), strict=True)) == unquoted
    commented = {
        "# x\na,b": ("a", "b"),
        '#x\n#y\r\na,"#b"\n': ("a", "#b"),
        "a,#b": ("a", "#b"),
        "#x": "has no row",
        "a,b\n#x": _ROW,
        # The first of two rows would be a part of the comment.
        "#x\ra,b\nc,d": _ROW,
        "#x\r\r\na,b": _ROW,
    }
    found = _outcomes(spark, CsvFormat(_TWO, allow_comments=True), commented)
    assert dict(zip(commented, found, strict=True)) == commented
    for delimiter in "\t\\^":
        (found,) = _outcomes(spark, CsvFormat(_TWO, delimiter=delimiter, quote="'"), [f"a{delimiter}'b{delimiter}'''"])
        assert found == ("a", f"b{delimiter}'")


@spark_test
def test_only_the_null_literal_is_a_null(spark):
    schema = "a STRING, n INT, r STRING NOT NULL"
    cases = {
        'NULL,"NULL",x': (None, None, "x"),
        "null,1,": ("null", 1, ""),
        "x,1,NULL": "the required field r is null",
        "x,,y": "the value of n does not fit INT",
    }
    assert dict(zip(cases, _outcomes(spark, CsvFormat(schema, null_literal="NULL"), cases), strict=True)) == cases
    empty = {",,x": (None, None, "x"), '"",1,x': (None, 1, "x"), "x,1,": "the required field r is null"}
    assert dict(zip(empty, _outcomes(spark, CsvFormat(schema, null_literal=""), empty), strict=True)) == empty
    never = {",1,": ("", 1, ""), "x,,y": "the value of n does not fit INT"}
    assert dict(zip(never, _outcomes(spark, CsvFormat(schema), never), strict=True)) == never


_VALUES = {
    "INT": (
        {"1": 1, "+1": 1, " -1 ": -1, "010": 10},
        ["", "1.0", "1e3", "2147483648", "0x1", "\u0661", "1,000", "1_000", "true", "1\x7f"],
    ),
    "TINYINT": ({"-128": -128}, ["128"]),
    "BIGINT": ({"9223372036854775807": 2**63 - 1}, ["9223372036854775808"]),
    "DOUBLE": (
        {"1": 1.0, "1.": 1.0, ".5": 0.5, "1.5e-3": 0.0015, " 2 ": 2.0, "0e-400": 0.0, "5E0": 5.0},
        ["", "nan", "NaN", "Infinity", "1d", "0x1p3", "1e400", "1e-400", "1,5", "."],
    ),
    "FLOAT": ({"0.5": 0.5}, ["1e39", "1f"]),
    "DECIMAL(5,2)": (
        {
            "1.23": Decimal("1.23"),
            "1.2300": Decimal("1.23"),
            "123.4e-1": Decimal("12.34"),
            "1.2E2": Decimal("120.00"),
            "12300e-4": Decimal("1.23"),
            "-0.00": Decimal("0.00"),
            "0e-50": Decimal("0.00"),
            "5e0": Decimal("5.00"),
            "0e-999999999": Decimal("0.00"),
        },
        [
            "1.239",
            "123.45e-1",
            "1239e-3",
            "1e5",
            "1000",
            "1e-50",
            "1." + "0" * 46 + "1",
            "nan",
            " 1",
            "1e9999",
            "1,2",
            "1e-999999999",
            "1e999999999",
            "1" * 1001,
        ],
    ),
    "DECIMAL(38,0)": ({"1e37": Decimal(10**37), "9" * 38: Decimal("9" * 38)}, ["1e38", "1.5"]),
    "BOOLEAN": ({"true": True, "False": False, "TRUE ": True}, ["", "t", "1", "yes", "fal\u017fe"]),
    "DATE": (
        {"2021-02-28": date(2021, 2, 28), "2021-2-3": date(2021, 2, 3)},
        [
            "",
            "2021-02-30",
            "2021",
            "2021-13-01",
            "0000-01-01",
            "12345-01-01",
            "today",
            "20210101",
            "2021-01-01T00:00:00",
            "02/28/2021",
        ],
    ),
    "TIMESTAMP": (
        {"9999-12-31T12:00:00Z": datetime(9999, 12, 31, 12, tzinfo=timezone.utc).astimezone().replace(tzinfo=None)},
        ["03:04:05Z", "T03:04", "now", "9999-12-31 23:59-12:00", "0001-01-01 00:00+12:00"],
    ),
    "TIMESTAMP_NTZ": (
        {
            "2021-01-01 00:00:00": datetime(2021, 1, 1),  # noqa: DTZ001
            "2021-01-01T00:00:00.1234560": datetime(2021, 1, 1, 0, 0, 0, 123456),  # noqa: DTZ001
        },
        [
            "2021-01-01 00:00:00Z",
            "03:04:05",
            "0000-12-31 00:00",
            "2021-01-01",
            "2021-02-30 00:00:00",
            "2021-01-01 24:00:00",
        ],
    ),
    "BINARY": ({"aGk=": b"hi", "": b""}, ["aGk", "a Gk=", "%", "aGl="]),
}


@spark_test
def test_a_value_that_spark_would_change_does_not_fit_its_type(spark):
    for kind, (good, bad) in _VALUES.items():
        # In quotes, since some of the texts hold a comma.
        texts = [f'"{text}"' for text in [*good, *bad]]
        found = _outcomes(spark, CsvFormat(f"v {kind}"), texts)
        assert found[: len(good)] == [(value,) for value in good.values()], kind
        assert [(text, each) for text, each in zip(bad, found[len(good) :], strict=True) if type(each) is tuple] == []
        assert all(each.startswith("the value of v ") for each in found[len(good) :])
    assert _outcomes(spark, CsvFormat("v DECIMAL(5,2)"), ["1.239"]) == [
        "the value of v has more digits than DECIMAL(5,2) holds"
    ]


@spark_test
def test_a_time_of_the_sessions_zone_has_to_be_one(spark):
    texts = ["2021-03-28 02:30:00", "2021-03-28 02:30:00Z", "2021-03-28 03:30:00", "2021-01-01 00:00:00 Europe/Paris"]
    misfit = "the value of t does not fit TIMESTAMP"
    skipped = "the value of t is a time that the time zone Europe/Berlin skips"
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert problems(records(spark, texts), CsvFormat("t TIMESTAMP")) == [skipped, None, None, misfit]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert problems(records(spark, texts), CsvFormat("t TIMESTAMP")) == [None, None, None, misfit]


@spark_test
def test_as_a_key_it_is_one_struct_and_as_a_value_its_columns(spark):
    frame = records(spark, ["1,y", None, "2,"], keys=["7,x", None, "8,"])
    decoder = Decoder.of(CsvFormat("id INT, s STRING"), CsvFormat("a INT, `b c` STRING"), KafkaColumns(fields=("key",)))
    rows = decoder.finish(decoder.stage(frame))
    assert rows.columns == decoder.landed_names == ["a", "b c", "kafka_key"]
    assert rows.schema["kafka_key"].dataType.simpleString() == "struct<id:int,s:string>"
    assert [tuple(row) for row in rows.collect()] == [(1, "y", (7, "x")), (None, None, None), (2, "", (8, ""))]
    assert decoder.fields(3) == []


_TEXT = st.text(st.sampled_from("ab ,;\t|\"'\n\r\\#ü\u2028\U0001f388N"), max_size=8)
_TYPED = st.tuples(
    _TEXT,
    st.integers(-(2**63), 2**63 - 1),
    st.decimals(-(10**8), 10**8, places=2),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.none() | _TEXT,
)
# A batch is one example, because a Spark job takes longer than many rows.
_LARGE = [HealthCheck.data_too_large, HealthCheck.large_base_example]
_SCHEMA = "s STRING, n BIGINT, m DECIMAL(12,2), x DOUBLE, b BOOLEAN, d DATE, t TIMESTAMP_NTZ, o STRING"


def _written(row, **dialect):
    out = io.StringIO()
    csv.writer(out, **dialect).writerow("NULL" if value is None else value for value in row)
    return out.getvalue()


def _read(text):
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


@spark_test
@settings(max_examples=3, suppress_health_check=_LARGE)
@given(
    rows=st.lists(_TYPED, min_size=50, max_size=70),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    escape=st.sampled_from([None, "\\"]),
)
def test_csv_written_by_python_is_read_back_unchanged(spark, rows, delimiter, quoting, escape):
    dialect = {"delimiter": delimiter, "quoting": quoting}
    if escape is not None:
        dialect |= {"escapechar": escape, "doublequote": False, "quoting": csv.QUOTE_ALL}
    texts = [_written(row, **dialect) for row in rows]
    read = CsvFormat(_SCHEMA, delimiter=delimiter, escape=escape, null_literal="NULL")
    assert _outcomes(spark, read, texts) == [tuple(row) for row in rows]


@spark_test
@settings(max_examples=3, suppress_health_check=_LARGE)
@given(texts=st.lists(st.text(st.sampled_from('ab ,"\n\r\\\x00\t'), max_size=12), min_size=200, max_size=250))
def test_accepted_csv_has_the_values_that_python_reads(spark, texts):
    for text, found in zip(texts, _outcomes(spark, CsvFormat(_TWO), texts), strict=True):
        # A reason, or exactly what another parser sees in it.
        assert isinstance(found, str) or [list(found)] == _read(text), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "a CsvFormat needs a schema, such as 'carrier STRING NOT NULL, flight INT'"),
        ({"a": "INT"}, "a CsvFormat's schema is DDL text or a StructType, not dict"),
        ("a INT, b ARRAY<INT>", "schema: b: unsupported type ARRAY in CSV; a CSV field"),
        ("a VARIANT", "schema: a: unsupported type VARIANT in CSV; a CSV field holds one value; use STRING"),
        ("a VARCHAR(3)", "schema: a: unsupported type VARCHAR in CSV; use STRING"),
        (
            StructType([StructField("a", ArrayType(StringType()))]),
            "schema: a: unsupported type ARRAY in CSV; a CSV field holds one value",
        ),
    ],
)
def test_a_schema_that_csv_can_not_fill_is_refused_where_it_is_defined(schema, message):
    with pytest.raises(ConfigurationError) as error:
        CsvFormat(schema)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": "||"}, "delimiter must be one character"),
        ({"delimiter": ""}, "delimiter must be one character"),
        ({"delimiter": "\U0001f388"}, "delimiter must be one character"),
        ({"quote": "\n"}, "quote can't be a line break"),
        ({"delimiter": '"'}, "delimiter, quote and escape must be different characters"),
        ({"escape": ","}, "delimiter, quote and escape must be different characters"),
        ({"quote": None, "escape": "\\"}, "escape only works inside quotes"),
        ({"quote": "#", "allow_comments": True}, "allow_comments leaves out lines that begin with #"),
        ({"delimeter": ";"}, "delimeter: unknown field; did you mean delimiter?"),
    ],
)
def test_a_character_that_can_not_be_is_refused_with_its_name(options, message):
    with pytest.raises(ConfigurationError) as error:
        CsvFormat("a INT", **options)
    assert message in str(error.value)


def test_a_struct_type_is_a_schema_too():
    schema = StructType([StructField("a", StringType()), StructField("n", IntegerType(), nullable=False)])
    assert CsvFormat(schema).column_names == ["a", "n"]
    assert CsvFormat("a STRING, n INT NOT NULL").column_names == ["a", "n"]
    assert StringFormat().column_names == ()
