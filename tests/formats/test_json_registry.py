"""JsonFormat with a schema registry on real Spark: behind its frame, JSON is read as it is without one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.diagnose import rejected_records
from dagster_kafka_flip.formats.json import JsonFormat
from tests.formats.decoding import landed, records

pytestmark = pytest.mark.spark

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
GUID = uuid.UUID("0123456789abcdef0123456789abcdef")


def _framed(schema=SCHEMA, where: Any = "payload", *, is_key=False, **options):
    return JsonFormat(schema, **options).as_framed(where, is_key=is_key)


def _errors(spark, form, values, headers=None):
    return [error for _, error in landed(spark, form, values, headers and [headers] * len(values))]


GOOD = '{"id": 1, "note": "ü 🎈", "at": "2026-01-02T03:04:05.5+02:00", "n": {"x": 1, "y": [1]}, "m": {"a": "b"}}'

# What the values themselves may be, test_formats has.
VALUES = [GOOD, '{"id": 2}', '{"id": 2, "m": {"a": 1}}', '{"id": null}', '{"n": {"x": "y"}}', "[]", "null", "{", ""]


def test_framed_json_is_what_the_same_json_is_without_a_frame(spark):
    values = [text.encode() for text in VALUES]
    unframed = landed(spark, JsonFormat(SCHEMA), values)
    assert [error is None for _, error in unframed] == [True] * 3 + [False] * 6
    assert landed(spark, _framed(), [FRAME + value for value in values]) == unframed
    headers = [[("__value_schema_id", b"\x01" + GUID.bytes)]] * len(values)
    assert landed(spark, _framed(where="headers"), values, headers) == unframed


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


def test_the_error_names_the_field_behind_the_frame(spark):
    for form, headers, before in (
        (_framed(show_values=True), None, FRAME),
        (_framed(where="headers", show_values=True), [("__value_schema_id", FRAME)], b""),
    ):
        frame = records(spark, [before + b'{"id": "seven"}', b'x{"id": 1}'], headers=headers and [headers] * 2)
        error = str(rejected_records(frame, Decoder.of(None, form, None)))
        assert "t-3 offset 0: the value of id does not fit BIGINT: seven" in error


def test_undeclared_fields_are_found_behind_the_frame(spark):
    decoder = Decoder.of(None, _framed(), None)
    staged = decoder.stage(records(spark, [FRAME + b'{"id": 1, "other": 2}']))
    (row,) = staged.select(*decoder.fields(1)[0].columns()).collect()
    assert tuple(row) == (1, '000001["other"]')
