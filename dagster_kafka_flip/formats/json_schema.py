"""Turns a JSON Schema into columns: drafts 4 to 2020-12, without Spark.

A schema says which values are valid. Columns need one type for each field, so this module derives what the values look
like: a shape. Where schemas are combined, shapes are: `allOf` leaves what both allow, `oneOf` and `anyOf` what any
allows. Whether values are valid (`minLength`, `pattern`, `not`) is not looked at.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import urldefrag

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import ColumnType
from dagster_kafka_flip.formats.json_shapes import ANY, NEVER, NULL, ArrayOf, Members, Shape, join, meet, struct_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

Resolver: TypeAlias = Any
"""One of the package referencing, whose own type is not public."""

# References can be used several times, each of which makes columns.
_MOST_PARTS = 20_000

_TEXTS = {"date": "DATE", "date-time": "TIMESTAMP_LTZ"}

# Kafka Connect's types of integers and floats.
_WHOLE = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT"}
_BROKEN = {"float32": "FLOAT"}

# Kafka Connect's name for decimals, and for the number of their digits.
DECIMAL, PRECISION = "org.apache.kafka.connect.data.Decimal", "connect.decimal.precision"
# Under the same schema, Kafka Connect's converter writes Base64 by default, and some Base64 is a number too. The sink
# says that it writes numbers, in the words of the converter's own option.
HOW_WRITTEN, AS_NUMBERS = "decimal.format", "NUMERIC"
_MOST_DIGITS = 38

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ABOUT_OBJECTS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
_ABOUT_ARRAYS = frozenset({"items", "prefixItems", "additionalItems"})


def columns_of(text: str, references: Iterable[tuple[str, str]] = (), *, what: str) -> str:
    """The columns of the objects that a JSON Schema describes, as DDL; `what` is its name in an error."""
    struct = _checked(lambda: struct_of(_root(text, references)), what)
    return ", ".join(field.ddl() for field in struct.fields)


def members_of(text: str, references: Iterable[tuple[str, str]] = (), *, what: str) -> Members:
    """The shape of the objects that a JSON Schema describes."""
    return _checked(lambda: _root(text, references), what)


def _checked(read: Callable[[], T], what: str) -> T:
    try:
        return read()
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    raise ConfigurationError(f"{what}: {problem}")


def _root(text: str, references: Iterable[tuple[str, str]]) -> Members:
    root = _parsed(text)
    found = References(root, {name: _parsed(referenced) for name, referenced in references})
    kind = _Reading(found).referred(root, _Place(found.root)).kind
    if not isinstance(kind, Members) or not kind.fields:
        raise ValueError(
            "its values can't be columns: it is not an object with properties. Give the columns as DDL (schema=), or "
            "land the text with StringFormat"
        )
    return kind


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None


class _Place(NamedTuple):
    """A field, the schemas that it is a part of, and what resolves its references."""

    resolver: Resolver
    path: str = ""
    around: tuple[int, ...] = ()

    def deeper(self, path: str) -> _Place:
        return self._replace(path=f"{self.path}{path}".lstrip("."))


class _Reading:
    """Reads the shape of values from a schema."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._parts = 0

    def shape(self, part: Any, at: _Place) -> Shape:
        """The shape of the values of a part of a schema."""
        return self.referred(part, at._replace(resolver=self._references.inside(part, at.resolver)))

    def referred(self, schema: Any, at: _Place) -> Shape:
        """The shape of the values of a schema that was found by its address."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise ValueError(f"it has more than {_MOST_PARTS} parts. Give the columns as DDL (schema=)")
        if isinstance(schema, bool):
            return ANY if schema else NEVER
        if not isinstance(schema, dict):
            raise _malformed(at.path, f"a schema must be an object, true or false, not {_short(schema)}")
        if id(schema) in at.around:
            raise ValueError(
                f"{at.path or 'the root'} contains itself, and a column can't. Give the columns as DDL (schema=): a "
                "STRING takes any JSON as its text"
            )
        schema = cast("dict[str, Any]", schema)
        at = at._replace(around=(*at.around, id(schema)))
        shape = meet(self._own(schema, at), self._referred(schema, at))
        for part in _list(schema, "allOf", at.path):
            shape = meet(shape, self.shape(part, at))
        for branches in self._choices(schema, at):
            shape = reduce(join, (meet(shape, branch) for branch in branches), NEVER).commented(shape.comment)
        return shape

    def _referred(self, schema: Mapping[str, Any], at: _Place) -> Shape:
        for name in ("$dynamicRef", "$recursiveRef"):
            if name in schema:
                raise _malformed(at.path, f"{name} is not supported. Give the columns as DDL (schema=)")
        if "$ref" not in schema:
            return ANY
        referred, there = self._references.find(schema["$ref"], at.resolver, at.path)
        return self.referred(referred, at._replace(resolver=there))

    def _choices(self, schema: Mapping[str, Any], at: _Place) -> Iterator[list[Shape]]:
        """Yields lists of alternative shapes; a value has one of each list."""
        for name in ("oneOf", "anyOf"):
            if name in schema:
                yield [self.shape(branch, at) for branch in _list(schema, name, at.path)]
        if "if" in schema:
            yield [self.shape(schema.get(name, True), at) for name in ("then", "else")]
        for name in ("dependentSchemas", "dependencies"):
            for part in _object(schema, name, at.path).values():
                # A list has names of fields.
                if not isinstance(part, list):
                    yield [ANY, self.shape(part, at)]

    def _own(self, schema: Mapping[str, Any], at: _Place) -> Shape:
        """The shape that the schema's own keywords give."""
        comment = schema.get("description")
        comment = comment if isinstance(comment, str) and comment else None
        if "type" in schema:
            types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            for each in types:
                if each not in _TYPES:
                    raise _malformed(at.path, f"unknown type {_short(each)}")
            return reduce(join, (self._typed(each, schema, at) for each in types), NEVER).commented(comment)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else _list(schema, "enum", at.path)
            return reduce(join, map(_shape_of_value, values), NEVER).commented(comment)
        # Without a type, these are only about the objects and the arrays among the values.
        hints = [
            self._typed(name, schema, at)
            for name, about in (("object", _ABOUT_OBJECTS), ("array", _ABOUT_ARRAYS))
            if about & schema.keys()
        ]
        if len(hints) == 1:
            return Shape(hints[0].kind, is_null=True, is_hint=True, comment=comment)
        return ANY.commented(comment)

    def _typed(self, name: str, schema: Mapping[str, Any], at: _Place) -> Shape:
        """The shape of the values of one type."""
        if name == "array":
            return Shape(ArrayOf(self._element(schema, at.deeper("[]"))))
        if name == "object":
            return Shape(self._members(schema, at))
        return NULL if name == "null" else Shape(_scalar(name, schema))

    def _element(self, schema: Mapping[str, Any], at: _Place) -> Shape:
        listed, rest = _list(schema, "prefixItems", at.path), schema.get("items", True)
        if isinstance(rest, list):
            listed, rest = cast("list[Any]", rest), schema.get("additionalItems", True)
        return reduce(join, (self.shape(each, at) for each in (*listed, rest)))

    def _members(self, schema: Mapping[str, Any], at: _Place) -> Members:
        required = _list(schema, "required", at.path)
        for name in required:
            if not isinstance(name, str):
                raise _malformed(at.path, f"required must list names of fields, not {_short(name)}")
        fields: dict[str, Shape] = {}
        for name, part in _object(schema, "properties", at.path).items():
            _check_name(name, at.path)
            fields[name] = self.shape(part, at.deeper(f".{name}"))
        others = schema.get("additionalProperties", True)
        values = None
        # Next to properties, other fields are left out; with patterns, there are several kinds of them.
        if not isinstance(others, bool) and not fields and "patternProperties" not in schema:
            values = self.shape(others, at.deeper("{}"))
        is_closed = others is False and "patternProperties" not in schema
        return Members(fields, frozenset(required), values, is_closed=is_closed)


