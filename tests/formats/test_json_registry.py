"""JsonFormat with a schema registry on real Spark: behind its frame, JSON is read as it is without one."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.diagnose import rejected_records
from dagster_kafka_flip.formats.frames import frames_of
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.reader.kafka_reader import RECORD_SCHEMA
from dagster_kafka_flip.registry.registered_schema import UNKNOWN_ID, RegisteredSchema

pytestmark = pytest.mark.spark

# Many values in few examples: an example is three queries, and a value only a row of them.
_LARGE = [HealthCheck.data_too_large, HealthCheck.large_base_example]

SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "n": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "array"}}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
FRAME = b"\x00\x00\x00\x00\x07"
_NO_FRAME = "not the magic byte 0x00 of a schema registry's serializer"
GUID = uuid.UUID("0123456789abcdef0123456789abcdef")


def _framed(schema=SCHEMA, where: Any = "payload", *, is_key=False, **options):
    return JsonFormat(schema, **options).as_framed(where, is_key=is_key)


def _records(spark, values, headers=None, keys=None):
    rows = [
        (key, None if value is None else bytearray(value), "t", 0, offset, None, 0, headers)
        for offset, (value, key) in enumerate(zip(values, keys or [None] * len(values), strict=True))
    ]
    return spark.createDataFrame(rows, RECORD_SCHEMA)


def _landed(spark, form, values, headers=None):
    """Each value's columns, as text, and its error."""
    decoder = Decoder.of(None, form.model_copy(update={"on_error": "null"}), KafkaColumns(fields=("offset",)))
    frame = decoder.finish(decoder.stage(_records(spark, values, headers)))
    rows = frame.orderBy("kafka_offset").selectExpr("to_json(struct(* except (kafka_rejected_value)))").collect()
    return [json.loads(text) for (text,) in rows]


def _errors(spark, form, values, headers=None):
    return [row.get("kafka_error") for row in _landed(spark, form, values, headers)]


GOOD = '{"id": 1, "note": "ü 🎈", "at": "2026-01-02T03:04:05.5+02:00", "n": {"x": 1, "y": [1]}, "m": {"a": "b"}}'

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y", "id"]), inner, max_size=2),
    max_leaves=4,
)
_objects = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**64), 2**64) | _json,
        "note": st.text(max_size=5) | _json,
        "at": st.sampled_from(["2026-01-02T03:04:05Z", "2026-13-01T00:00:00Z", "x"]) | _json,
        "n": st.fixed_dictionaries({}, optional={"x": _json, "y": _json}) | _json,
        "m": st.dictionaries(st.sampled_from(["a", "b"]), _json) | _json,
        "more": _json,
    },
).map(lambda value: json.dumps(value).encode())


@settings(max_examples=3, suppress_health_check=_LARGE)
@given(st.lists(_objects | st.binary(max_size=8), min_size=80, max_size=160))
def test_framed_json_is_what_the_same_json_is_without_a_frame(spark, values):
    values = [GOOD.encode(), *values]
    plain = _landed(spark, JsonFormat(SCHEMA), values)
    assert "kafka_error" not in plain[0]
    assert _landed(spark, _framed(), [FRAME + value for value in values]) == plain
    header = [("__value_schema_id", b"\x01" + GUID.bytes)]
    assert _landed(spark, _framed(where="headers"), values, header) == plain


def test_rejected_values_and_their_reasons(spark):
    value = b'{"id": 1}'
    cases = [
        (None, None),
        (FRAME + value, None),
        (b"\x01" + GUID.bytes + value, None),
        (b"", "it is empty"),
        (b"\x00\x00\x00\x00", "its 4 bytes are too few for a schema id (5)"),
        (value, "its first byte is 0x7B, not the magic byte 0x00 of a schema registry's serializer"),
        (b"\x01" + GUID.bytes[1:], "its first byte is 0x01, not the magic byte 0x00 of a schema registry's serializer"),
        (FRAME, "not a JSON object"),
        (FRAME + b"null", "not a JSON object"),
        (FRAME + b"[]", "not a JSON object"),
        (FRAME + b"\x00" + value, "not a JSON object"),
        (FRAME + FRAME + value, "not a JSON object"),
        (FRAME + b'{"id": 1', "not valid JSON"),
        (FRAME + b'{"id": "1"}', "the value of id does not fit BIGINT"),
        (FRAME + b'{"id": null}', "the required field id is missing or null"),
        (FRAME + b'{"id": 1, "note": "\xff"}', "not valid UTF-8"),
        (FRAME + b'{"id": 9223372036854775808}', "the value of id does not fit BIGINT"),
    ]
    assert _errors(spark, _framed(), [value for value, _ in cases]) == [error for _, error in cases]


