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
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat


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


@pytest.mark.parametrize(
    "value_format",
    [
        RawFormat(),
        StringFormat(),
        CsvFormat("n INT", delimiter=";", quote=None, null_literal="", allow_comments=True),
        JsonFormat("n INT NOT NULL, `a b` ARRAY<STRUCT<c: STRING>>"),
        JsonFormat(StructType([StructField("n", IntegerType(), nullable=False)])),
    ],
    ids=repr,
)
def test_a_built_in_decoder_is_rebuilt_from_its_settings(value_format):
    decoder = _decoder(value_format, StringFormat())
    current = _decoder(JsonFormat("another INT"))
    assert decoder_of(_described(decoder), current) == decoder


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


@pytest.mark.parametrize("lookup", [lambda value: value, _Own().parse, [print], object()], ids=repr)
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