def _scalar(name: str, schema: Mapping[str, Any]) -> ColumnType:
    if schema.get("connect.type") == "bytes":
        if name == "string" and schema.get("contentEncoding") == "base64":
            return ColumnType("BINARY")
        if name == "number" and schema.get("title") == DECIMAL:
            return _decimal(schema.get("connect.parameters")) or ColumnType("DOUBLE")
    found = schema.get("format" if name == "string" else "connect.type")
    found = found if isinstance(found, str) else ""
    if name == "string":
        return ColumnType(_TEXTS.get(found, "STRING"))
    if name == "integer":
        return ColumnType(_WHOLE.get(found, "BIGINT"))
    return ColumnType("BOOLEAN" if name == "boolean" else _BROKEN.get(found, "DOUBLE"))


def _decimal(parameters: Any) -> ColumnType | None:
    """The DECIMAL of a sink's parameters; None for those of Kafka Connect, or if Spark has none with so many digits."""
    try:
        if parameters[HOW_WRITTEN] != AS_NUMBERS:
            return None
        precision, scale = int(parameters[PRECISION]), int(parameters["scale"])
    except (KeyError, TypeError, ValueError):
        return None
    fits = 0 <= scale <= precision <= _MOST_DIGITS
    return ColumnType("DECIMAL", digits=(precision, scale)) if fits else None


