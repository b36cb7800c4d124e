"""AvroSchema: a parsed Avro schema, with all that it refers to."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import MOST_LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AvroType: TypeAlias = "str | list[Any] | dict[str, Any]"
"""A type as the Avro specification writes it in JSON: a name, a union, or an object."""

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = ("record", "error", "enum", "fixed")

ANY_NAME = "dagster_kafka_flip_any_name"
"""Marks a reader's record that records of every name are read as: one that was made of columns, and has no name."""

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

_TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"

# Spark's longest DECIMAL.
_MOST_DIGITS = 38

# How the numbers are written, as `struct` names it.
_NUMBERS = {"int": "<i", "long": "<q", "float": "<f", "double": "<d"}

# The types of the defaults that Avro's library may take for a union's branch. It takes all for those that are not here.
_TAKEN: Mapping[str, set[type]] = {
    "null": {type(None)},
    "boolean": {bool},
    **{each: {int, float} for each in _NUMBERS},
    **{each: {str} for each in ("string", "bytes", "enum", "fixed")},
}


def declared_text(declared: Any, owner: str) -> str:
    """The text of a schema that the user gave as text or as a Python object to a class, the owner."""
    if isinstance(declared, (Mapping, list)):
        try:
            return json.dumps(declared)
        except RecursionError:
            raise ConfigurationError(f"invalid Avro schema: {_TOO_DEEP}") from None
    if not isinstance(declared, str):
        raise ConfigurationError(f"an {owner}'s schema is JSON text or a Python object, not {type(declared).__name__}")
    return declared


@dataclass(frozen=True)
class AvroSchema:
    """An Avro schema that needs nothing else to be read.

    Each named type is defined where it first occurs, and referred to by its full name after that, as Avro's Java
    library wants it.

    Attributes:
        root: The schema's type.
        text: The schema as JSON.
    """

    root: AvroType
    text: str

    @classmethod
    def of(cls, text: str, references: Iterable[tuple[str, str]] = ()) -> AvroSchema:
        """Parses a schema, JSON or a primitive type's name; of the references each comes before those that use it."""
        named: dict[str, Any] = {}
        try:
            for _, referenced in references:
                _parsed(referenced, named)
            root = _defined(_parsed(text, named), named, set())
            return cls(root, json.dumps(root, separators=(",", ":")))
        except (ValueError, OverflowError) as error:
            raise ConfigurationError(f"invalid Avro schema: {error}") from None
        except RecursionError:
            raise ConfigurationError(f"invalid Avro schema: {_TOO_DEEP}") from None

    def check_columns(self, what: str) -> None:
        """Checks that the schema can be turned into columns; `what` is its name in an error."""
        problems = chain(_always_null(self.root), _unreadable(self.root, self.named(), (), 0))
        if (problem := next(problems, None)) is not None:
            raise ConfigurationError(f"{what}: {problem}")

    @property
    def fields(self) -> list[dict[str, Any]] | None:
        """The fields of a record; None if the schema is not a record."""
        return self.root["fields"] if isinstance(self.root, dict) and kind(self.root) == "record" else None

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
    """A type, or the definition if it is the full name of one."""
    return named.get(avro_type, avro_type) if isinstance(avro_type, str) else avro_type


def kind(avro_type: AvroType) -> str:
    """The kind of a type that is not a name: a primitive, `record`, `enum`, `fixed`, `array`, `map` or `union`."""
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
        plain = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError:
        # A primitive's name may be unquoted.
        if text.strip() not in _PRIMITIVES:
            raise
        plain = text.strip()
    try:
        parsed = cast("AvroType", parse_schema(plain, named_schemas=named, _write_hint=False))
    except UnknownType as error:
        raise ValueError(f"it uses the type {error.name!r}, which is not defined") from None
    except SchemaParseException as error:
        raise ValueError(str(error)) from None
    except (AttributeError, KeyError, TypeError) as error:
        # Not a type at all, such as a number or a record without fields.
        raise ValueError(f"a part of it is malformed ({type(error).__name__}: {error})") from None
    return parsed


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _defined(avro_type: AvroType, named: Mapping[str, Any], done: set[str], space: str = "") -> AvroType:
    """The type with each named type defined where it first occurs, and only there, inside of a namespace."""
    if isinstance(avro_type, list):
        _check_union(avro_type)
        return [_defined(each, named, done, space) for each in avro_type]
    if isinstance(avro_type, str):
        if avro_type in _PRIMITIVES or avro_type in done:
            return avro_type
        return _defined(named[avro_type], named, done, space)
    if isinstance(avro_type["type"], (dict, list)):
        return _defined(avro_type["type"], named, done, space)
    plain = {name: value for name, value in avro_type.items() if not name.startswith("__")}
    if plain["type"] in _NAMED:
        _check_name(plain["name"])
        if plain["name"] in done:
            return plain["name"]
        done.add(plain["name"])
        own = plain["name"].rpartition(".")[0]
        # Else a name without one would be a name of the namespace around it.
        plain |= {"namespace": ""} if space and not own else {}
        space = own
    for name in ("items", "values"):
        if name in plain:
            plain[name] = _defined(plain[name], named, done, space)
    if "fields" in plain:
        plain["fields"] = [_defined_field(field, named, done, space) for field in plain["fields"]]
    return plain