@pytest.mark.nightly
def test_ids_in_headers(spark):
    value, form = b'{"id": 1}', _framed(where="headers")
    header = [("__value_schema_id", b"\x00\x00\x00\x00\x01"), ("__value_schema_id", b"\x01" + GUID.bytes)]
    assert _errors(spark, form, [value, None, b""], header) == [None, None, "not a JSON object"]
    # Without the header, as with ids in the payload.
    assert _errors(spark, form, [FRAME + value, value], [("other", b"\x00")]) == [
        None,
        f"its first byte is 0x7B, {_NO_FRAME}, and no header has a schema id",
    ]
    # What a header lacks, or has too much, is not taken for a part of the value.
    for header in (b"7", b"", b"\x00\x00", b"\x00\x00\x00\x00\x01{", b"\x01" + GUID.bytes[:-1]):
        wanted = f"its header for the schema id has {len(header)} bytes, which are not an id"
        assert _errors(spark, form, [value, None], [("__value_schema_id", header)]) == [wanted, None]
    # The header of a key is another one.
    keys = _framed(where="headers", is_key=True)
    decoder = Decoder.of(keys, None, None)
    records = _records(spark, [None], [("__key_schema_id", b"\x01" + GUID.bytes)], [value])
    ((key,),) = decoder.finish(decoder.stage(records)).select("kafka_key.id").collect()
    assert key == 1


def test_the_error_names_the_field_behind_the_frame(spark):
    for form, headers, before in (
        (_framed(show_values=True), None, FRAME),
        (_framed(where="headers", show_values=True), [("__value_schema_id", FRAME)], b""),
    ):
        records = _records(spark, [before + b'{"id": "seven"}', b'x{"id": 1}'], headers)
        error = str(rejected_records(records, Decoder.of(None, form, None)))
        assert "t-0 offset 0: the value of id does not fit BIGINT: seven" in error


def test_undeclared_fields_are_found_behind_the_frame(spark):
    decoder = Decoder.of(None, _framed(), None)
    staged = decoder.stage(_records(spark, [FRAME + b'{"id": 1, "other": 2}']))
    (row,) = staged.select(*decoder.fields(1)[0].columns()).collect()
    assert tuple(row) == (1, '000001["other"]')


def test_the_schema_of_a_rejected_record_is_named_if_it_is_the_readers(spark):
    from pyspark.sql import functions as f

    text = json.dumps(SCHEMA)
    form = JsonFormat(registry="registry")
    for registered, named in (
        (RegisteredSchema(7, "JSON", text, guid=str(GUID)), [True, True, False]),
        (RegisteredSchema(UNKNOWN_ID, "JSON", text), [False, False, False]),
    ):
        read = form.as_framed("payload", is_key=False).read_with(registered)
        read.book.add(frames_of(registered), registered)
        decoder = Decoder.of(None, read, None)
        records = _records(spark, [FRAME, b"\x01" + GUID.bytes, b"\x00\x00\x00\x00\x08"])
        frame = decoder.stage(records).select("offset", *decoder.written_with()).orderBy("offset")
        assert [row["value_schema"] for row in frame.collect()] == [text if known else None for known in named]
        assert [row["value_schema_id"] for row in frame.collect()] == ["7", str(GUID), "8"]
        assert frame.select(f.col("key_schema"), f.col("key_schema_id")).first() == (None, None)


@pytest.mark.parametrize("where", ["payload", "headers"])
def test_the_decoder_is_recreated_without_the_registry(where):
    decoder = Decoder.of(None, _framed(where=where), None)
    described = json.loads(json.dumps(describe_decoder(decoder)))
    made = decoder_of(described, Decoder.of(None, JsonFormat("other INT"), None))
    assert made is not None
    assert describe_decoder(made) == describe_decoder(decoder)
    assert made.value_format.schema_id_in == where  # pyright: ignore[reportAttributeAccessIssue]
    assert made.value_format.is_framed  # pyright: ignore[reportAttributeAccessIssue]
    # With and without a frame are two decoders, and a schema that was never asked for can't be made again.
    plain = Decoder.of(None, JsonFormat(SCHEMA), None)
    assert describe_decoder(plain) != describe_decoder(decoder)
    unknown = describe_decoder(Decoder.of(None, JsonFormat(registry="registry"), None))
    assert decoder_of(unknown, plain) is None


def test_times_by_rfc_3339(spark):
    def at(text):
        return FRAME + json.dumps({"id": 1, "at": text}).encode()

    good = {
        "2026-01-02T03:04:05Z": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "2026-01-02T03:04:05.123456789-00:30": datetime(2026, 1, 2, 3, 34, 5, 123456, tzinfo=timezone.utc),
        "2026-01-02 03:04:05+14:00": datetime(2026, 1, 1, 13, 4, 5, tzinfo=timezone.utc),
        "2026-01-02t03:04:05z": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
    }
    decoder = Decoder.of(None, _framed(), KafkaColumns(fields=("offset",)))
    frame = decoder.finish(decoder.stage(_records(spark, [at(text) for text in good]))).orderBy("kafka_offset")
    micros = [value for (value,) in frame.selectExpr("unix_micros(at)").collect()]
    assert micros == [round(value.timestamp() * 1_000_000) for value in good.values()]
    # Leap seconds and offsets beyond 18 hours are in RFC 3339, and unknown to Spark.
    bad = ["2016-12-31T23:59:60Z", "2026-01-02T03:04:05+23:59"]
    assert None not in _errors(spark, _framed(), [at(text) for text in bad])
