"""Formats out of the options and columns of Flink's Kafka table."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.formats.table_options import formats_of

_SCHEMA = "k_id BIGINT NOT NULL, k_at TIMESTAMP COMMENT 'x, y', `a b` STRUCT<c: DECIMAL(5, 2)>"
_ALL = "`k_id` BIGINT NOT NULL, `k_at` TIMESTAMP COMMENT 'x, y', `a b` STRUCT<c: DECIMAL(5, 2)>"


@pytest.mark.parametrize(
    ("options", "formats"),
    [
        ({"format": "json"}, (None, JsonFormat(_ALL))),
        ({"value.format": "json", "value.json.ignore-parse-errors": "true"}, (None, JsonFormat(_ALL, on_error="null"))),
        (
            {"format": "json", "json.fail-on-missing-field": "false", "json.timestamp-format.standard": "ISO-8601"},
            (None, JsonFormat(_ALL)),
        ),
        (
            {"format": "json", "key.format": "json", "key.fields": "k_id;k_at", "key.json.ignore-parse-errors": "True"},
            (JsonFormat("`k_id` BIGINT NOT NULL, `k_at` TIMESTAMP COMMENT 'x, y'", on_error="null"), JsonFormat(_ALL)),
        ),
        (
            {
                "value.format": "json",
                "key.format": "csv",
                "key.fields": "k_at;k_id",
                "key.fields-prefix": "k_",
                "value.fields-include": "EXCEPT_KEY",
                "key.csv.field-delimiter": ";",
            },
            (
                CsvFormat("`at` TIMESTAMP COMMENT 'x, y', `id` BIGINT NOT NULL", delimiter=";"),
                JsonFormat("`a b` STRUCT<c: DECIMAL(5, 2)>"),
            ),
        ),
    ],
)
def test_columns_are_divided_between_key_and_value(options, formats):
    assert formats_of(options, _SCHEMA) == formats


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CsvFormat("`n` INT")),
        ({"field-delimiter": r"\t"}, CsvFormat("`n` INT", delimiter="\t")),
        ({"field-delimiter": r"\u0001"}, CsvFormat("`n` INT", delimiter="\x01")),
        ({"field-delimiter": "\\\\"}, CsvFormat("`n` INT", delimiter="\\")),
        ({"disable-quote-character": "true"}, CsvFormat("`n` INT", quote=None)),
        ({"quote-character": "'", "escape-character": "\\"}, CsvFormat("`n` INT", quote="'", escape="\\")),
        (
            {"null-literal": "", "allow-comments": "true", "ignore-parse-errors": "true"},
            CsvFormat("`n` INT", null_literal="", allow_comments=True, on_error="null"),
        ),
    ],
)
def test_options_of_csv(options, expected):
    given = {f"csv.{name}": value for name, value in options.items()}
    assert formats_of({"format": "csv", **given}, "n INT") == (None, expected)


def test_raw_is_bytes_or_text():
    assert formats_of({"format": "raw"}, "kafka_value BINARY") == (None, RawFormat())
    assert formats_of({"format": "raw", "raw.charset": "utf-8"}, "kafka_value STRING NOT NULL") == (
        None,
        StringFormat(),
    )
    keyed = {"key.format": "raw", "key.fields": "k", "format": "json", "value.fields-include": "EXCEPT_KEY"}
    assert formats_of(keyed, "k STRING, v INT") == (StringFormat(), JsonFormat("`v` INT"))


_JSON = {"format": "json"}
_CSV = {"format": "csv"}
_KEY = {**_JSON, "key.format": "json"}


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({}, "format", "missing; set it, or 'value.format', to one of raw, json, csv"),
        ({"format": "json", "value.format": "json"}, "value.format", "set it or 'format', not both"),
        ({"format": "avro-confluent"}, "format", "there is no format 'avro-confluent'; there are raw, json, csv"),
        ({**_JSON, "key.format": "avro", "key.fields": "k_id"}, "key.format", "there is no format 'avro'"),
        ({**_JSON, "key.fields": "k_id"}, "key.fields", "it needs 'key.format'"),
        (_KEY, "key.fields", "missing; 'key.format' needs the columns"),
        ({**_KEY, "key.fields": "k_di"}, "key.fields", "k_di is no column of the schema; did you mean k_id"),
        ({**_KEY, "key.fields": "a b", "key.fields-prefix": "k_"}, "key.fields-prefix", "the column a b of"),
        ({**_KEY, "key.fields": "k_id", "key.fields-prefix": "k_id"}, "key.fields-prefix", "nothing is left"),
        ({**_KEY, "key.fields": "k_id", "key.fields-prefix": "k_"}, "key.fields-prefix", "it needs 'value.fields-incl"),
        ({**_JSON, "value.fields-include": "NONE"}, "value.fields-include", "expected ALL or EXCEPT_KEY"),
        (
            {**_KEY, "key.fields": "k_id;k_at;a b", "value.fields-include": "EXCEPT_KEY"},
            "value.fields-include",
            "no column is left for the value",
        ),
        ({**_JSON, "json.ignore-parse-error": "true"}, "json.ignore-parse-error", "unknown; did you mean json.ignore-"),
        ({**_JSON, "json.ignore-parse-errors": "yes"}, "json.ignore-parse-errors", "expected true or false"),
        ({**_JSON, "json.fail-on-missing-field": "true"}, "json.fail-on-missing-field", "remove it, and declare such"),
        ({**_JSON, "json.map-null-key.mode": "DROP"}, "json.map-null-key.mode", "it is for writing"),
        ({**_JSON, "json.timestamp-format.standard": "RFC"}, "json.timestamp-format.standard", "expected SQL or"),
        ({**_JSON, "value.json.ignore-parse-errors": "true"}, "value.json.ignore-parse-errors", "unknown"),
        ({**_JSON, "csv.null-literal": ""}, "csv.null-literal", "unknown"),
        ({**_CSV, "csv.quote-character": "''"}, "csv.quote-character", "expected one character"),
        ({**_CSV, "csv.field-delimiter": "||"}, "csv.field-delimiter", "expected one character"),
        ({**_CSV, "csv.array-element-delimiter": ";"}, "csv.array-element-delimiter", "a field holds one value"),
        (
            {**_CSV, "csv.quote-character": "'", "csv.disable-quote-character": "true"},
            "csv.quote-character",
            "'csv.disable-quote-character' is true; set one of them",
        ),
        ({"format": "raw"}, "format", "raw is for one column, and there are k_id, k_at, a b"),
    ],
)
def test_an_option_that_can_not_be_is_refused_with_its_name(options, option, message):
    with pytest.raises(ConfigurationError) as error:
        formats_of(options, _SCHEMA)
    assert str(error.value).startswith(f"table option '{option}': {message}")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("data BINARY", "table option 'format': a raw value is the column kafka_value: declare kafka_value BINARY"),
        ("kafka_value BIGINT", "table option 'format': raw reads BINARY and STRING, not BIGINT"),
        ("kafka_value STRING", "table option 'raw.charset': STRING is UTF-8, not 'latin1'"),
        ("v BINARY, o BIGINT METADATA FROM 'offset'", "schema: metadata columns are not declared here"),
        ("v BYTES", "schema: v: 'BYTES' is not a Spark type; did you mean BINARY?"),
    ],
)
def test_columns_that_can_not_be_are_refused(schema, message):
    with pytest.raises(ConfigurationError) as error:
        formats_of({"format": "raw", "raw.charset": "latin1"}, schema)
    assert str(error.value).startswith(message)
