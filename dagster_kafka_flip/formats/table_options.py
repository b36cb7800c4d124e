"""The formats of keys and values, from the options and columns of Flink's Kafka table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_columns import misfit, reader_of
from dagster_kafka_flip.formats.canal import CanalFormat
from dagster_kafka_flip.formats.column_types import ColumnType, parts_of
from dagster_kafka_flip.formats.csv import CsvFormat
from dagster_kafka_flip.formats.ddl import fields_of, struct_of
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

    from dagster_kafka_flip.formats.format import Format

    Option = Callable[[str, str], dict[str, Any]] | str

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
# The formats of changes, and what keys beside them are in.
_CHANGES = {
    **dict.fromkeys(("debezium-json", "maxwell-json", "canal-json", "ogg-json"), "json"),
    "debezium-avro-confluent": "avro-confluent",
}
_IN_CODE = "set value_format or key_format to AvroFormat(registry=SchemaRegistry(...)) instead"
_OF_SINKS = "it is only for writing to Kafka; remove it"


def is_of_formats(name: str) -> bool:
    """Whether an option is about formats or columns, and not about what is read."""
    return name == "format" or name.startswith(("key.", "value.", *(f"{kind}." for kind in (*_FORMATS, *_NO_FORMATS))))


def formats_of(options: Mapping[str, str], schema: str) -> tuple[Format | None, Format]:
    """The formats of keys (None if the table has no key) and of values. The DDL has no metadata columns."""
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
        known = [*_NAMES, *_options_of(value_prefix, value_kind), *_options_of("key.", key_kind)]
        raise refused(name, f"unknown; {near_names(name, known)}")
    return key_format, value_format


def _options_of(side: str, kind: str | None) -> list[str]:
    """The names of the options that a format takes."""
    options = {} if kind is None else _FORMATS[kind][1]
    return [f"{side}{kind}.{name}" for name, read in options.items() if not isinstance(read, str)]


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


@dataclass(frozen=True)
class _Made:
    """What a format is made of.

    Attributes:
        option: The option that names the format.
        prefix: Of the names of its own options, such as `value.json.`.
        columns: The DDL after the name, by name.
        given: What its own options give.
    """

    option: str
    prefix: str
    columns: Mapping[str, str]
    given: dict[str, Any]

    @property
    def ddl(self) -> str:
        quoted = {name.replace("`", "``"): column for name, column in self.columns.items()}
        return ", ".join(f"`{name}` {column}" for name, column in quoted.items())

    @property
    def tree(self) -> ColumnType:
        return struct_of(self.ddl)

    @property
    def times(self) -> str:
        """The columns that are times. Their unit is not in the DDL, and the wrong one changes values."""
        times = {"TIMESTAMP_LTZ", "TIMESTAMP_NTZ"}
        return ", ".join(path for path, field in parts_of(self.tree) if field.type.name in times)

    def refused(self, name: str, why: str) -> ConfigurationError:
        return refused(self.prefix + name, why)


def _format(option: str, kind: str, side: str, given: dict[str, str], columns: Mapping[str, str]) -> Format:
    if kind in _NO_FORMATS:
        raise refused(option, f"{kind}: {_NO_FORMATS[kind]}")
    if kind not in _FORMATS:
        raise refused(option, f"unknown format {kind!r}; valid formats: {', '.join(_FORMATS)}")
    if side == "key." and kind in _CHANGES:
        raise refused(option, f"{kind} decodes values: only they are changes; set {_CHANGES[kind]}")
    make, options = _FORMATS[kind]
    prefix = f"{side}{kind}."
    taken: dict[str, Any] = {}
    for option_name in [each for each in given if each.startswith(prefix)]:
        name = option_name.removeprefix(prefix)
        read = options.get(name, options.get(f"{name.partition('.')[0]}."))
        if isinstance(read, str):
            raise refused(option_name, read.format(prefix=prefix))
        if read is not None:
            found = read(option_name, given.pop(option_name))
            if found.keys() & taken.keys():
                raise refused(option_name, "another option sets the same; remove one of them")
            taken |= found
    cut = given.get("key.fields-prefix", "") if side == "key." else ""
    return make(_Made(option, prefix, {name.removeprefix(cut): column for name, column in columns.items()}, taken))


# --- what options give ---------------------------------------------------------------------------------------------


def _gives(argument: str, read: Callable[[str, str], Any] = lambda _, text: text) -> Option:
    return lambda name, text: {argument: read(name, text)}


def _changes_nothing(*texts: str) -> Option:
    """An option whose texts are all the same here."""

    def read(name: str, text: str) -> dict[str, Any]:
        if text not in texts:
            raise refused(name, f"expected {' or '.join(texts)}, not {text!r}")
        return {}

    return read


def _either(name: str, text: str) -> dict[str, Any]:
    """An option that changes nothing, whether it is true or false."""
    truth(name, text)
    return {}


def _is_false(why: str) -> Option:
    def read(name: str, text: str) -> dict[str, Any]:
        if truth(name, text):
            raise refused(name, why)
        return {}

    return read


def _on_error(name: str, text: str) -> str:
    return "null" if truth(name, text) else "fail"


def _character(name: str, text: str) -> str:
    if len(text) != 1:
        raise refused(name, f"expected one character, not {text!r}")
    return text


_ESCAPES = {r"\t": "\t", r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\"": '"', r"\'": "'"}


def _unescaped(name: str, text: str) -> str:
    r"""A character that may be written as in Java, such as `\t` or `\u0001`."""
    if match := re.fullmatch(r"\\u+([0-9a-fA-F]{4})", text):
        return chr(int(match[1], 16))
    return _character(name, _ESCAPES.get(text, text))


def _one_name(name: str, text: str) -> str:
    # Flink's is a regular expression.
    if not re.fullmatch(r"[\w-]+", text):
        raise refused(name, f"expected one name, not a pattern such as {text!r}")
    return text


def _unquoted(name: str, text: str) -> dict[str, Any]:
    return {"quote": None} if truth(name, text) else {}


def _login(name: str, text: str) -> dict[str, Any]:
    user, colon, password = text.partition(":")
    if not (user and colon):
        raise refused(name, "expected user:password")
    return {"username": user, "password": password}


# --- what formats are made of --------------------------------------------------------------------------------------


def _of_ddl(form: Callable[..., Format]) -> Callable[[_Made], Format]:
    return lambda made: form(made.ddl, **made.given)


def _raw(made: _Made) -> Format:
    name, column = next(iter(made.columns.items()))
    kind = re.split(r"\W", column, maxsplit=1)[0].upper()
    if len(made.columns) != 1:
        raise refused(made.option, f"raw is for one column, and there are {', '.join(made.columns)}")
    if kind not in {"BINARY", "STRING"}:
        raise refused(
            made.option, f"raw reads BINARY and STRING, not {kind}: declare {name} BINARY, and cast it in the transform"
        )
    if made.option != "key.format" and name != _VALUE:
        raise refused(made.option, f"a raw value is the column {_VALUE}: declare {_VALUE} {kind} instead of {name}")
    if kind == "BINARY":
        return RawFormat()
    charset = made.given.get("charset", "UTF-8")
    if charset.upper() not in _UTF_8:
        raise made.refused(
            "charset", f"STRING is UTF-8, not {charset!r}: declare BINARY, and decode it in the transform"
        )
    return StringFormat()


def _avro(made: _Made) -> Format:
    if "schema" not in made.given and made.times:
        raise made.refused(
            "schema", f"missing; it says whether {made.times} is in milliseconds (as Flink writes it) or microseconds"
        )
    return AvroFormat(_reader(made))


def _avro_confluent(made: _Made) -> Format:
    return AvroFormat(_reader(made), registry=_registry(made))


def _debezium_avro(made: _Made) -> Format:
    if made.times:
        raise refused(
            made.option, f"the unit of {made.times} is not known; set value_format to DebeziumAvroFormat(registry=...)"
        )
    row: Any = reader_of(made.tree)
    sides = [{"name": "before", "type": ["null", row], "default": None}]
    sides.append({"name": "after", "type": ["null", row["name"]], "default": None})
    event = {"type": "record", "name": "Envelope", "fields": [*sides, {"name": "op", "type": "string"}]}
    return DebeziumAvroFormat(event, registry=_registry(made))


def _reader(made: _Made) -> str | dict[str, Any]:
    """The reader schema: that of the option `schema`, else that of the columns."""
    schema = made.given.get("schema")
    if schema is None:
        return reader_of(made.tree)
    try:
        problem = misfit(made.tree, schema)
    except ConfigurationError as error:
        raise made.refused("schema", str(error)) from None
    if problem is not None:
        raise made.refused("schema", f"it does not match the columns: {problem}")
    return schema


def _registry(made: _Made) -> SchemaRegistry:
    given = {name: value for name, value in made.given.items() if name != "schema"}
    if "url" not in given:
        raise made.refused("url", "missing; set it to the schema registry's URL")
    try:
        return SchemaRegistry(**given)
    except ConfigurationError as error:
        raise made.refused("url", str(error)) from None


_LENIENT: Mapping[str, Option] = {"ignore-parse-errors": _gives("on_error", _on_error)}
_IN_JSON: Mapping[str, Option] = {
    **_LENIENT,
    "timestamp-format.standard": _changes_nothing("SQL", "ISO-8601"),
    "map-null-key.mode": _OF_SINKS,
    "map-null-key.literal": _OF_SINKS,
    "encode.decimal-as-plain-number": _OF_SINKS,
    "encode.ignore-null-fields": _OF_SINKS,
}
_IN_AVRO: Mapping[str, Option] = {
    "schema": _gives("schema"),
    "timestamp_mapping.legacy": _is_false(
        "remove it, and declare TIMESTAMP for Avro's timestamps and TIMESTAMP_NTZ for its local timestamps"
    ),
}
_OF_REGISTRY: Mapping[str, Option] = {
    **_IN_AVRO,
    "url": _gives("url"),
    "basic-auth.credentials-source": _changes_nothing("USER_INFO"),
    "basic-auth.user-info": _login,
    "bearer-auth.credentials-source": _changes_nothing("STATIC_TOKEN"),
    "bearer-auth.token": _gives("bearer_token"),
    "subject": f"{_OF_SINKS}; records name their schemas, and the columns are the reader schema",
    "schema-registry.url": "its name is now {prefix}url",
    "ssl.": f"Java key stores are not supported: convert it to PEM, and {_IN_CODE}",
    "properties.": f"it has no equivalent: {_IN_CODE}",
}

_FORMATS: Mapping[str, tuple[Callable[[_Made], Format], Mapping[str, Option]]] = {
    "raw": (
        _raw,
        {"charset": _gives("charset"), "endianness": "numbers can't be read from raw bytes; remove it"},
    ),
    "json": (
        _of_ddl(JsonFormat),
        {
            **_IN_JSON,
            "fail-on-missing-field": _is_false("remove it, and declare such columns NOT NULL"),
            "decode.json-parser.enabled": "there is only one parser; remove it",
        },
    ),
    "csv": (
        _of_ddl(CsvFormat),
        {
            **_LENIENT,
            "field-delimiter": _gives("delimiter", _unescaped),
            "quote-character": _gives("quote", _character),
            "disable-quote-character": _unquoted,
            "escape-character": _gives("escape", _character),
            "null-literal": _gives("null_literal"),
            "allow-comments": _gives("allow_comments", truth),
            "array-element-delimiter": "a field holds one value: declare it STRING, and split it in the transform",
            "write-bigdecimal-in-scientific-notation": _OF_SINKS,
        },
    ),
    "avro": (
        _avro,
        {**_IN_AVRO, "encoding": _changes_nothing("binary"), "codec": "it is for Avro files; remove it"},
    ),
    "avro-confluent": (_avro_confluent, _OF_REGISTRY),
    # Each record shows whether it has its schema.
    "debezium-json": (_of_ddl(DebeziumFormat), {**_IN_JSON, "schema-include": _either}),
    "debezium-avro-confluent": (
        _debezium_avro,
        {
            **_OF_REGISTRY,
            "schema": (
                "it is the schema of the whole event; set value_format to DebeziumAvroFormat(schema, ...) instead"
            ),
        },
    ),
    "maxwell-json": (_of_ddl(MaxwellFormat), _IN_JSON),
    "canal-json": (
        _of_ddl(CanalFormat),
        {
            **_IN_JSON,
            "database.include": _gives("database", _one_name),
            "table.include": _gives("table", _one_name),
        },
    ),
    "ogg-json": (_of_ddl(OggFormat), _IN_JSON),
}
