"""Validates DDL schemas without Spark, where they are defined.

pyspark's parser runs in the JVM, and general SQL parsers reject names that Spark accepts (such as `select INT`). This
parser follows the rules `colTypeList` and `dataType` of Spark's grammar (SqlBaseParser.g4). After a type, it only
checks the next word; Spark validates the rest when a run starts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.names import meant_by

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w$-]+|[<>(),:])", re.DOTALL
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")

TYPES = frozenset(
    {
        "ARRAY",
        "BIGINT",
        "BINARY",
        "BOOLEAN",
        "BYTE",
        "CHAR",
        "CHARACTER",
        "DATE",
        "DEC",
        "DECIMAL",
        "DOUBLE",
        "FLOAT",
        "GEOGRAPHY",
        "GEOMETRY",
        "INT",
        "INTEGER",
        "INTERVAL",
        "LONG",
        "MAP",
        "NUMERIC",
        "REAL",
        "SHORT",
        "SMALLINT",
        "STRING",
        "STRUCT",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMP_LTZ",
        "TIMESTAMP_NTZ",
        "TINYINT",
        "VARCHAR",
        "VARIANT",
        "VOID",
    }
)
"""Types of Spark 4.0, and those added in 4.1 and 4.2."""

# Type names of other systems, and their Spark equivalents.
_OTHER_NAMES = {
    "BOOL": "BOOLEAN",
    "BYTES": "BINARY",
    "DATETIME": "TIMESTAMP",
    "FLOAT64": "DOUBLE",
    "INT32": "INT",
    "INT64": "BIGINT",
    "JSON": "STRING",
    "NUMBER": "DECIMAL",
    "STR": "STRING",
    "TEXT": "STRING",
    "UUID": "STRING",
}
_MOST_DIGITS = 38
MOST_LEVELS = 100
"""How deep a type may be nested, as in Protobuf: what reads it calls itself for each level."""
_DECIMALS = frozenset({"DEC", "DECIMAL", "NUMERIC"})
_AFTER_A_TYPE = frozenset({"NOT", "NULL", "COMMENT", "COLLATE", "DEFAULT", "GENERATED", "WITH", "WITHOUT"})
_END = ""


def check_ddl(text: str, check_type: Callable[[str, str, str], None] | None = None) -> None:
    """Validates the fields of a schema.

    Args:
        text: Such as `carrier STRING NOT NULL, flight INT`.
        check_type: Called with each field, its type's name in capitals and, for a MAP, its key type; raises for
            unsupported types. Default: all Spark types.

    Raises:
        ConfigurationError: The schema is invalid. The message names the field.
    """
    _Fields(text, check_type).check()


def field_names(text: str) -> tuple[str, ...]:
    """Names of a schema's top-level fields.

    Raises:
        ConfigurationError: The schema is invalid.
    """
    return tuple(fields_of(text))


def fields_of(text: str) -> dict[str, str]:
    """A schema's top-level fields: the DDL after the name, by name.

    Raises:
        ConfigurationError: The schema is invalid.
    """
    fields = _Fields(text)
    fields.check()
    return fields.found


def tokens_of(text: str) -> list[tuple[str, int, int]]:
    """The tokens of a part of valid DDL, without comments and white space, each with where it begins and ends."""
    return [(match[1], *match.span(1)) for match in _TOKEN.finditer(text) if match[1]]


_WHOLE = "the schema"


class _Fields:
    def __init__(self, text: str, check_type: Callable[[str, str, str], None] | None = None) -> None:
        self.found: dict[str, str] = {}
        self._text = text
        self._places: list[tuple[int, int]] = []
        self._check_type = check_type
        self._tokens: list[str] = []
        end = 0
        for match in _TOKEN.finditer(text):
            if match.start() != end:
                break
            end = match.end()
            if match.group(1):
                self._tokens.append(match.group(1))
                self._places.append(match.span(1))
        if end != len(text):
            raise _error(f"unexpected {text[end]!r} after {text[:end].strip()[-20:]!r}")
        self._next = 0
        self._levels = 0

    def check(self) -> None:
        # Spark also accepts the struct as a whole.
        if self._seen().upper() == "STRUCT" and self._seen(1) == "<":
            self._type(_WHOLE)
        elif self._seen().upper() in TYPES and self._seen(1) in {_END, "<", "("}:
            raise _error(f"{self._seen()} is a single type; write fields, such as 'flight INT'")
        else:
            self._fields("", _END)
        if self._seen() != _END:
            raise _error(f"unexpected {self._seen()!r}")

    def _seen(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place] if place < len(self._tokens) else _END

    def _take(self) -> str:
        token = self._seen()
        self._next += 1
        return token

    def _fields(self, inside: str, end: str) -> None:
        names: set[str] = set()
        while True:
            name = self._take()
            if name in {_END, *"<>(),:"}:
                raise _error(
                    f"a field is missing {f'before {name!r}' if name else 'at the end'}; check for an extra comma"
                )
            if name[0] != "`" and not _PLAIN_NAME.fullmatch(name):
                raise _error(f"quote the name {name}: write `{name}`")
            if name[0] == "`":
                name = name[1:-1].replace("``", "`")
            if name.lower() in names:
                raise _error(f"duplicate field {inside}{name}")
            names.add(name.lower())
            if self._seen() == ":":
                self._take()
            first = self._next
            self._type(f"{inside}{name}")
            self._rest(f"{inside}{name}", end)
            if inside in {"", f"{_WHOLE}."}:
                self.found[name] = self._text[self._places[first][0] : self._places[self._next - 1][1]]
            if self._seen() == end:
                return
            self._take()

    def _rest(self, field: str, end: str) -> None:
        token = self._seen()
        if token not in {",", end} and token.upper() not in _AFTER_A_TYPE:
            if token == _END:
                raise _error(f"{field}: missing {end!r} at the end")
            raise _error(f"{field}: unexpected {token!r} after the type; a comma may be missing")
        while self._seen() not in {",", end, _END}:
            seen = self._take()
            if seen == "(":
                self._skip_brackets(field)
            elif seen.upper() == "NOT" and self._seen().upper() != "NULL":
                written = f"{seen} {self._seen()}".rstrip(" ,>" + _END)
                raise _error(f"{field}: invalid constraint {written!r}; write NOT NULL")

    def _skip_brackets(self, field: str) -> list[str]:
        inside: list[str] = []
        while (seen := self._take()) != ")":
            if seen == _END:
                raise _error(f"{field}: missing ')'")
            inside += self._skip_brackets(field) if seen == "(" else [seen]
        return inside

    def _type(self, field: str) -> None:
        written = self._take()
        name = written.upper()
        if written in {_END, *"<>(),:"}:
            raise _error(f"{field} has no type; add one, such as {field} STRING")
        if name not in TYPES:
            near = _OTHER_NAMES.get(name) or next(iter(meant_by(name, TYPES)), None)
            raise _error(f"{field}: {written!r} is not a Spark type{'' if near is None else f'; did you mean {near}?'}")
        keys = self._seen(1).upper() if name == "MAP" else ""
        if name == "INTERVAL":
            while self._seen().upper() in {"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "TO"}:
                self._take()
        elif name in {"ARRAY", "MAP", "STRUCT"}:
            self._nested(field, name)
        elif self._seen() == "(":
            self._take()
            self._check_numbers(field, name, self._skip_brackets(field))
        if self._check_type is not None:
            self._check_type(field, name, keys)

    def _nested(self, field: str, name: str) -> None:
        if self._take() != "<":
            example = {"ARRAY": "ARRAY<STRING>", "MAP": "MAP<STRING, STRING>", "STRUCT": "STRUCT<a: STRING>"}[name]
            raise _error(f"{field}: {name} needs an element type, such as {example}")
        self._levels += 1
        if self._levels > MOST_LEVELS:
            top = field.removeprefix(f"{_WHOLE}.").partition(".")[0]
            raise _error(f"{top}: nested more than {MOST_LEVELS} levels deep")
        if name == "STRUCT" and self._seen() != ">":
            self._fields(f"{field}.", ">")
        elif name != "STRUCT":
            self._type(field)
            if name == "MAP":
                if self._take() != ",":
                    raise _error(f"{field}: a MAP needs a key type and a value type")
                self._type(field)
        if self._take() != ">":
            raise _error(f"{field}: missing '>' after {name}<...")
        self._levels -= 1

    @staticmethod
    def _check_numbers(field: str, name: str, inside: list[str]) -> None:
        numbers = [int(token) for token in inside if token.isdecimal()]
        if name in _DECIMALS and numbers:
            precision, scale = [*numbers, 0][:2]
            if not 1 <= precision <= _MOST_DIGITS or scale > precision:
                raise _error(
                    f"{field}: invalid {name}({precision}, {scale}); precision is 1 to {_MOST_DIGITS}, and scale is "
                    "at most the precision"
                )


def _error(what: str) -> ConfigurationError:
    return ConfigurationError(f"schema: {what}")
