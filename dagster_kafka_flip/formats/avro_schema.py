"""AvroSchema: a parsed Avro schema, with all that it refers to."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

AvroType: TypeAlias = "str | list[Any] | dict[str, Any]"
"""A type as the Avro specification writes it in JSON: a name, a union, or an object."""

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = ("record", "error", "enum", "fixed")

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

# Spark's longest DECIMAL.
_MOST_DIGITS = 38


@dataclass(frozen=True)
class AvroSchema:
    """An Avro schema that needs nothing else to be read.

    Each named type is defined where it first occurs, and referred to by its full name after that, as Avro's Java
    library wants it.

    Attributes:
        root: The schema's type.
    """

    root: AvroType

    @classmethod
    def of(cls, text: str, references: Iterable[tuple[str, str]] = ()) -> AvroSchema:
        """Parses a schema.

        Args:
            text: The schema as JSON, or the name of a primitive type.
            references: Names and texts of the schemas that it refers to, each before those that use it.

        Raises:
            ConfigurationError: It is no Avro schema, or the package fastavro is missing.
        """
        named: dict[str, Any] = {}
        try:
            for _, referenced in references:
                _parsed(referenced, named)
            root = _defined(_parsed(text, named), named, set())
        except ValueError as error:
            msg = f"invalid Avro schema: {error}"
            raise ConfigurationError(msg) from None
        return cls(root)

    def check_columns(self, what: str) -> None:
        """Checks that the schema can be turned into columns.

        Args:
            what: Name of the schema in an error.

        Raises:
            ConfigurationError: A record holds itself or has no fields, or a decimal has too many digits for Spark.
        """
        if (problem := next(_unreadable(self.root, self.named(), ()), None)) is not None:
            msg = f"{what}: {problem}"
            raise ConfigurationError(msg)

    @property
    def text(self) -> str:
        """The schema as JSON."""
        return json.dumps(self.root, separators=(",", ":"))

    @property
    def fields(self) -> list[dict[str, Any]] | None:
        """The fields of a record; None if the schema is no record."""
        return self.root["fields"] if isinstance(self.root, dict) and self.root["type"] == "record" else None

    @property
    def name(self) -> str | None:
        """The full name of a record, an enum or a fixed."""
        return self.root.get("name") if isinstance(self.root, dict) else None

    def named(self) -> dict[str, dict[str, Any]]:
        """The definitions of all named types by full name."""
        found: dict[str, dict[str, Any]] = {}
        _collect(self.root, found)
        return found

    def comments(self) -> dict[str, str]:
        """The `doc` of each field at the record's top that has one."""
        return {field["name"]: field["doc"] for field in self.fields or () if field.get("doc")}


def resolved(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> AvroType:
    """A type, or the definition if it is the name of one.

    Args:
        avro_type: The type.
        named: Definitions by full name.
    """
    return named.get(avro_type, avro_type) if isinstance(avro_type, str) else avro_type


def kind(avro_type: AvroType) -> str:
    """A type's kind: that of a primitive, `record`, `enum`, `fixed`, `array`, `map` or `union`.

    Args:
        avro_type: The type, no name of another.
    """
    if isinstance(avro_type, list):
        return "union"
    found = avro_type if isinstance(avro_type, str) else cast("str", avro_type["type"])
    return "record" if found == "error" else found


def _parsed(text: str, named: dict[str, Any]) -> AvroType:
    try:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema
    except ImportError:
        msg = "Avro needs the package fastavro: pip install 'dagster-kafka-flip[registry]'"
        raise ConfigurationError(msg) from None
    try:
        plain = json.loads(text)
    except ValueError:
        # A primitive's name may stand without quotes.
        if text.strip() not in _PRIMITIVES:
            raise
        plain = text.strip()
    try:
        parsed = cast("AvroType", parse_schema(plain, named_schemas=named, _write_hint=False))
    except UnknownType as error:
        msg = f"it names the type {error.name!r}, which is not defined"
        raise ValueError(msg) from None
    except SchemaParseException as error:
        raise ValueError(str(error)) from None
    except (AttributeError, KeyError, TypeError) as error:
        # What is no type at all, such as a number or a record without fields.
        msg = f"a part of it is malformed ({type(error).__name__}: {error})"
        raise ValueError(msg) from None
    return parsed


def _defined(avro_type: AvroType, named: Mapping[str, Any], done: set[str]) -> AvroType:
    """The type with each named type defined where it first occurs, and only there."""
    if isinstance(avro_type, list):
        return [_defined(each, named, done) for each in avro_type]
    if isinstance(avro_type, str):
        if avro_type in _PRIMITIVES or avro_type in done:
            return avro_type
        return _defined(named[avro_type], named, done)
    if isinstance(avro_type["type"], (dict, list)):
        return _defined(avro_type["type"], named, done)
    plain = {name: value for name, value in avro_type.items() if not name.startswith("__")}
    if plain["type"] in _NAMED:
        if plain["name"] in done:
            return plain["name"]
        done.add(plain["name"])
    for name in ("items", "values"):
        if name in plain:
            plain[name] = _defined(plain[name], named, done)
    if "fields" in plain:
        plain["fields"] = [_defined_field(field, named, done) for field in plain["fields"]]
    return plain


def _defined_field(field: dict[str, Any], named: Mapping[str, Any], done: set[str]) -> dict[str, Any]:
    if not _NAME.fullmatch(field["name"]):
        msg = f"{field['name']!r} is no name for a field: Avro's have letters, digits and _, and no digit first"
        raise ValueError(msg)
    return {**field, "type": _defined(field["type"], named, done)}


def inside(avro_type: AvroType) -> Iterator[tuple[str, AvroType]]:
    """The types inside of a type, each with what it adds to a path.

    Args:
        avro_type: The type, no name of another.
    """
    if isinstance(avro_type, list):
        yield from (("", each) for each in avro_type)
    elif isinstance(avro_type, dict):
        if "fields" in avro_type:
            yield from ((f".{field['name']}", field["type"]) for field in avro_type["fields"])
        elif "items" in avro_type:
            yield "[]", avro_type["items"]
        elif "values" in avro_type:
            yield "{}", avro_type["values"]


def _collect(avro_type: AvroType, found: dict[str, dict[str, Any]]) -> None:
    if isinstance(avro_type, dict) and avro_type["type"] in _NAMED:
        found[avro_type["name"]] = avro_type
    for _, inner in inside(avro_type):
        _collect(inner, found)


def _unreadable(avro_type: AvroType, named: Mapping[str, dict[str, Any]], around: tuple[str, ...]) -> Iterator[str]:
    """What Spark can't turn into columns."""
    if isinstance(avro_type, str) and avro_type in around:
        yield (
            f"the record {avro_type} holds itself, and columns can't. Give a reader schema without that field "
            "(schema=), or land the bytes with RawFormat"
        )
        return
    defined = resolved(avro_type, named)
    if isinstance(defined, dict):
        if defined["type"] in _NAMED:
            around = (*around, defined["name"])
        if kind(defined) == "record" and not defined["fields"]:
            yield f"the record {defined['name']} has no fields, and a column needs one"
        if defined.get("logicalType") == "decimal" and defined.get("precision", 0) > _MOST_DIGITS:
            yield (
                f"a decimal has {defined['precision']} digits, and Spark's DECIMAL {_MOST_DIGITS} at most. Give a "
                "reader schema with fewer digits, or without the logical type to land its bytes (schema=)"
            )
    for _, inner in inside(defined):
        yield from _unreadable(inner, named, around)
