"""Messages that the Java library writes are those that Google's package reads."""

from __future__ import annotations

import pytest
from google.protobuf import message_factory, text_format
from pyspark.sql import functions as f

from dagster_kafka_flip.formats.column_types import of_spark
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_schema import schema_of
from dagster_kafka_flip.registry.registered_schema import UNKNOWN_ID, RegisteredSchema
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.runtime.jvm_library import use_library
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer

pytestmark = pytest.mark.spark

_WHOLE = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
_MOST = {name: 2 ** (int(name[-2:]) - (name[0] not in "uf")) - 1 for name in _WHOLE}
_LEAST = {name: 0 if name[0] in "uf" else -most - 1 for name, most in _MOST.items()}
_SCHEMA = f"""
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum E {{ A = 0; B = -1; }}
message Inner {{ optional int32 a = 1; Inner inner = 2; }}
message All {{
  {" ".join(f"{name} {name} = {n}; repeated {name} {name}s = {n + 20};" for n, name in enumerate(_WHOLE, 1))}
  double double = 50; float float = 51; bool bool = 52; string string = 53; bytes bytes = 54; E e = 55;
  repeated double doubles = 60; repeated float floats = 61; repeated bool bools = 62; repeated string strings = 63;
  repeated bytes many = 64; repeated E es = 65; repeated Inner inners = 66;
  map<string, Inner> by_name = 70; map<int64, google.protobuf.StringValue> by_number = 71; map<bool, string> texts = 72;
  google.protobuf.Timestamp at = 80; repeated google.protobuf.Timestamp ats = 81;
  google.protobuf.UInt64Value wrapped = 82; string digits = 83; optional string maybe = 2000;
  oneof one {{ int32 this = 84; string that = 85; }}
}}
"""
_NUMBERS = ", ".join(
    f"CAST({{0[{name}]}} AS {kind}) AS {name}, CAST(array({{0[{name}]}}, 0, 1) AS ARRAY<{kind}>) AS {name}s"
    for name in _WHOLE
    for kind in ["DECIMAL(20,0)" if name in {"uint64", "fixed64"} else "INT" if _MOST[name] < 2**31 else "BIGINT"]
)
_OTHERS = (
    "CAST('-0.0' AS DOUBLE) AS double, CAST('NaN' AS FLOAT) AS float, true AS bool, 'ü' AS string, X'00FF' AS bytes, "
    "'B' AS e, array(1D, CAST('-Infinity' AS DOUBLE)) AS doubles, array(1.5F) AS floats, array(false, true) AS bools, "
    "array('', 'a') AS strings, array(X'', X'01') AS many, array('A', 'B') AS es, "
    "array(named_struct('a', 0), named_struct('a', null)) AS inners, map('', named_struct('a', 1)) AS by_name, "
    "map(-1, '', 2, 'b') AS by_number, map(true, 'x') AS texts, "
    "TIMESTAMP'1969-12-31 23:59:59.999999Z' AS at, array(TIMESTAMP'1970-01-01 00:00:00Z') AS ats, "
    "CAST(18446744073709551615 AS DECIMAL(20,0)) AS wrapped, 0.0000001BD AS digits, '' AS maybe, "
    "CAST(null AS INT) AS this, 'x' AS that"
)
_EXPECTED = (
    'double: -0.0 float: nan bool: true string: "ü" bytes: "\\000\\377" e: B doubles: [1, -inf] floats: 1.5 '
    'bools: [false, true] strings: ["", "a"] many: ["", "\\001"] es: [A, B] inners { a: 0 } inners { } '
    'by_name { key: "" value { a: 1 } } by_number { key: -1 value { } } by_number { key: 2 value { value: "b" } } '
    'texts { key: true value: "x" } at { seconds: -1 nanos: 999999000 } ats { } '
    'wrapped { value: 18446744073709551615 } digits: "0.0000001" maybe: "" that: "x"'
)


@pytest.fixture
def encoded(spark):
    use_library(spark)
    serializer = ProtobufSerializer(message="All", registry=SchemaRegistry(url="http://registry"))

    def of(rows):
        schema = RegisteredSchema(UNKNOWN_ID, "PROTOBUF", _SCHEMA)
        whole, _ = serializer.whole(of_spark(rows.schema), schema, "the schema")
        return rows.select(whole.alias("w")).select("w.content", "w.problem").collect()

    return of


@pytest.mark.parametrize("numbers", [_MOST, _LEAST], ids=["most", "least"])
def test_a_message_with_all_types_is_read_as_it_was(spark, encoded, numbers):
    ((content, problem),) = encoded(spark.sql(f"SELECT {_NUMBERS.format(numbers)}, {_OTHERS}"))
    assert problem is None
    written = " ".join(f"{name}: {each} {name}s: [{each}, 0, 1]" for name, each in numbers.items())
    message = message_factory.GetMessageClass(schema_of(compiled(_SCHEMA)).message("All"))
    read = message.FromString(bytes(content))
    expected = text_format.Parse(f"{written} {_EXPECTED}", message())
    assert str(read) == str(expected)
    # In the order of the fields' numbers, and without the values that a field has anyway.
    assert read.SerializeToString(deterministic=True) == bytes(content)


def test_a_number_beyond_its_field_is_an_error_of_its_row(spark, encoded):
    rows = spark.sql("SELECT CAST(n AS DECIMAL(20,0)) AS uint64, CAST(m AS BIGINT) AS uint32 FROM VALUES (-1, 0), "
                     "(0, 4294967296), (18446744073709551616, 0), (null, 0), (1, 4294967295) AS t(n, m)")  # fmt: skip
    assert [row["problem"] for row in encoded(rows)] == [
        "uint64 is out of the range of its field",
        "uint32 is out of the range of its field",
        "uint64 is out of the range of its field",
        "uint64 is null, and Protobuf has no null for a field without presence",
        None,
    ]


def test_two_values_of_a_oneof_are_refused(spark, encoded):
    with pytest.raises(Exception, match="several fields of the oneof one have a value, and Protobuf keeps one"):
        encoded(spark.sql("SELECT 1 AS this, 'x' AS that"))
    assert encoded(spark.range(1).select(f.lit(None).cast("int").alias("this"), f.lit("").alias("that")))[0][1] is None
