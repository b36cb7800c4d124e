"""Schemas as DDL are checked without Spark, and never refused where Spark takes them."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import struct_of
from dagster_kafka_flip.formats.json import JsonFormat

GOOD = [
    "carrier STRING NOT NULL, flight INT",
    "id BIGINT NOT NULL COMMENT 'what it\\'s', name STRING COMMENT \"a, b > c\"",
    "a ARRAY<STRUCT<x: INT, y: DECIMAL(10,2)>>",
    "m MAP<STRING, ARRAY<MAP<STRING, INT>>>",
    "`a b` INT, `a``b` INT, `c,d` STRING, `e``` INT, e INT",
    "ts TIMESTAMP_NTZ, t2 TIMESTAMP_LTZ, d DATE, b BINARY, v VARIANT",
    "a: int, b: string",
    "s STRUCT<a: INT NOT NULL COMMENT 'c', b STRING>, e STRUCT<>",
    "i INTERVAL DAY TO SECOND, j INTERVAL YEAR",
    "f FLOAT, r REAL, l LONG, sh SHORT, by BYTE, ti TINYINT, de DEC(5), n NUMERIC(3,1), x VOID, o BOOLEAN",
    "c CHAR(5), v VARCHAR(9), dd DECIMAL, d38 DECIMAL(38, 38)",
    "date DATE, timestamp TIMESTAMP, order INT, user STRING, key STRING, table STRING, from STRING, select INT",
    "primary STRING, constraint STRING, check STRING, like STRING, struct STRING, array INT",
    "a STRING COLLATE UTF8_LCASE, b STRING",
    "struct<a:int,b:string>",
    "_id STRING, a1 INT, 1a INT",
    "`größe` INT, `😀` STRING, `a-b` INT",
    "a INT -- the first\n, b /* the second */ INT",
    "  a\tINT\n,\nb INT  ",
]
BAD = [
    ("id strin", "schema: id: 'strin' is not a Spark type; did you mean STRING?"),
    ("id INT64, name TEXT", "schema: id: 'INT64' is not a Spark type; did you mean BIGINT?"),
    ("größe INT", "schema: quote the name größe: write `größe`"),
    ("a-b INT", "schema: quote the name a-b: write `a-b`"),
    ("INT", "schema: INT is a single type; write fields, such as 'flight INT'"),
    ("array<int>", "schema: array is a single type; write fields, such as 'flight INT'"),
    ("id", "schema: id has no type; add one, such as id STRING"),
    ("id INT,", "schema: a field is missing before the end; check for an extra comma"),
    ("id INT,, name STRING", "schema: a field is missing before ,; check for an extra comma"),
    ("id INT NOT NUL", "schema: id: a constraint is NOT NULL"),
    ("id INT NOT", "schema: id: a constraint is NOT NULL"),
    ("id INT NOT, n INT", "schema: id: a constraint is NOT NULL"),
    ("id INT name STRING", "schema: id: unexpected name after the type; a comma may be missing"),
    ("a ARRAY<INT", "schema: a: ARRAY: expected >, not the end"),
    ("a ARRAY", "schema: a: ARRAY: expected <, not the end"),
    ("a MAP<INT>", "schema: a: the key of a MAP: expected ,, not >"),
    ("a STRUCT<x>", "schema: a.x has no type; add one, such as a.x STRING"),
    ("a STRUCT<x INT", "schema: a.x: unexpected end after the type; a comma or > may be missing"),
    ("a STRUCT<x: INT, X: STRING>", "schema: duplicate field a.X"),
    ("a DECIMAL(5,", "schema: a: missing ')'"),
    ("a DECIMAL(99,2)", "schema: a: invalid DECIMAL(99, 2); precision is 1 to 38"),
    ("a DECIMAL(3,5)", "schema: a: invalid DECIMAL(3, 5)"),
    ("id INT; DROP", "schema: unexpected ';' after 'id INT'"),
    ("a INT, A STRING", "schema: duplicate field A"),
    ("a INT>", "schema: a: unexpected > after the type; a comma may be missing"),
    ("struct<a:int> b", "schema: the schema: expected the end, not b"),
]


def test_fields_have_the_names_that_spark_gives_them():
    assert struct_of("`a``` INT, a INT, ```b` INT, `c``d` INT").names == ["a`", "a", "`b", "c`d"]


@pytest.mark.parametrize("text", GOOD)
def test_schemas_that_spark_accepts_are_accepted(text):
    assert struct_of(text).fields


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_mistake_is_reported_where_the_schema_is_defined_with_its_field(text, message):
    with pytest.raises(ConfigurationError) as error:
        JsonFormat(text)
    assert message in str(error.value)


@pytest.mark.spark
def test_spark_takes_and_refuses_the_same(spark):
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    for text in GOOD:
        assert isinstance(StructType.fromDDL(text), StructType), text
    for text, message in BAD:
        if "duplicate field" in message or "single type" in message:
            continue  # Spark takes it; a Delta table does not.
        with pytest.raises(PySparkException):
            StructType.fromDDL(text)


_NOT_IN_JSON = [
    (
        "a INT, b VOID",
        "schema: b: unsupported type VOID; every value would become null; declare a type, or remove the field",
    ),
    ("a CHAR(3)", "schema: a: unsupported type CHAR; JSON has no fixed-length strings; use STRING"),
    ("a ARRAY<VARCHAR(9)>", "schema: a[]: unsupported type VARCHAR; JSON has no fixed-length strings; use"),
    (
        "a STRUCT<b: MAP<INT, STRING>>",
        "schema: a.b: unsupported type MAP; the keys of a MAP in JSON are strings, not INT; use",
    ),
    ("a MAP<STRING, STRUCT<b: VOID>>", "schema: a{}.b: unsupported type VOID; "),
]


@pytest.mark.parametrize(("text", "message"), _NOT_IN_JSON)
def test_a_type_that_json_can_not_fill_is_refused_where_the_schema_is_defined(text, message):
    with pytest.raises(ConfigurationError) as error:
        JsonFormat(text)
    assert str(error.value).startswith(message)


def test_a_struct_type_that_json_can_not_fill_is_refused_likewise():
    from pyspark.sql.types import ArrayType, IntegerType, MapType, NullType, StringType, StructField, StructType

    fits = MapType(StringType(), ArrayType(StructType([StructField("c", IntegerType())])))
    JsonFormat(StructType([StructField("a", fits)]))
    inside = MapType(StringType(), ArrayType(StructType([StructField("c", NullType())])))
    for kind, message in (
        (NullType(), r"^schema: a: unsupported type VOID; "),
        (
            MapType(IntegerType(), StringType()),
            r"^schema: a: unsupported type MAP; the keys of a MAP in JSON are strings, not INT",
        ),
        (StructType([StructField("b", inside)]), r"^schema: a\.b\{\}\[\]\.c: unsupported type VOID; "),
    ):
        with pytest.raises(ConfigurationError, match=message):
            JsonFormat(StructType([StructField("a", kind)]))
