"""ProtobufFormat on real Spark: what the package protobuf writes is landed, and nothing else."""

from __future__ import annotations

import json
import math
import random
import struct
import uuid
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_plan import MisfitError, plan
from dagster_kafka_flip.formats.protobuf_schema import schema_of
from dagster_kafka_flip.formats.schema_book import UNKNOWN_SCHEMA, SchemaBook
from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
from tests.formats.decoding import landed, records

spark_test = pytest.mark.spark

# Many messages in few examples: an example is a query, and a message only a row of it.
_LARGE = [HealthCheck.data_too_large, HealthCheck.large_base_example]

ALL = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message All {
  // The first.
  int32 a_int32 = 1;
  sint32 a_sint32 = 2;
  sfixed32 a_sfixed32 = 3;
  int64 a_int64 = 4;
  sint64 a_sint64 = 5;
  sfixed64 a_sfixed64 = 6;
  uint32 a_uint32 = 7;
  fixed32 a_fixed32 = 8;
  uint64 a_uint64 = 9;
  fixed64 a_fixed64 = 10;
  float a_float = 11;
  double a_double = 12;
  bool a_bool = 13;
  string a_string = 14;
  bytes a_bytes = 15;
  Color a_color = 16;
  optional int64 maybe = 17;
  Inner inner = 18;
  repeated int64 numbers = 19;
  repeated Inner inners = 20;
  map<int64, double> doubles = 21;
  map<string, Inner> by_name = 22;
  oneof choice {
    string text = 23;
    Inner other = 24;
    google.protobuf.Empty nothing = 25;
  }
  google.protobuf.Timestamp at = 26;
  google.protobuf.Duration took = 27;
  google.protobuf.Int64Value wrapped = 28;
  google.protobuf.Struct document = 29;
  google.protobuf.Value any_value = 30;
  google.protobuf.Any any = 31;
  google.protobuf.FieldMask mask = 32;
  repeated Color colors = 33;
  map<string, google.protobuf.Timestamp> times = 34;
  message Inner {
    optional double d = 1;
    repeated string words = 2;
  }
  enum Color { RED = 0; GREEN = 1; }
}
"""
TWO = """
syntax = "proto2";
message A {
  required int32 id = 1;
  optional group Part = 4 { optional int64 n = 1; required R r = 2; }
  repeated sint32 signed = 5;
  oneof choice { string text = 6; R other = 7; bool flag = 8; }
  map<bool, R> by_flag = 9;
  map<fixed64, bytes> by_number = 10;
  repeated sfixed32 numbers = 11 [packed = true];
  repeated float floats = 12;
  repeated R rs = 13;
  message R { required string q = 1; optional uint32 n = 2; }
}
"""
V1 = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string note = 2; }'
V2 = 'syntax = "proto3"; package shop; message Order { int64 id = 1; optional string text = 2; int32 n = 3; }'


def _class(text, name, references=()):
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled(text, references)).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _format(text, **options):
    return ProtobufFormat(compiled(text), **options)


def _frame(number):
    return b"\x00" + struct.pack(">I", number)


def _of_a_run(reader, known, **options):
    """The format as it is in a run that knows these schemas; None for one that the registry does not have."""
    form = ProtobufFormat(
        compiled(reader), registry="registry", schema_id_in=options.pop("where", "payload"), **options
    )
    form = form.model_copy()
    form._book = SchemaBook(
        None,
        {
            (_frame(number) if isinstance(number, int) else number).hex().upper(): None
            if text is None
            else RegisteredSchema(number if isinstance(number, int) else -1, "PROTOBUF", text)
            for number, text in known.items()
        },
    )
    return form


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ProtobufFormat, "needs a descriptor_set, or a registry"),
        (lambda: ProtobufFormat(b"nonsense"), "it is not a FileDescriptorSet"),
        (lambda: ProtobufFormat(b""), "it has no files"),
        (lambda: ProtobufFormat("/no/such/file"), "/no/such/file can't be read"),
        (lambda: ProtobufFormat(5), "bytes or the path of a file, not int"),  # pyright: ignore[reportArgumentType]
        (lambda: _format(V1, message="shop.Nothing"), "it has no message 'shop.Nothing'; it has shop.Order"),
        (lambda: _format(V1 + "message B {}"), r"it has 2 messages \(shop.Order, shop.B\). Name one"),
        (lambda: _format(V1, subject="orders-value"), "subject and schema_id_in need a registry"),
        (lambda: _format(V1, subject="orders-value", registry="r"), "remove one"),
        (lambda: _format(V1, registry="http://localhost:8081"), "SchemaRegistry\\(url=...\\)"),
        (lambda: _format('syntax="proto3"; message A {}'), "the message A has no fields"),
        (
            lambda: _format('syntax="proto3"; message A { int32 a = 1; repeated A more = 2; }'),
            r"the message A contains itself \(A.more\)",
        ),
        (
            lambda: _format('syntax="proto3"; message A { map<string, A.B> m = 1; message B { A back = 1; } }'),
            r"the message A contains itself \(A.m.back\)",
        ),
        (lambda: _format('syntax="proto2"; message A { optional int32 a = 1; optional int32 A = 2; }'), "a and A"),
        (
            lambda: _format(
                'syntax="proto3";'
                + "".join(
                    f"message M{n} {{ {''.join(f'M{n + 1} f{i} = {i + 1};' for i in range(9))} }}" for n in range(6)
                )
                + "message M6 { int32 a = 1; }",
                message="M0",
            ),
            "would become more than 10000 fields",
        ),
        (
            lambda: _format(
                'syntax="proto3"; message M300 { int32 a = 1; }'
                + "".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(300)),
                message="M0",
            ),
            "nested more than 100 levels deep",
        ),
        (lambda: _format('syntax="proto3"; enum E { A = 0; }'), "it has no message$"),
    ],
)
def test_a_format_that_can_not_become_columns_is_reported_before_anything_runs(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_set_without_its_imports_is_reported():
    imports = 'syntax="proto3"; import "b.proto"; message A { B b = 1; }'
    whole = FileDescriptorSet.FromString(
        compiled(imports, (("b.proto", 'syntax="proto3"; message B { int32 a = 1; }'),))
    )
    del whole.file[0]
    with pytest.raises(ConfigurationError, match="can't be used"):
        ProtobufFormat(whole.SerializeToString())


@pytest.mark.parametrize(
    ("text", "references", "message"),
    [
        ("nonsense!", (), "schema:1:"),
        ('syntax="proto3"; import "b.proto"; message A {}', (), "b.proto: File not found"),
        ('syntax="proto3"; import "/etc/passwd"; message A {}', (), "/etc/passwd: File not found"),
        ('syntax="proto3"; import "../b.proto"; message A {}', (), "b.proto"),
        (V1, (("../b.proto", V1),), "not a relative path of a .proto file"),
        (V1, (("/tmp/b.proto", V1),), "not a relative path of a .proto file"),
        (V1, (("grpc_tools/protoc.py", "import os"),), "not a relative path of a .proto file"),
        (V1, (("a/../../b.proto", V1),), "not a relative path of a .proto file"),
    ],
)
def test_a_text_that_is_none_or_reaches_for_other_files_is_refused(text, references, message):
    with pytest.raises(ValueError, match=message):
        compiled(text, references)


def test_texts_and_descriptors_in_base64_refer_to_each_other():
    import base64

    def descriptor(text):
        file = FileDescriptorSet.FromString(compiled(text)).file[-1]
        return base64.b64encode(file.SerializeToString()).decode()

    inner = 'syntax="proto3"; package r; '
    inner += 'import "google/protobuf/timestamp.proto"; message B { google.protobuf.Timestamp t = 1; }'
    outer = 'syntax="proto3"; import "dir/b.proto";'
    outer += ' import "google/type/date.proto"; message A { r.B b = 1; google.type.Date d = 2; }'
    whole = FileDescriptorSet.FromString(compiled(outer, (("dir/b.proto", inner),)))
    encoded = base64.b64encode(whole.file[-1].SerializeToString()).decode()
    for text in (outer, encoded):
        for reference in (inner, descriptor(inner)):
            form = ProtobufFormat(compiled(text, (("dir/b.proto", reference),)))
            assert form.column_names == ["b", "d"]


def test_an_enum_whose_names_change_places_can_not_be_read():
    text = 'syntax="proto3"; message M {{ E e = 1; repeated E all = 2; }} enum E {{ {} }}'

    def message(values):
        return schema_of(compiled(text.format(values))).message("M")

    reader = message("A = 0; C = 1; B = 2;")
    with pytest.raises(MisfitError, match=r"the enum of the field M.e \(1\) has B as 1, not as 2"):
        plan(message("A = 0; B = 1; C = 2;"), reader)
    # A value that has another name now is the same value; one that the reader does not have keeps its name.
    (made,) = plan(message("NONE = 0; ONE = 1; B = 2; D = 3;"), reader)
    assert [field["names"] for field in made["fields"]] == [{0: "A", 1: "C", 2: "B", 3: "D"}] * 2


def test_comments_describe_columns():
    form = _format(ALL)
    assert form.comments() == {"a_int32": "The first."}


@spark_test
def test_every_type_becomes_its_column(spark):
    form, kind = _format(ALL), _class(ALL, "shop.All")
    low: Any = kind(
        a_int32=-(2**31),
        a_sint32=-(2**31),
        a_sfixed32=-(2**31),
        a_int64=-(2**63),
        a_sint64=2**53 + 1,
        a_sfixed64=-(2**63),
        a_uint32=2**32 - 1,
        a_fixed32=2**32 - 1,
        a_uint64=2**64 - 1,
        a_fixed64=2**64 - 1,
        a_float=0.5,
        a_double=math.nan,
        a_bool=True,
        a_string="ü\0🙂",
        a_bytes=b"\xff\x00",
        a_color=7,
        maybe=0,
        inner={"d": 0.0, "words": ["", "x"]},
        numbers=[2**63 - 1, -1],
        inners=[{}, {"d": -math.inf}],
        doubles={-1: math.nan},
        by_name={"k": {"words": ["w"]}},
        nothing={},
        wrapped={"value": 0},
        mask={"paths": ["a_b"]},
        any={"type_url": "t/x", "value": b"\x01"},
        colors=[0, 1, 9],
    )
    low.at.FromJsonString("1700-01-01T00:00:00Z")
    low.took.FromNanoseconds(-1_500_000_001)
    low.times["x"].FromJsonString("2900-12-31T23:59:59.999999999Z")
    low.document.update({"b": [1, None, 1.5], "a": {"ü": True}})
    low.any_value.null_value = 0
    (full, none, empty) = landed(spark, form, [low.SerializeToString(), None, b""])
    row, problem = full
    assert problem is None
    assert math.isnan(row.pop("a_double"))
    assert math.isnan(row.pop("doubles")[-1])
    assert {name: value for name, value in row.items() if name not in {"at", "times"}} == {
        "a_int32": -(2**31),
        "a_sint32": -(2**31),
        "a_sfixed32": -(2**31),
        "a_int64": -(2**63),
        "a_sint64": 2**53 + 1,
        "a_sfixed64": -(2**63),
        "a_uint32": 2**32 - 1,
        "a_fixed32": 2**32 - 1,
        "a_uint64": Decimal(2**64 - 1),
        "a_fixed64": Decimal(2**64 - 1),
        "a_float": 0.5,
        "a_bool": True,
        "a_string": "ü\0🙂",
        "a_bytes": b"\xff\x00",
        "a_color": "7",
        "maybe": 0,
        "inner": {"d": 0.0, "words": ["", "x"]},
        "numbers": [2**63 - 1, -1],
        "inners": [{"d": None, "words": []}, {"d": -math.inf, "words": []}],
        "by_name": {"k": {"d": None, "words": ["w"]}},
        "text": None,
        "other": None,
        "nothing": True,
        "took": Decimal("-1.500000001"),
        "wrapped": 0,
        "document": '{"a": {"ü": true}, "b": [1, null, 1.5]}',
        "any_value": "null",
        "any": {"type_url": "t/x", "value": b"\x01"},
        "mask": {"paths": ["a_b"]},
        "colors": ["RED", "GREEN", "9"],
    }
    assert none == (dict.fromkeys(form.column_names or ()), None)
    row, problem = empty
    assert problem is None
    assert [row[name] for name in ("a_int64", "a_uint64", "a_string", "a_color", "numbers", "doubles")] == [
        0,
        Decimal(0),
        "",
        "RED",
        [],
        {},
    ]
    assert [row[name] for name in ("maybe", "inner", "text", "nothing", "at", "wrapped", "document")] == [None] * 7


@spark_test
def test_timestamps_are_cut_to_microseconds_and_no_further(spark):
    form = _format(
        'syntax="proto3"; import "google/protobuf/timestamp.proto"; message T { google.protobuf.Timestamp at = 1; }'
    )
    kind = _class(
        'syntax="proto3"; import "google/protobuf/timestamp.proto"; message T { google.protobuf.Timestamp at = 1; }',
        "T",
    )
    given_at = [(-62135596800, 0), (-1, 999_999_999), (0, 1_999), (253402300799, 999_999_999)]
    wrong = [(-62135596801, 0), (253402300800, 0), (0, -1), (0, 1_000_000_000)]
    values = [kind(at={"seconds": s, "nanos": n}).SerializeToString() for s, n in [*given_at, *wrong]]
    decoder = Decoder.of(None, form.model_copy(update={"on_error": "null"}), KafkaColumns(fields=("offset",)))
    rows = (
        decoder.finish(decoder.stage(records(spark, values)))
        .orderBy("kafka_offset")
        .selectExpr("unix_micros(at)", "kafka_error")
        .collect()
    )
    assert [tuple(row) for row in rows] == [
        *[(s * 1_000_000 + n // 1000, None) for s, n in given_at],
        *[(None, "the value of T.at is out of range for google.protobuf.Timestamp")] * 4,
    ]


@spark_test
def test_proto2_and_editions(spark):
    two = """syntax="proto2"; message A {
        required int32 id = 1; optional string s = 2 [default = "x"]; optional E e = 3 [default = Y];
        repeated E es = 4 [packed = true]; optional group Part = 5 { optional int32 n = 1; }
        extensions 100 to 200; enum E { X = 1; Y = 2; } } extend A { optional int32 more = 100; }"""
    kind = _class(two, "A")
    whole = kind(id=1, e=1, part={"n": 3}).SerializeToString()
    # 7 is no number of the closed enum: protobuf itself makes an unknown field of it.
    odd = b"\x08\x01\x18\x07\x22\x02\x01\x07\xa0\x06\x05"
    rows = landed(spark, _format(two), [whole, kind(id=2).SerializeToString(), odd, b"", b"\x08\x01\x12\x01\xff"])
    assert rows[:3] == [
        ({"id": 1, "s": None, "e": "X", "es": [], "part": {"n": 3}}, None),
        ({"id": 2, "s": None, "e": None, "es": [], "part": None}, None),
        ({"id": 1, "s": None, "e": "7", "es": ["X", "7"], "part": None}, None),
    ]
    assert [problem for _, problem in rows[3:]] == [
        "the required field A.id is missing",
        "the value of A.s is not valid UTF-8",
    ]
    edition = (
        'edition="2023"; message A { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; '
        "message G { int32 n = 1; } G g = 3 [features.message_encoding = DELIMITED]; }"
    )
    made = _class(edition, "A")(g={"n": 4}).SerializeToString()
    assert landed(spark, _format(edition), [made]) == [({"a": None, "b": 0, "g": {"n": 4}}, None)]


@spark_test
def test_records_of_several_schemas_are_read_as_one(spark):
    old, new = _class(V1, "shop.Order"), _class(V2, "shop.Order")
    form = _of_a_run(V2, {1: V1, 2: V2, 3: None, 4: "nonsense", 5: V1.replace("int64 id", "string id")})
    values = [
        _frame(1) + b"\x00" + old(id=0, note="").SerializeToString(),
        _frame(2) + b"\x02\x00" + new(id=2, n=5).SerializeToString(),
        _frame(2) + b"\x00",
        _frame(3) + b"\x00",
        _frame(4) + b"\x00",
        _frame(5) + b"\x00",
        b"",
        b"\x00\x01",
        b"\x05abcdef",
        _frame(1),
        _frame(1) + b"\x02",
        _frame(1) + b"\x02\x02",
        _frame(1) + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
        _frame(1) + b"\xfe\xff\xff\xff\x0f\x00",
        _frame(1) + b"\x01",
        _frame(1) + b"\x00\x12\xff\xff\xff\xff\x07",
        None,
    ]
    rows = landed(spark, form, values)
    # A field that the writer's schema does not have is unknown, and an empty text of the old schema is one.
    assert rows[:3] == [
        ({"id": 0, "text": "", "n": None}, None),
        ({"id": 2, "text": None, "n": 5}, None),
        ({"id": 0, "text": None, "n": 0}, None),
    ]
    nothing = {"id": None, "text": None, "n": None}
    assert rows[-1] == (nothing, None)
    assert all(row == nothing for row, _ in rows[3:])
    problems = [problem for _, problem in rows[3:-1]]
    assert problems[0] == "the registry has no schema 3"
    assert problems[1].startswith("schema 4: schema:1:1: ")
    assert problems[2:] == [
        "schema 5 can't be read as the reader schema: the field Order.id (1) is string, not int64",
        "it is empty",
        "its 2 bytes are too few for a schema id (5)",
        "its first byte is 0x05, not the magic byte 0x00 of a schema registry's serializer",
        "schema 1: its message indexes are wrong: the bytes end too early",
        "schema 1: its message indexes are wrong: the bytes end too early",
        "schema 1: its message indexes [1] match no message in it",
        "schema 1: its message indexes are wrong: a number has too many bytes",
        "schema 1: its message indexes are wrong: their number is not one of 0 to 100",
        "schema 1: its message indexes are wrong: their number is not one of 0 to 100",
        "schema 1: it is not shop.Order: the bytes end too early",
    ]


@spark_test
def test_fields_that_the_reader_lacks_are_checked_and_left_out(spark):
    reader = 'syntax="proto3"; message A { oneof o { int32 x = 1; Inner y = 2; } message Inner { int32 n = 1; } }'
    three = """syntax="proto3"; message A { oneof o { int32 x = 1; Inner y = 2; string z = 3; } A self = 4;
        string s = 5; repeated A more = 6; map<string, A> by = 7;
        message Inner { int64 gone = 9; int32 n = 1; string s = 2; } }"""
    two = """syntax="proto2"; message A { optional int32 x = 1; optional string s = 5; repeated R r = 6;
        message R { required int32 q = 1; optional R in = 2; } }"""
    kind = _class(three, "A")
    deep = kind(y={"n": 5, "s": "x"}, self={"self": {"more": [{"by": {"k": {"x": 1}}}]}}).SerializeToString()
    form = _of_a_run(reader, {3: three, 2: two})
    right = [
        (3, deep, {"x": None, "y": {"n": 5}}),
        (3, b"\x12\x02\x08\x05\x1a\x00", {"x": None, "y": None}),
        (3, b"\x12\x02\x08\x05\x12\x02\x12\x00", {"x": None, "y": {"n": 5}}),
        (3, b"\x3a\x02\x18\x01", {"x": None, "y": None}),
        (2, b"\x08\x05\x2a\x01\xff\x32\x02\x08\x01", {"x": 5, "y": None}),
    ]
    wrong = [
        (3, b"\x08\x05\x28\x01", "the value of A.s is not written as string"),
        (3, b"\x2a\x01\xff", "the value of A.s is not valid UTF-8"),
        (3, b"\x22\x05\x22\x03\x2a\x01\xff", "the value of A.s is not valid UTF-8"),
        (3, b"\x3a\x03\x0a\x01\xff", "the value of A.ByEntry.key is not valid UTF-8"),
        (3, b"\x32\x01\x08", "it is not A: the bytes end too early"),
        (2, b"\x32\x02\x12\x00", "the required field A.R.q is missing"),
        (2, b"\x0c", "it is not A: the end of group 1 is out of place"),
        (2, b"\x53\x5c", "it is not A: the end of group 11 is out of place"),
        (2, b"\x00", "it is not A: a field has the number 0"),
        (2, b"\x57", "it is not A: a field has the unknown wire type 7"),
    ]
    rows = landed(spark, form, [_frame(number) + b"\x00" + content for number, content, _ in [*right, *wrong]])
    assert rows[: len(right)] == [(row, None) for *_, row in right]
    assert [problem for _, problem in rows[len(right) :]] == [
        f"schema {number}: {problem}" for number, _, problem in wrong
    ]


@spark_test
def test_an_id_that_was_not_asked_for_stops_the_read(spark):
    with pytest.raises(Exception, match="0000000009") as caught:
        landed(spark, _of_a_run(V1, {1: V1}), [_frame(9) + b"\x00"])
    assert UNKNOWN_SCHEMA in str(caught.value)


@spark_test
def test_message_indexes_name_the_message(spark):
    text = """syntax="proto3"; package shop;
        message A { int32 a = 1; message Inner { int32 x = 1; message Deep { int64 y = 1; } } }
        message B { map<string, int32> m = 1; message First { int32 a = 1; } message Second { int32 a = 1; } }
        message C { int32 c = 1; }"""
    deep = _class(text, "shop.A.Inner.Deep")(y=5).SerializeToString()
    form = _of_a_run(text, {1: text}, message="shop.A.Inner.Deep")
    rows = landed(spark, form, [_frame(1) + b"\x06\x00\x00\x00" + deep, _frame(1) + b"\x00", _frame(1) + b"\x02\x04"])
    assert rows[0] == ({"y": 5}, None)
    assert [problem for _, problem in rows[1:]] == [
        "schema 1 is a shop.A here, but the reader schema is shop.A.Inner.Deep",
        "schema 1 is a shop.C here, but the reader schema is shop.A.Inner.Deep",
    ]
    # To Confluent's Java client [1, 1] is Second, to its Python client it is First.
    form = _of_a_run(text, {1: text}, message="shop.B.Second")
    content = b"\x08\x05"
    rows = landed(spark, form, [_frame(1) + bytes([4, 2, index * 2]) + content for index in (0, 1, 2)])
    assert rows[0][1] == "schema 1 is a shop.B.First here, but the reader schema is shop.B.Second"
    assert "ambiguous message indexes" in str(rows[1][1])
    assert rows[2] == ({"a": 5}, None)


@spark_test
def test_ids_and_indexes_in_headers(spark):
    guid = uuid.UUID("12345678-1234-1234-1234-123456789abc")
    frame = b"\x01" + guid.bytes
    content = _class(V1, "shop.Order")(id=7, note="x").SerializeToString()
    form = _of_a_run(V1, {frame: V1, 1: V1}, where="headers")

    def headers(value):
        return [("__value_schema_id", bytearray(value))]

    whole = ({"id": 7, "note": "x"}, None)
    right = [
        (content, headers(frame + b"\x00"), whole),
        (content, headers(frame + b"\x02\x00"), whole),
        (content, headers(_frame(1) + b"\x00"), whole),
        (b"", headers(frame + b"\x00"), ({"id": 0, "note": ""}, None)),
        (_frame(1) + b"\x00" + content, None, whole),
    ]
    # The content is never taken for what its header lacks.
    wrong = [
        (frame, f"schema {guid}: its message indexes are wrong: the bytes end too early"),
        (frame + b"\x02", f"schema {guid}: its message indexes are wrong: the bytes end too early"),
        (frame + b"\x00\x00", f"schema {guid}: extra bytes follow the message indexes in its header"),
        (b"\x09", "its header for the schema id has 1 bytes, which are not an id"),
        (b"\x00\x00", "its header for the schema id has 2 bytes, which are not an id"),
    ]
    both = [*((value, given) for value, given, _ in right), *((content, headers(header)) for header, _ in wrong)]
    rows = landed(spark, form, [value for value, _ in both], [given for _, given in both])
    assert rows[: len(right)] == [expected for *_, expected in right]
    for (row, found), (_, problem) in zip(rows[len(right) :], wrong, strict=True):
        assert row == {"id": None, "note": None}
        assert str(found).startswith(problem)


def _messages(descriptor, depth=3):
    """The arguments of a message's class: any value for any of its fields."""
    fields = {field.name: _values(field, depth) for field in descriptor.fields if depth or field.message_type is None}
    if descriptor.full_name == "google.protobuf.Value":
        return st.one_of(
            *(st.fixed_dictionaries({name: values}) for name, values in fields.items() if name != "null_value")
        )
    required = {field.name: fields.pop(field.name) for field in descriptor.fields if field.is_required}
    return st.fixed_dictionaries(required, optional=fields)


