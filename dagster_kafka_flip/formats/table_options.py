"""The formats of keys and values, from the options and columns of Flink's Kafka table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_columns import avro_of, misfit, times_of
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.ddl import fields_of
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.settings.names import near_names
from dagster_kafka_flip.settings.option_texts import check_texts, refused, texts_of, truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dagster_kafka_flip.formats.format import Format, OnError

_NAMES = ("format", "value.format", "value.fields-include", "key.format", "key.fields", "key.fields-prefix")

# The name of a raw value's column.
_VALUE = "kafka_value"

_METADATA = re.compile(r"\bMETADATA(\s+FROM\b|\s+VIRTUAL\b|\s*,|\s*$)", re.IGNORECASE)
_UTF_8 = frozenset({"UTF-8", "UTF8"})

_NO_FORMATS = {
    "protobuf": (
        "Flink's needs a compiled Java class, which is not supported: set value_format=ProtobufFormat(...) instead"
    ),
}
_IN_CODE = "set value_format or key_format to AvroFormat(registry=SchemaRegistry(...)) instead"

_OF_SINKS = "it is only for writing to Kafka; remove it"
_OF_JSON_SINKS = (
    "map-null-key.mode",
    "map-null-key.literal",
    "encode.decimal-as-plain-number",
    "encode.ignore-null-fields",
)


@dataclass(frozen=True)
class _Options:
    """What is left of a format's own options; each is taken once.

    Attributes:
        prefix: Of their names, such as `value.json.`.
        left: The options by name without the prefix.
    """

    prefix: str
    # It may hold secrets.
    left: dict[str, str] = field(repr=False)

    def text(self, name: str) -> str | None:
        return self.left.pop(name, None)

    def truth(self, name: str) -> bool:
        text = self.left.pop(name, None)
        return text is not None and truth(self.prefix + name, text)

    def refuse(self, name: str, why: str) -> None:
        if name in self.left:
            raise refused(self.prefix + name, why)

    def character(self, name: str) -> str | None:
        text = self.left.pop(name, None)
        if text is not None and len(text) != 1:
            raise refused(self.prefix + name, f"expected one character, not {text!r}")
        return text

    def on_error(self) -> OnError:
        return "null" if self.truth("ignore-parse-errors") else "fail"


def is_of_formats(name: str) -> bool:
    """Whether an option is about formats or columns, and not about what is read."""
    return name == "format" or name.startswith(("key.", "value.", *(f"{kind}." for kind in (*_FORMATS, *_NO_FORMATS))))


def formats_of(options: Mapping[str, str], schema: str) -> tuple[Format | None, Format]:
    """Returns the formats of keys (None if the table has no key) and of values.

    Args:
        options: The options about formats and columns, by name.
        schema: The table's columns, as DDL with Spark's types. Metadata columns belong to KafkaColumns.
    """
    check_texts(options)
    if _METADATA.search(schema):
        msg = "schema: metadata columns can't be declared here; remove them, and choose them with KafkaColumns"
        raise ConfigurationError(msg)
    columns = fields_of(schema)
    given = dict(options)
    value_kind, value_prefix = _value_format(given)
    key_kind = given.pop("key.format", None)
    keys = _key_fields(given, columns, key_kind)
    key_format = None
    if key_kind is not None:
        key_format = _format("key.format", key_kind, "key.", given, keys)
    value_format = _format(
        f"{value_prefix}format", value_kind, value_prefix, given, _value_fields(given, columns, keys)
    )
    for name in given:
        raise refused(name, _why_unknown(name, {f"{value_prefix}{value_kind}.", f"key.{key_kind}."}))
    return key_format, value_format


def _why_unknown(name: str, prefixes: set[str]) -> str:
    """Why there is no such option; of a format's, how the options of the formats that were chosen begin."""
    kind = re.sub(r"^(?:key|value)\.", "", name).partition(".")[0]
    if kind in _OWN:
        begin = " or ".join(sorted(each for each in prefixes if not each.endswith(".None.")))
        return f"it is an option of the format {kind}; options of the formats that are set here begin with {begin}"
    return f"unknown; {near_names(name, _NAMES)}"


def _value_format(given: dict[str, str]) -> tuple[str, str]:
    """The name of the value's format, and the prefix of the names of its options."""
    if "format" in given and "value.format" in given:
        raise refused("value.format", "set it or 'format', not both")
    for name in ("format", "value.format"):
        if name in given:
            return given.pop(name), name.removesuffix("format")
    raise refused("format", f"missing; set it, or 'value.format', to one of {', '.join(_FORMATS)}")