def _shape_of_value(value: Any) -> Shape:
    if value is None:
        return NULL
    kinds: Mapping[type, str] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "STRING"}
    found = kinds.get(type(value))
    return ANY if found is None else Shape(ColumnType(found))


def _check_name(name: str, path: str) -> None:
    if not name:
        raise _malformed(
            path, "a property has an empty name, which a column can't have. Give the columns as DDL (schema=)"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _malformed(path, "a property's name has half of a surrogate pair") from None


def _list(schema: Mapping[str, Any], name: str, path: str) -> list[Any]:
    found = schema.get(name, [])
    if not isinstance(found, list):
        raise _malformed(path, f"{name} must be a list, not {_short(found)}")
    return cast("list[Any]", found)


def _object(schema: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    found = schema.get(name, {})
    if not isinstance(found, dict):
        raise _malformed(path, f"{name} must be an object, not {_short(found)}")
    return cast("dict[str, Any]", found)


def _malformed(path: str, what: str) -> ValueError:
    return ValueError(f"{path}: {what}" if path else what)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."  # noqa: PLR2004


class References:
    """The schemas that a schema, the root, may refer to, by the names that it has for them."""

    def __init__(self, root: Any, named: Mapping[str, Any]) -> None:
        from referencing import Registry
        from referencing.jsonschema import DRAFT201909

        # Of the drafts that a schema without $schema may have, the one that takes lists of items and $anchor.
        self._specification = DRAFT201909
        whole = self._resource(root)
        self._specification = DRAFT201909.detect(root)
        others = Registry().with_resources((name, self._resource(other)) for name, other in named.items())
        self._names = named.keys()
        self._named = others.resolver()
        self.root: Resolver = others.resolver_with_root(whole)
        """What resolves the schema's own references."""

    def inside(self, part: Any, resolver: Resolver) -> Resolver:
        """What resolves the references in a part of a schema, which may have an address of its own."""
        return resolver.in_subresource(self._resource(part))

    def find(self, reference: Any, resolver: Resolver, path: str) -> tuple[Any, Resolver]:
        """What a reference refers to, and what resolves the references in that."""
        from referencing.exceptions import Unresolvable

        try:
            name, fragment = urldefrag(reference)
            if name in self._names:
                # The registry's names take precedence over those in the schemas.
                whole = self._named.lookup(name)
                resolver, reference = self.inside(whole.contents, whole.resolver), f"#{fragment}"
            found = resolver.lookup(reference)
        except (AttributeError, TypeError, ValueError, Unresolvable):
            what = f"it refers to {reference!r}, which is neither in the schema nor among the registry's references"
            raise _malformed(path, what) from None
        return found.contents, found.resolver

    def _resource(self, schema: Any) -> Any:
        from referencing import Resource

        if not isinstance(schema, dict):
            return Resource.opaque(schema)
        try:
            resource = Resource.from_contents(schema, default_specification=self._specification)
            resource.id()
        except AttributeError:
            raise ValueError("its $schema, or the $id of a part of it, is not a text") from None
        return resource