def _values(field, depth):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_single(each, depth) for each in field.message_type.fields)
        return st.dictionaries(key, value, max_size=2)
    return st.lists(_single(field, depth), max_size=2) if field.is_repeated else _single(field, depth)


def _single(field, depth):
    if field.message_type is not None:
        if field.message_type.name == "Timestamp":
            return st.builds(dict, seconds=st.integers(10**6, 10**10), nanos=st.integers(0, 999_999_999))
        if field.message_type.name == "Duration":
            return st.builds(dict, seconds=st.integers(0, 315_576_000_000), nanos=st.integers(0, 999_999_999))
        return _messages(field.message_type, depth - 1)
    if field.containing_type.file.name == "google/protobuf/struct.proto" and field.type == field.TYPE_DOUBLE:
        return st.floats(allow_nan=False, allow_infinity=False)
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    bits = 32 if "32" in FieldDescriptorProto.Type.Name(field.type) else 64
    of_type = {
        field.CPPTYPE_BOOL: st.booleans(),
        field.CPPTYPE_FLOAT: st.floats(width=32),
        field.CPPTYPE_DOUBLE: st.floats(),
        field.CPPTYPE_STRING: st.text(max_size=4) if field.type == field.TYPE_STRING else st.binary(max_size=4),
    }
    unsigned = field.cpp_type in {field.CPPTYPE_UINT32, field.CPPTYPE_UINT64}
    whole = st.integers(0, 2**bits - 1) if unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return of_type.get(field.cpp_type, whole)