def _check_union(union: list[Any]) -> None:
    """Checks what Avro's Java library refuses."""
    seen: set[str] = set()
    for branch in union:
        if isinstance(branch, list):
            raise ValueError("a union is directly inside another union")  # noqa: TRY004 - the schema is wrong, and not the call
        name = branch if isinstance(branch, str) else branch["name"] if branch["type"] in _NAMED else branch["type"]
        if name in seen:
            raise ValueError(f"a union has {name} twice")
        seen.add(name)


def _check_name(name: str) -> None:
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        msg = f"invalid type name {name!r}: between dots, use letters, digits and _, without a leading digit"
        raise ValueError(msg)


def _defined_field(field: dict[str, Any], named: Mapping[str, Any], done: set[str], space: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field["name"]):
        msg = f"invalid field name {field['name']!r}: use letters, digits and _, without a leading digit"
        raise ValueError(msg)
    return {**field, "type": _defined(field["type"], named, done, space)}


def inside(avro_type: AvroType) -> Iterator[tuple[str, AvroType]]:
    """The types inside a type that is not a name, each with what it adds to a path."""
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


def _unreadable(
    avro_type: AvroType, named: Mapping[str, dict[str, Any]], around: tuple[str, ...], levels: int
) -> Iterator[str]:
    """What Spark can't turn into columns."""
    if levels > MOST_LEVELS:
        yield f"{_TOO_DEEP}. Give a reader schema without its innermost fields (schema=)"
        return
    if isinstance(avro_type, str) and avro_type in around:
        yield (
            f"the record {avro_type} contains itself, and a column can't. Give a reader schema without that field "
            "(schema=), or land the bytes with RawFormat"
        )
        return
    defined = resolved(avro_type, named)
    if isinstance(defined, dict):
        if defined["type"] in _NAMED:
            around = (*around, defined["name"])
        if kind(defined) == "record":
            yield from _unreadable_fields(defined, named)
        if defined.get("logicalType") == "decimal" and defined.get("precision", 0) > _MOST_DIGITS:
            yield (
                f"a decimal has {defined['precision']} digits; Spark's DECIMAL has at most {_MOST_DIGITS}. Give a "
                "reader schema with fewer digits, or without the logical type to land its bytes (schema=)"
            )
    if isinstance(defined, list):
        yield from _unreadable_union(defined)
    for _, inner in inside(defined):
        if not isinstance(defined, list):
            yield from _always_null(inner)
        # A union is in its place, not a level.
        yield from _unreadable(inner, named, around, levels + (not isinstance(defined, list)))


def _always_null(avro_type: AvroType) -> Iterator[str]:
    if avro_type in ("null", {"type": "null"}, ["null"], []):
        yield "a part of it is always null, but a column needs a type. Give a reader schema without it (schema=)"


def _unreadable_fields(record: dict[str, Any], named: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    if not record["fields"]:
        yield f"the record {record['name']} has no fields, but a STRUCT needs one"
    seen: set[str] = set()
    for field in record["fields"]:
        if field["name"].lower() in seen:
            yield (
                f"the record {record['name']} has {field['name']} twice; names in Spark are not "
                "case-sensitive. Give a reader schema that renames one, with an alias (schema=)"
            )
        seen.add(field["name"].lower())
        is_null = field.get("default", 0) is None and "null" in field["type"]
        if "default" in field and not is_null and not _fits(field["default"], field["type"], named):
            yield (
                f"the default of {field['name']} in the record {record['name']} does not fit its type. Give a reader "
                "schema with another default (schema=)"
            )


def _fits(default: Any, avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> bool:
    """Whether Avro's library takes a default as it is: it cuts numbers, and fills up bytes."""
    found: Any = resolved(avro_type, named)
    what = kind(found)
    if what == "union":
        taken = (each for each in found if type(default) in _TAKEN.get(kind(resolved(each, named)), {type(default)}))
        return any(_fits(default, each, named) for each in islice(taken, 1))
    if what == "record":
        return isinstance(default, dict) and all(
            _fits(default.get(field["name"], field.get("default", ...)), field["type"], named)
            for field in found["fields"]
        )
    if what == "array":
        return isinstance(default, list) and all(_fits(each, found["items"], named) for each in default)
    if what == "map":
        return isinstance(default, dict) and all(_fits(each, found["values"], named) for each in default.values())
    if what == "enum":
        return default in found["symbols"]
    return _fits_plain(default, what, found)


def _fits_plain(default: Any, what: str, given: Any) -> bool:
    try:
        if what in {"float", "double"}:
            # It may be "NaN".
            struct.pack(_NUMBERS[what], float(default))
            return True
        if what in _NUMBERS:
            struct.pack(_NUMBERS[what], default)
        elif what == "string":
            default.encode()
        elif what in {"bytes", "fixed"}:
            size = len(default.encode("latin-1"))
            return what == "bytes" or size == given["size"]
    except (AttributeError, OverflowError, TypeError, ValueError, struct.error):
        return False
    return type(default) in _TAKEN[what]


def _unreadable_union(union: list[Any]) -> Iterator[str]:
    seen: set[str] = set()
    for branch in union:
        name = member_name(branch)
        if name.lower() in seen:
            yield f"two branches of a union would be the column {name}. Give a reader schema with one (schema=)"
        seen.add(name.lower())


def member_name(branch: AvroType) -> str:
    """The field that Spark makes of a union's branch: named by its type, whatever the order of branches."""
    named = branch["name"] if isinstance(branch, dict) and branch["type"] in _NAMED else branch
    name = named if isinstance(named, str) else kind(named)
    return f"member_{name.rpartition('.')[2]}"