def _key_fields(given: dict[str, str], columns: Mapping[str, str], kind: str | None) -> dict[str, str]:
    """The columns of the key by their names in the table."""
    written = given.pop("key.fields", None)
    names = () if not written else texts_of("key.fields", written)
    if kind is None and names:
        raise refused("key.fields", "it needs 'key.format'")
    if kind is not None and not names:
        raise refused("key.fields", "missing; 'key.format' needs the columns of the key, such as 'user_id;item_id'")
    prefix = given.get("key.fields-prefix", "")
    for name in names:
        if name not in columns:
            raise refused("key.fields", f"{name} is not a column of the schema; {near_names(name, tuple(columns))}")
        if not name.startswith(prefix):
            raise refused("key.fields-prefix", f"the column {name} of 'key.fields' does not begin with {prefix!r}")
        if name == prefix:
            raise refused(
                "key.fields-prefix", f"without the prefix, nothing is left of the column {name} of 'key.fields'"
            )
    return {name: columns[name] for name in names}


def _value_fields(given: dict[str, str], columns: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    included = given.pop("value.fields-include", "ALL")
    prefix = given.pop("key.fields-prefix", "")
    if included.upper() == "ALL":
        if prefix:
            raise refused("key.fields-prefix", "it needs 'value.fields-include' EXCEPT_KEY")
        return dict(columns)
    if included.upper() != "EXCEPT_KEY":
        raise refused("value.fields-include", f"expected ALL or EXCEPT_KEY, not {included!r}")
    if len(keys) == len(columns):
        raise refused("value.fields-include", "no column is left for the value; declare one, or write ALL")
    return {name: column for name, column in columns.items() if name not in keys}


def _format(option: str, kind: str, side: str, given: dict[str, str], columns: Mapping[str, str]) -> Format:
    make = _FORMATS.get(kind)
    if kind in _NO_FORMATS:
        raise refused(option, f"{kind}: {_NO_FORMATS[kind]}")
    if make is None:
        raise refused(option, f"unknown format {kind!r}; valid formats: {', '.join(_FORMATS)}")
    prefix = f"{side}{kind}."
    own = _Options(
        prefix, {name.removeprefix(prefix): given.pop(name) for name in list(given) if name.startswith(prefix)}
    )
    cut = given.get("key.fields-prefix", "") if side == "key." else ""
    form = make(own, {name.removeprefix(cut): column for name, column in columns.items()}, side == "key.")
    for name in own.left:
        raise refused(prefix + name, f"unknown; {near_names(prefix + name, [prefix + each for each in _OWN[kind]])}")
    return form


def _ddl(columns: Mapping[str, str]) -> str:
    quoted = {name.replace("`", "``"): column for name, column in columns.items()}
    return ", ".join(f"`{name}` {column}" for name, column in quoted.items())


def _json(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    del is_key
    if own.truth("fail-on-missing-field"):
        raise refused(f"{own.prefix}fail-on-missing-field", "remove it, and declare such columns NOT NULL")
    _check_json(own)
    own.refuse("decode.json-parser.enabled", "Spark has only one parser; remove it")
    return JsonFormat(_ddl(columns), on_error=own.on_error())


def _debezium_json(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    _check_changes(own, is_key)
    # Each record shows it.
    own.truth("schema-include")
    return DebeziumFormat(_ddl(columns), on_error=own.on_error())


def _debezium_avro(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    if is_key:
        raise refused("key.format", "debezium-avro-confluent decodes values: only they are changes; set avro-confluent")
    own.refuse(
        "schema", "it is the schema of the whole event; set value_format to DebeziumAvroFormat(schema, ...) instead"
    )
    # A record does not contain the unit, and the wrong one would give other times.
    if names := times_of(columns):
        raise refused(
            f"{own.prefix.removesuffix('debezium-avro-confluent.')}format",
            f"the unit of {', '.join(names)} is not known; set value_format to DebeziumAvroFormat(registry=...)",
        )
    form = _avro_confluent(own, columns, is_key)
    row: Any = avro_of(columns)
    sides = [{"name": "before", "type": ["null", row], "default": None}]
    sides.append({"name": "after", "type": ["null", row["name"]], "default": None})
    event = {"type": "record", "name": "Envelope", "fields": [*sides, {"name": "op", "type": "string"}]}
    return DebeziumAvroFormat(event, registry=form.registry)


def _maxwell_json(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    _check_changes(own, is_key)
    return MaxwellFormat(_ddl(columns), on_error=own.on_error())


def _canal_json(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    _check_changes(own, is_key)
    database, table = own.text("database.include"), own.text("table.include")
    for name, text in (("database.include", database), ("table.include", table)):
        # Flink's is a regular expression.
        if text is not None and not re.fullmatch(r"[\w-]+", text):
            raise refused(f"{own.prefix}{name}", f"expected one name, not a pattern such as {text!r}")
    try:
        return CanalFormat(_ddl(columns), database=database, table=table, on_error=own.on_error())
    except ConfigurationError as error:
        raise refused(f"{own.prefix.removesuffix('canal-json.')}format", str(error)) from None


def _ogg_json(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    _check_changes(own, is_key)
    return OggFormat(_ddl(columns), on_error=own.on_error())


def _check_json(own: _Options) -> None:
    """Takes the options that all formats in JSON have."""
    # Spark reads both.
    if (standard := own.text("timestamp-format.standard")) not in {None, "SQL", "ISO-8601"}:
        raise refused(f"{own.prefix}timestamp-format.standard", f"expected SQL or ISO-8601, not {standard!r}")
    for name in _OF_JSON_SINKS:
        own.refuse(name, _OF_SINKS)


def _check_changes(own: _Options, is_key: bool) -> None:
    """Takes the options that all formats of changes in JSON have."""
    kind = own.prefix.removeprefix("key.").removeprefix("value.").rstrip(".")
    if is_key:
        raise refused("key.format", f"{kind} decodes values: only they are changes; set json")
    _check_json(own)


def _csv(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    del is_key
    own.refuse("write-bigdecimal-in-scientific-notation", _OF_SINKS)
    own.refuse("array-element-delimiter", "a field holds one value: declare it STRING, and split it in the transform")
    characters: dict[str, Any] = {}
    if (delimiter := own.text("field-delimiter")) is not None:
        characters["delimiter"] = _unescaped(f"{own.prefix}field-delimiter", delimiter)
    quote = own.character("quote-character")
    if own.truth("disable-quote-character"):
        if quote is not None:
            raise refused(
                f"{own.prefix}quote-character", f"'{own.prefix}disable-quote-character' is true; set one of them"
            )
        characters["quote"] = None
    elif quote is not None:
        characters["quote"] = quote
    return CsvFormat(
        _ddl(columns),
        **characters,
        escape=own.character("escape-character"),
        null_literal=own.text("null-literal"),
        allow_comments=own.truth("allow-comments"),
        on_error=own.on_error(),
    )


def _raw(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    charset = own.text("charset") or "UTF-8"
    own.refuse("endianness", "numbers can't be read from raw bytes; remove it")
    name, column = next(iter(columns.items()))
    kind = re.split(r"\W", column, maxsplit=1)[0].upper()
    option = f"{own.prefix.removesuffix('raw.')}format"
    if len(columns) != 1:
        raise refused(option, f"raw is for one column, and there are {', '.join(columns)}")
    if kind not in {"BINARY", "STRING"}:
        raise refused(
            option, f"raw reads BINARY and STRING, not {kind}: declare {name} BINARY, and cast it in the transform"
        )
    if not is_key and name != _VALUE:
        raise refused(option, f"a raw value is the column {_VALUE}: declare {_VALUE} {kind} instead of {name}")
    if kind == "BINARY":
        return RawFormat()
    if charset.upper() not in _UTF_8:
        raise refused(
            f"{own.prefix}charset", f"STRING is UTF-8, not {charset!r}: declare BINARY, and decode it in the transform"
        )
    return StringFormat()


def _avro(own: _Options, columns: Mapping[str, str], is_key: bool) -> Format:
    del is_key
    if (encoding := own.text("encoding")) not in {None, "binary"}:
        raise refused(f"{own.prefix}encoding", f"only binary is supported, not {encoding!r}")
    own.refuse("codec", "it is for Avro files; remove it")
    # A record does not contain the unit, and the wrong one would give other times.
    if "schema" not in own.left and (names := times_of(columns)):
        raise refused(
            f"{own.prefix}schema",
            f"missing; it says whether {', '.join(names)} is in milliseconds (as Flink writes it) or microseconds",
        )
    return AvroFormat(_reader(own, columns))


def _avro_confluent(own: _Options, columns: Mapping[str, str], is_key: bool) -> AvroFormat:
    del is_key
    own.refuse("subject", f"{_OF_SINKS}; records name their schemas, and the columns are the reader schema")
    for name in list(own.left):
        if name.startswith("ssl."):
            own.refuse(name, f"Java key stores are not supported: convert it to PEM, and {_IN_CODE}")
        if name.startswith("properties."):
            own.refuse(name, f"it has no equivalent: {_IN_CODE}")
    own.refuse("schema-registry.url", f"its name is now {own.prefix}url")
    url = own.text("url")
    if url is None:
        raise refused(f"{own.prefix}url", "missing; set it to the schema registry's URL")
    login = {**_user(own), **_token(own)}
    try:
        registry = SchemaRegistry(url=url, **login)
    except ConfigurationError as error:
        raise refused(f"{own.prefix}url", str(error)) from None
    return AvroFormat(_reader(own, columns), registry=registry)


def _reader(own: _Options, columns: Mapping[str, str]) -> str | dict[str, Any]:
    """The reader schema: that of the option `schema`, else that of the columns."""
    if own.truth("timestamp_mapping.legacy"):
        raise refused(
            f"{own.prefix}timestamp_mapping.legacy",
            "remove it, and declare TIMESTAMP for Avro's timestamps and TIMESTAMP_NTZ for its local timestamps",
        )
    schema = own.text("schema")
    if schema is None:
        return avro_of(columns)
    try:
        problem = misfit(columns, schema)
    except ConfigurationError as error:
        raise refused(f"{own.prefix}schema", str(error)) from None
    if problem is not None:
        raise refused(f"{own.prefix}schema", f"it does not match the columns: {problem}")
    return schema


def _user(own: _Options) -> dict[str, Any]:
    source, user_info = own.text("basic-auth.credentials-source"), own.text("basic-auth.user-info")
    if source not in {None, "USER_INFO"}:
        raise refused(f"{own.prefix}basic-auth.credentials-source", "only USER_INFO is supported")
    if user_info is None:
        if source is not None:
            raise refused(f"{own.prefix}basic-auth.user-info", "missing; USER_INFO needs it, as user:password")
        return {}
    user, colon, password = user_info.partition(":")
    if not (user and colon):
        raise refused(f"{own.prefix}basic-auth.user-info", "expected user:password")
    return {"username": user, "password": password}


def _token(own: _Options) -> dict[str, Any]:
    source, token = own.text("bearer-auth.credentials-source"), own.text("bearer-auth.token")
    if source not in {None, "STATIC_TOKEN"}:
        raise refused(f"{own.prefix}bearer-auth.credentials-source", f"only STATIC_TOKEN is supported; {_IN_CODE}")
    if token is None and source is not None:
        raise refused(f"{own.prefix}bearer-auth.token", "missing; STATIC_TOKEN needs it")
    return {} if token is None else {"bearer_token": token}


# A format to come is added here, and its options below.
_FORMATS: Mapping[str, Callable[[_Options, Mapping[str, str], bool], Format]] = {
    "raw": _raw,
    "json": _json,
    "csv": _csv,
    "avro": _avro,
    "avro-confluent": _avro_confluent,
    "debezium-json": _debezium_json,
    "debezium-avro-confluent": _debezium_avro,
    "maxwell-json": _maxwell_json,
    "canal-json": _canal_json,
    "ogg-json": _ogg_json,
}
_OWN: Mapping[str, tuple[str, ...]] = {
    "raw": ("charset",),
    "json": ("fail-on-missing-field", "ignore-parse-errors", "timestamp-format.standard"),
    "csv": (
        "field-delimiter",
        "disable-quote-character",
        "quote-character",
        "allow-comments",
        "ignore-parse-errors",
        "escape-character",
        "null-literal",
    ),
    "avro": ("encoding", "schema", "timestamp_mapping.legacy"),
    "avro-confluent": (
        "url",
        "schema",
        "basic-auth.credentials-source",
        "basic-auth.user-info",
        "bearer-auth.credentials-source",
        "bearer-auth.token",
        "timestamp_mapping.legacy",
    ),
    "debezium-json": ("schema-include", "ignore-parse-errors", "timestamp-format.standard"),
    "debezium-avro-confluent": (
        "url",
        "basic-auth.credentials-source",
        "basic-auth.user-info",
        "bearer-auth.credentials-source",
        "bearer-auth.token",
    ),
    "maxwell-json": ("ignore-parse-errors", "timestamp-format.standard"),
    "canal-json": ("database.include", "table.include", "ignore-parse-errors", "timestamp-format.standard"),
    "ogg-json": ("ignore-parse-errors", "timestamp-format.standard"),
}

_ESCAPES = {r"\t": "\t", r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\"": '"', r"\'": "'"}


def _unescaped(option: str, text: str) -> str:
    r"""A character that may be written as in Java, such as `\t` or `\u0001`."""
    if match := re.fullmatch(r"\\u+([0-9a-fA-F]{4})", text):
        return chr(int(match[1], 16))
    found = _ESCAPES.get(text, text)
    if len(found) != 1:
        raise refused(option, f"expected one character, not {text!r}")
    return found