def _expected(message):
    """A message as protobuf itself reads it, as a column's STRUCT."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_key, of_value = field.message_type.fields
            found[field.name] = {
                _expected_one(of_key, key): _expected_one(of_value, each) for key, each in value.items()
            }
        elif field.is_repeated:
            found[field.name] = [_expected_one(field, each) for each in value]
        else:
            found[field.name] = _expected_one(field, value)
    return found


def _expected_one(field, value):
    if field.enum_type is not None:
        return {each.number: each.name for each in field.enum_type.values}.get(value, str(value))
    if field.message_type is None:
        return Decimal(value) if field.cpp_type == field.CPPTYPE_UINT64 else value
    known = {
        "Timestamp": lambda: value.seconds * 10**6 + value.nanos // 1000,
        "Duration": lambda: Decimal(value.seconds * 10**9 + value.nanos).scaleb(-9),
        "Int64Value": lambda: value.value,
        "Empty": lambda: True,
        **dict.fromkeys(("Struct", "Value"), lambda: json_format.MessageToDict(value)),
    }
    return known.get(field.message_type.name, lambda: _expected(value))()


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (math.copysign(1, value), value)
    if isinstance(value, datetime):
        return (value.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return [_comparable(each) for each in value] if isinstance(value, list) else value


_JSON = ("document", "any_value")
_BY_GOOGLE = pytest.mark.parametrize(("text", "name"), [(ALL, "shop.All"), (TWO, "A")])


@spark_test
@_BY_GOOGLE
@settings(max_examples=3, suppress_health_check=_LARGE)
@given(data=st.data())
def test_messages_written_by_protobuf_arelanded(spark, text, name, data):
    kind = _class(text, name)
    made = data.draw(st.lists(_messages(kind.DESCRIPTOR), min_size=30, max_size=60))
    messages = [kind(**each) for each in made]
    rows = landed(spark, _format(text, message=name), [message.SerializeToString() for message in messages])
    assert [problem for _, problem in rows] == [None] * len(rows)
    for (row, _), message in zip(rows, messages, strict=True):
        _check_row(row, message)


def _check_row(row, message):
    expected = _expected(message)
    for column in _JSON:
        if row.get(column) is not None:
            assert json.loads(row.pop(column)) == expected.pop(column)
    assert _comparable(row) == _comparable(expected)


@spark_test
@_BY_GOOGLE
@settings(max_examples=2, suppress_health_check=_LARGE)
@given(data=st.data())
def test_broken_bytes_are_rejected_or_read_as_protobuf_reads_them(spark, text, name, data):
    kind = _class(text, name)
    made = data.draw(st.lists(_messages(kind.DESCRIPTOR), min_size=5, max_size=10))
    wholes = [kind(**each).SerializeToString() for each in made]
    # Not one of Hypothesis: it would need more of its choices than an example may have, and there would be none.
    numbers = random.Random(data.draw(st.integers(0, 2**32)))
    values = [whole[:at] for whole in wholes for at in range(len(whole))]
    values += [numbers.randbytes(numbers.randint(0, 30)) for _ in range(500)]
    for whole in wholes:
        for _ in range(50):
            at = numbers.randint(0, len(whole))
            values.append(whole[:at] + numbers.randbytes(numbers.randint(1, 3)) + whole[at + numbers.randint(0, 1) :])
    rows = landed(spark, _format(text, message=name), values)
    for value, (row, problem) in zip(values, rows, strict=True):
        try:
            message = kind.FromString(value)
        except DecodeError:
            assert problem is not None
            assert set(row.values()) == {None}
            continue
        if problem is None:
            _check_row(row, message)
        else:
            own = ("google.protobuf", "an entry of a map", "the required field", "UTF-8", "not fit", "not written as")
            assert any(each in problem for each in own)


@spark_test
def test_what_protobuf_would_cut_or_take_for_unknown_is_rejected(spark):
    text = 'syntax="proto3"; message A { int32 a = 1; bool b = 2; uint32 c = 3; sint32 d = 4; string e = 5; }'
    large = b"\xff\xff\xff\xff\xff\x01"
    least, most = b"\x80\x80\x80\x80\xf8\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f"
    wrong = [b"\x08" + large, b"\x08" + most, b"\x10\x02", b"\x18" + large, b"\x20" + large, b"\x0a\x01a", b"\x28\x01"]
    rows = landed(spark, _format(text), [b"\x08" + least + b"\x18" + most + b"\x20" + most, *wrong])
    assert [problem for _, problem in rows] == [
        None,
        *(f"the value of A.{name} does not fit {kind}" for name, kind in (("a", "int32"), ("a", "int32"))),
        "the value of A.b does not fit bool",
        "the value of A.c does not fit uint32",
        "the value of A.d does not fit sint32",
        "the value of A.a is not written as int32",
        "the value of A.e is not written as string",
    ]
    assert (rows[0][0]["a"], rows[0][0]["c"], rows[0][0]["d"]) == (-(2**31), 2**32 - 1, -(2**31))


@spark_test
def test_deep_and_huge_claims_are_rejected(spark):
    text = 'syntax="proto3"; import "google/protobuf/struct.proto"; '
    text += "message A { google.protobuf.Value v = 1; bytes b = 2; repeated int32 n = 3; }"
    value = b""
    for _ in range(3000):
        inner = b"\x0a" + _length(value) + value
        value = b"\x32" + _length(inner) + inner
    deep = b"\x0a" + _length(value) + value
    huge = [b"\x12\xff\xff\xff\xff\x07x", b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01"]
    rows = landed(spark, _format(text), [deep, *huge, b"\x0a\x00", b"\x0a\x09\x11\x00\x00\x00\x00\x00\x00\xf8\x7f"])
    assert [problem for _, problem in rows] == [
        "it is not A: it is nested more than 100 levels deep",
        "it is not A: the bytes end too early",
        "it is not A: a number has too many bytes",
        "the value of A.v is a google.protobuf.Value without a value",
        "the value of A.v is a google.protobuf.Value that is NaN or infinite",
    ]


@spark_test
def test_many_values_of_few_bytes_are_rejected(spark):
    fields = " ".join(f"int32 f{number} = {number};" for number in range(1, 101))
    text = (
        f'syntax="proto3"; message A {{ repeated B b = 1; B one = 2; map<int32, B> m = 3; }} message B {{ {fields} }}'
    )
    rows = landed(
        spark,
        _format(text, message="A"),
        [b"\x0a\x00" * 1_000, b"\x0a\x00" * 50_000 + b"\x12\x00", b"\x0a\x00" * 10**6],
    )
    assert [problem for _, problem in rows] == [None, *["it has more than 5,000,000 values"] * 2]


def _length(data):
    number, out = len(data), b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])
