"""Formats out of the options and columns of Flink's Kafka table."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_schema import ANY_NAME
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.formats.table_options import formats_of
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

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


def test_options_of_changes():
    debezium = {"format": "debezium-json", "debezium-json.schema-include": "true"}
    assert formats_of({**debezium, "debezium-json.timestamp-format.standard": "ISO-8601"}, "n INT NOT NULL") == (
        None,
        DebeziumFormat("`n` INT NOT NULL"),
    )
    kept = {"value.format": "debezium-json", "value.debezium-json.ignore-parse-errors": "true"}
    assert formats_of(kept, "n INT") == (None, DebeziumFormat("`n` INT", on_error="null"))
    assert formats_of({"format": "maxwell-json", "maxwell-json.ignore-parse-errors": "true"}, "n INT") == (
        None,
        MaxwellFormat("`n` INT", on_error="null"),
    )
    assert formats_of({"format": "ogg-json"}, "n INT") == (None, OggFormat("`n` INT"))
    canal = {"format": "canal-json", "canal-json.database.include": "web-shop", "canal-json.table.include": "orders"}
    assert formats_of(canal, "n INT") == (None, CanalFormat("`n` INT", database="web-shop", table="orders"))
    with pytest.raises(ConfigurationError, match=r"unsupported type BINARY in Canal's JSON"):
        formats_of({"format": "canal-json"}, "n BINARY")
    avro = {"format": "debezium-avro-confluent", "debezium-avro-confluent.url": "http://registry"}
    _, form = formats_of(avro, "n INT NOT NULL, name STRING")
    assert isinstance(form, DebeziumAvroFormat)
    assert form.column_names == ["n", "name"]
    assert form.registry == SchemaRegistry(url="http://registry")


def test_raw_is_bytes_or_text():
    assert formats_of({"format": "raw"}, "kafka_value BINARY") == (None, RawFormat())
    assert formats_of({"format": "raw", "raw.charset": "utf-8"}, "kafka_value STRING NOT NULL") == (
        None,
        StringFormat(),
    )
    keyed = {"key.format": "raw", "key.fields": "k", "format": "json", "value.fields-include": "EXCEPT_KEY"}
    assert formats_of(keyed, "k STRING, v INT") == (StringFormat(), JsonFormat("`v` INT"))


def _named(message, options):
    """The option is the last one, unless the message names another."""
    return message if message.startswith("'") else f"'{[*options][-1]}': {message}"


_JSON = {"format": "json"}
_CSV = {"format": "csv"}
_KEY = {**_JSON, "key.format": "json"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'format': missing; set it, or 'value.format', to one of raw, json, csv, avro"),
        ({"format": "json", "value.format": "json"}, "set it or 'format', not both"),
        ({"format": "orc"}, "unknown format 'orc'; valid formats: raw, json, csv, avro, avro-confluent"),
        ({**_JSON, "key.format": "parquet", "key.fields": "k_id"}, "'key.format': unknown format 'parquet'"),
        (
            {"key.format": "debezium-json", "key.fields": "k_id", "format": "json"},
            "'key.format': debezium-json decodes values",
        ),
        ({"format": "debezium-json", "debezium-json.schema-include": "1"}, "expected tr"),
        ({"format": "debezium-json", "debezium-json.encode.ignore-null-fields": "true"}, "it is only"),
        ({"format": "debezium-json", "debezium-json.timestamp-format.standard": "RFC"}, "expected SQL or"),
        (
            {"format": "debezium-avro-confluent", "debezium-avro-confluent.schema": "{}"},
            "it is the schema of the whole event",
        ),
        (
            {"format": "debezium-avro-confluent", "debezium-avro-confluent.url": "http://r"},
            "'format': the unit of k_at is not known",
        ),
        (
            {"key.format": "debezium-avro-confluent", "key.fields": "k_id", "format": "json"},
            "'key.format': debezium-avro-confluent decodes values",
        ),
        ({"format": "canal-json", "canal-json.table.include": "a|b"}, "expected one name, not a pattern"),
        ({"format": "ogg-json", "ogg-json.encode.decimal-as-plain-number": "true"}, "it"),
        ({"format": "protobuf"}, "protobuf: Flink's needs a compiled Java class"),
        ({**_JSON, "key.fields": "k_id"}, "it needs 'key.format'"),
        (_KEY, "'key.fields': missing; 'key.format' needs the columns"),
        ({**_KEY, "key.fields": "k_di"}, "k_di is not a column of the schema; did you mean k_id"),
        ({**_KEY, "key.fields": "a b", "key.fields-prefix": "k_"}, "the column a b of"),
        ({**_KEY, "key.fields": "k_id", "key.fields-prefix": "k_id"}, "without the prefix, nothing is left"),
        ({**_KEY, "key.fields": "k_id", "key.fields-prefix": "k_"}, "it needs 'value.fields-incl"),
        ({**_JSON, "value.fields-include": "NONE"}, "expected ALL or EXCEPT_KEY"),
        (
            {**_KEY, "key.fields": "k_id;k_at;a b", "value.fields-include": "EXCEPT_KEY"},
            "no column is left for the value",
        ),
        ({**_JSON, "json.ignore-parse-error": "true"}, "unknown; did you mean json.ignore-"),
        ({**_JSON, "json.ignore-parse-errors": "yes"}, "expected true or false"),
        ({**_JSON, "json.fail-on-missing-field": "true"}, "remove it, and declare such"),
        ({**_JSON, "json.map-null-key.mode": "DROP"}, "it is only for writing"),
        ({**_JSON, "json.timestamp-format.standard": "RFC"}, "expected SQL or"),
        ({**_JSON, "value.json.ignore-parse-errors": "true"}, "unknown; did you mean json.ignore-parse-errors"),
        ({**_JSON, "csv.null-literal": ""}, "unknown; "),
        ({**_JSON, "key.filds": "k_id"}, "unknown; did you mean key.fields"),
        ({**_CSV, "csv.quote-character": "''"}, "expected one character"),
        ({**_CSV, "csv.field-delimiter": "||"}, "expected one character"),
        ({**_CSV, "csv.array-element-delimiter": ";"}, "a field holds one value"),
        ({**_CSV, "csv.quote-character": "'", "csv.disable-quote-character": "true"}, "another option sets the same"),
        ({"format": "raw"}, "raw is for one column, and there are k_id, k_at, a b"),
    ],
)
def test_an_option_that_can_not_be_is_refused_with_its_name(options, message):
    with pytest.raises(ConfigurationError) as error:
        formats_of(options, _SCHEMA)
    assert str(error.value).startswith(f"table option {_named(message, options)}")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("data BINARY", "table option 'format': a raw value is the column kafka_value: declare kafka_value BINARY"),
        ("kafka_value BIGINT", "table option 'format': raw reads BINARY and STRING, not BIGINT"),
        ("kafka_value STRING", "table option 'raw.charset': STRING is UTF-8, not 'latin1'"),
        ("v BINARY, o BIGINT METADATA FROM 'offset'", "schema: metadata columns can't be declared here"),
        ("v BYTES", "schema: v: 'BYTES' is not a Spark type; did you mean BINARY?"),
    ],
)
def test_columns_that_can_not_be_are_refused(schema, message):
    with pytest.raises(ConfigurationError) as error:
        formats_of({"format": "raw", "raw.charset": "latin1"}, schema)
    assert str(error.value).startswith(message)


_URL = "https://registry:8081"
_CONFLUENT = {"format": "avro-confluent", "avro-confluent.url": _URL}
_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_COLUMNS = """
    id BIGINT NOT NULL COMMENT 'a > b, c', ok BOOLEAN, n INT, f FLOAT, d DOUBLE, s STRING, b BINARY,
    p DECIMAL /* euros */ (5, 2),
    q DECIMAL, day DATE, at TIMESTAMP, here TIMESTAMP_NTZ NOT NULL, tags ARRAY<STRING> NOT NULL,
    m MAP<STRING, ARRAY<DECIMAL(4,1)>>, a STRUCT<street: STRING NOT NULL, geo: STRUCT<x: INT>> NOT NULL
