"""Schemas as DDL are checked without Spark, and never refused where Spark takes them."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import check_ddl
from dagster_kafka_flip.formats.json import JsonFormat

GOOD = [
    "carrier STRING NOT NULL, flight INT",
    "id BIGINT NOT NULL COMMENT 'what it\\'s', name STRING COMMENT \"a, b > c\"",
    "a ARRAY<STRUCT<x: INT, y: DECIMAL(10,2)>>",
    "m MAP<STRING, ARRAY<MAP<STRING, INT>>>",
    "`a b` INT, `a``b` INT, `c,d` STRING",
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
    ("id strin", "schema: id: 'strin' is not a type of Spark; did you mean STRING?"),
    ("id INT64, name TEXT", "schema: id: 'INT64' is not a type of Spark; did you mean BIGINT?"),
    ("größe INT", "schema: the name größe has to be quoted: write `größe`"),
    ("a-b INT", "schema: the name a-b has to be quoted: write `a-b`"),
    ("INT", "schema: INT is a single type; write fields, such as 'flight INT'"),
    ("array<int>", "schema: array is a single type; write fields, such as 'flight INT'"),
    ("id", "schema: id has no type; write one, such as id STRING"),
    ("id INT,", "schema: a field is missing at the end; is there a comma too many?"),
    ("id INT,, name STRING", "schema: a field is missing before ','; is there a comma too many?"),
    ("id INT NOT NUL", "schema: id: 'NOT NUL' is no constraint; write NOT NULL"),
    ("id INT NOT", "schema: id: 'NOT' is no constraint; write NOT NULL"),
    ("id INT NOT, n INT", "schema: id: 'NOT' is no constraint; write NOT NULL"),
    ("id INT name STRING", "schema: id: unexpected 'name' after the type; is a comma missing?"),
    ("a ARRAY<INT", "schema: a: a '>' is missing after ARRAY<..."),
    ("a ARRAY", "schema: a: ARRAY needs what it holds, such as ARRAY<STRING>"),
    ("a MAP<INT>", "schema: a: a MAP needs two types, of its keys and of its values"),
    ("a STRUCT<x>", "schema: a.x has no type; write one, such as a.x STRING"),
    ("a STRUCT<x INT", "schema: a.x: a '>' is missing at the end"),
    ("a STRUCT<x: INT, X: STRING>", "schema: the field a.X is there twice"),
    ("a DECIMAL(5,", "schema: a: a ')' is missing"),
    ("a DECIMAL(99,2)", "schema: a: DECIMAL(99, 2) can't be; a DECIMAL has 1 to 38 digits, and at most all of them"),
    ("a DECIMAL(3,5)", "schema: a: DECIMAL(3, 5) can't be"),
    ("id INT; DROP", "schema: unexpected ';' after 'id INT'"),
    ("a INT, A STRING", "schema: the field A is there twice"),
    ("a INT>", "schema: a: unexpected '>' after the type"),
    ("struct<a:int> b", "schema: unexpected 'b'"),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_spark_takes_is_taken(text):
    check_ddl(text)


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_mistake_is_told_where_the_schema_is_defined_with_its_field(text, message):
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
        if "twice" in message or "single type" in message:
            continue  # Spark takes it; a Delta table does not.
        with pytest.raises(PySparkException):
            StructType.fromDDL(text)


_NOT_IN_JSON = [
    (
        "a INT, b VOID",
        "schema: b: VOID can't be; every value would become null; write its type, or leave the field out",
    ),
    ("a CHAR(3)", "schema: a: CHAR can't be; Spark reads no text of a fixed length from JSON; write STRING"),
    ("a ARRAY<VARCHAR(9)>", "schema: a: VARCHAR can't be; Spark reads no text of a fixed length from JSON; write"),
    ("a STRUCT<b: MAP<INT, STRING>>", "schema: a.b: MAP can't be; the keys of a MAP in JSON are texts, not INT; write"),
    ("a MAP<STRING, STRUCT<b: VOID>>", "schema: a.b: VOID can't be; "),
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
        (NullType(), r"^schema: a: VOID can't be; "),
        (
            MapType(IntegerType(), StringType()),
            r"^schema: a: MAP can't be; the keys of a MAP in JSON are texts, not INT",
        ),
        (StructType([StructField("b", inside)]), r"^schema: a\.b\.c: VOID can't be; "),
    ):
        with pytest.raises(ConfigurationError, match=message):
            JsonFormat(StructType([StructField("a", kind)]))
