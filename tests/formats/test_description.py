"""Decoders as JSON: told apart, and made again where that can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyspark.sql.types import IntegerType, StructField, StructType

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.schema_book import SchemaBook
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.registry.registered_schema import RegisteredSchema


class _Own(Format):
    password: SecretStr = SecretStr("")
    lookup: Any = None

    def parse(self, data):
        return data

    def problem(self, parsed):
        return None


def _decoder(value_format, key_format=None):
    return Decoder(key_format or RawFormat(), value_format, KafkaColumns())


def _described(decoder):
    """As it comes back from a commit."""
    return json.loads(json.dumps(describe_decoder(decoder)))


_ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
_SIDES = [{"name": "before", "type": ["null", _ROW]}, {"name": "after", "type": ["null", "Row"]}]
_EVENT = {"type": "record", "name": "Event", "fields": [*_SIDES, {"name": "op", "type": "string"}]}
_MESSAGE = 'syntax = "proto3"; message Order { int64 id = 1; }'


def _of_a_run(form: Any, kind: Any, text: str) -> Any:
    """In a run that knows one schema, and one that the registry does not have."""
    form = form.model_copy()
    form._book = SchemaBook(None, {"0000000001": RegisteredSchema(1, kind, text), "0000000002": None})
    return form


@pytest.mark.parametrize(
    "value_format",
    [
        RawFormat(),
        StringFormat(),
        CsvFormat("n INT", delimiter=";", quote=None, null_literal="", allow_comments=True),
        JsonFormat("n INT NOT NULL, `a b` ARRAY<STRUCT<c: STRING>>"),
        JsonFormat(StructType([StructField("n", IntegerType(), nullable=False)])),
        AvroFormat(_ROW),
        DebeziumFormat("id INT", metadata=("before",), on_truncate="skip"),
        DebeziumAvroFormat(_EVENT),
        # Records are rejected for their metadata, too.
        DebeziumAvroFormat(_EVENT, metadata=("before",), on_truncate="skip"),
        MaxwellFormat("id INT"),
        OggFormat("id INT", on_truncate="skip"),
        CanalFormat("id INT", table="a"),
    ],
    ids=lambda form: repr(form)[:60],
)
def test_a_built_in_decoder_is_rebuilt_from_its_settings(value_format):
    decoder = _decoder(value_format, StringFormat())
    current = _decoder(JsonFormat("another INT"))
    assert decoder_of(_described(decoder), current) == decoder


def test_a_decoder_with_schemas_is_rebuilt_without_their_registry():
    descriptors = compiled(_MESSAGE)
    for form in (
        JsonFormat("n INT").as_framed("payload", is_key=False),
        JsonFormat("n INT").as_framed("headers", is_key=False),
        ProtobufFormat(descriptors),
        _of_a_run(AvroFormat(_ROW, registry="registry"), "AVRO", json.dumps(_ROW)),
        _of_a_run(ProtobufFormat(descriptors, registry="registry", schema_id_in="headers"), "PROTOBUF", _MESSAGE),
    ):
        described = _described(_decoder(form))
        rebuilt: Any = decoder_of(described, _decoder(JsonFormat("another INT")))
        assert type(rebuilt.value_format) is type(form)
        assert rebuilt.value_format.schema_id_in == form.schema_id_in
        assert _described(rebuilt) == described != _described(_decoder(JsonFormat("n INT")))


def test_a_schema_that_was_never_asked_for_can_not_be_made_again():
    assert decoder_of(_described(_decoder(JsonFormat(registry="registry"))), _decoder(JsonFormat("n INT"))) is None


def test_a_users_own_format_is_only_recognized_and_its_secrets_are_masked():
    lookup = {"a": (1, 2.5, None), "b": Path("x")}
    described = _described(_decoder(_Own(password=SecretStr("hunter2"), lookup=lookup)))
    assert "hunter2" not in json.dumps(described)
    same = _decoder(_Own(password=SecretStr("hunter3"), lookup=lookup))
    assert decoder_of(described, same) == same
    assert decoder_of(described, _decoder(_Own(lookup={**lookup, "b": Path("y")}))) is None
    assert decoder_of(described, _decoder(RawFormat())) is None


class _OwnAvro(AvroFormat):
    limit: int = 1


def test_a_users_own_avro_is_no_other_avro():
    own = _decoder(_OwnAvro('"long"'))  # pyright: ignore[reportCallIssue]
    plain = _decoder(AvroFormat('"long"'))
    assert decoder_of(_described(own), own) == own
    assert decoder_of(_described(own), plain) is None
    assert decoder_of(_described(own), _decoder(own.value_format.model_copy(update={"limit": 2}))) is None
    assert decoder_of(_described(plain), own) == plain


@pytest.mark.parametrize(
    "lookup", [lambda value: value, _Own().parse, [print], object()], ids=["lambda", "method", "list", "object"]
)
def test_a_setting_that_can_not_be_described_is_refused(lookup):
    with pytest.raises(ConfigurationError, match="which JSON can't hold"):
        describe_decoder(_decoder(_Own(lookup=lookup)))


def test_a_setting_that_is_not_known_here_is_not_passed_over():
    described = _described(_decoder(StringFormat()))
    described["value"]["encoding"] = "latin1"
    assert decoder_of(described, _decoder(StringFormat())) is None


def test_showing_values_in_errors_does_not_change_the_decoder():
    quiet, quoting = (Decoder.of(None, JsonFormat("n INT", show_values=shown), None) for shown in (False, True))
    assert describe_decoder(quiet) == describe_decoder(quoting)


def test_a_commit_names_built_in_formats_by_ids_that_outlive_their_modules():
    described = describe_decoder(Decoder.of(None, JsonFormat("n INT"), None))
    assert described == {"key": {"format": "raw"}, "value": {"format": "json", "declared": "n INT"}}
    assert describe_decoder(Decoder.of(None, StringFormat(), None))["value"] == {"format": "string"}