"""


def _or_null(avro_type):
    return ["null", avro_type]


def test_columns_become_the_reader_schema():
    _, found = formats_of(_CONFLUENT, _COLUMNS)
    assert isinstance(found, AvroFormat)
    assert found.registry == SchemaRegistry(url=_URL)
    assert found.declared is not None
    schema = json.loads(found.declared)
    assert (schema["type"], schema["name"]) == ("record", "record")
    types = {field["name"]: field["type"] for field in schema["fields"]}
    geo = {
        "type": "record",
        "name": "record_a_geo",
        "fields": [{"name": "x", "type": ["null", "int"], "default": None}],
        ANY_NAME: True,
    }
    decimal = {"type": "bytes", "logicalType": "decimal"}
    assert types == {
        "id": "long",
        "ok": _or_null("boolean"),
        "n": _or_null("int"),
        "f": _or_null("float"),
        "d": _or_null("double"),
        "s": _or_null("string"),
        "b": _or_null("bytes"),
        "p": _or_null({**decimal, "precision": 5, "scale": 2}),
        "q": _or_null({**decimal, "precision": 10, "scale": 0}),
        "day": _or_null({"type": "int", "logicalType": "date"}),
        "at": _or_null({"type": "long", "logicalType": "timestamp-micros"}),
        "here": {"type": "long", "logicalType": "local-timestamp-micros"},
        "tags": {"type": "array", "items": _or_null("string")},
        "m": _or_null(
            {
                "type": "map",
                "values": _or_null({"type": "array", "items": _or_null({**decimal, "precision": 4, "scale": 1})}),
            }
        ),
        "a": {
            "type": "record",
            "name": "record_a",
            "fields": [{"name": "street", "type": "string"}, {"name": "geo", "type": _or_null(geo), "default": None}],
            ANY_NAME: True,
        },
    }
    assert all(("default" in field) == isinstance(field["type"], list) for field in schema["fields"])


def _schema(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields]})


def test_options_of_avro():
    schema = _schema(("id", {"type": "long", "logicalType": "time-micros"}), ("at", ["null", _MILLIS]))
    assert formats_of({"format": "avro", "avro.schema": schema}, "id BIGINT, at TIMESTAMP") == (
        None,
        AvroFormat(schema),
    )
    assert isinstance(formats_of({"format": "avro", "avro.encoding": "binary"}, "id BIGINT")[1], AvroFormat)
    login = {"basic-auth.credentials-source": "USER_INFO", "basic-auth.user-info": "me:pass:word", "schema": schema}
    given = {f"avro-confluent.{name}": value for name, value in login.items()}
    assert formats_of({**_CONFLUENT, **given}, "id BIGINT, at TIMESTAMP") == (
        None,
        AvroFormat(schema, registry=SchemaRegistry(url=_URL, username="me", password=SecretStr("pass:word"))),
    )
    found = formats_of({**_CONFLUENT, "avro-confluent.bearer-auth.token": "t0ken"}, "id BIGINT")[1]
    assert isinstance(found, AvroFormat)
    assert found.registry == SchemaRegistry(url=_URL, bearer_token=SecretStr("t0ken"))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("avro", {"encoding": "json"}, "expected binary, not"),
        ("avro", {"codec": "snappy"}, "it is for Avro files"),
        ("avro", {"timestamp_mapping.legacy": "true"}, "remove it, and declare"),
        ("avro", {"url": _URL}, "unknown"),
        ("avro-confluent", {}, "'avro-confluent.url': missing"),
        ("avro-confluent", {"schema-registry.url": _URL}, "its name is now avro-confluent.url"),
        ("avro-confluent", {"url": "ftp://me:s3cret@x"}, ""),
        ("avro-confluent", {"url": _URL, "subject": "s"}, "it is only for writing"),
        ("avro-confluent", {"url": _URL, "basic-auth.credentials-source": "URL"}, ""),
        ("avro-confluent", {"url": _URL, "basic-auth.user-info": "s3cret"}, "expected user:p"),
        (
            "avro-confluent",
            {"url": _URL, "basic-auth.user-info": "a:s3cret", "bearer-auth.token": "x"},
            "'avro-confluent.url': ",
        ),
        ("avro-confluent", {"url": _URL, "bearer-auth.token": "s3cret\n"}, "'avro-confluent.url': "),
        ("avro-confluent", {"url": _URL, "ssl.keystore.password": "s3cret"}, "Java key"),
        ("avro-confluent", {"url": _URL, "properties.a.secret": "s3cret"}, "it has no equivalent"),
        ("avro-confluent", {"url": _URL, "schema": "{"}, "invalid Avro schema"),
        (
            "avro-confluent",
            {"url": _URL, "schema": _schema(("id", "long"))},
            "it does not match the columns: it has no more, but the columns have n INT",
        ),
        (
            "avro-confluent",
            {"url": _URL, "schema": _schema(("id", "string"), ("n", "int"))},
            "it does not match the columns: it has id STRING, but the columns have id BIGINT",
        ),
    ],
)
def test_an_option_of_avro_that_can_not_be_is_refused(kind, options, message):
    given = {f"{kind}.{name}": value for name, value in options.items()}
    with pytest.raises(ConfigurationError) as error:
        formats_of({"format": kind, **given}, "id BIGINT, n INT")
    assert str(error.value).startswith(f"table option {_named(message, given)}")
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("SMALLINT", "schema: v: Avro has no type for SMALLINT; declare INT"),
        ("ARRAY<TINYINT>", "schema: v[]: Avro has no type for TINYINT; declare INT"),
        ("MAP<INT, STRING>", "schema: v: the keys of a MAP in Avro are STRING"),
        ("STRUCT<a: VARIANT>", "schema: v.a: Avro has no type for VARIANT"),
        ("TIMESTAMP", "table option 'avro.schema': missing; it says whether v is in milliseconds"),
        ("ARRAY<STRUCT<at: TIMESTAMP_NTZ>>", "table option 'avro.schema': missing; it says whether v[].at is in"),
    ],
)
def test_a_column_without_an_avro_type_is_refused(column, message):
    with pytest.raises(ConfigurationError) as error:
        formats_of({"format": "avro"}, f"v {column}")
    assert str(error.value).startswith(message)
