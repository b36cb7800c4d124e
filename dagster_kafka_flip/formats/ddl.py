"""Validates DDL schemas without Spark, where they are defined.

pyspark's parser runs in the JVM, and general SQL parsers reject names that Spark accepts (such as `select INT`). This
parser follows the rules `colTypeList` and `dataType` of Spark's grammar (SqlBaseParser.g4). After a type, it only
checks the next word; Spark validates the rest when a run starts.
"""

from __future__ import annotations

import re

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import (
    ALIASES,
    MOST_LEVELS,
    SCALARS,
    ColumnType,
    Field,
    array_of,
    map_of,
)
from dagster_kafka_flip.settings.names import meant_by

_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w$-]+|[<>(),:])", re.DOTALL
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")

TYPES = frozenset(
    {*SCALARS, *ALIASES, "ARRAY", "CHAR", "GEOGRAPHY", "GEOMETRY", "INTERVAL", "MAP", "STRUCT", "TIME", "VARCHAR"}
    | {"VARIANT", "VOID"}
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
_AFTER_A_TYPE = frozenset({"NOT", "NULL", "COMMENT", "COLLATE", "DEFAULT", "GENERATED", "WITH", "WITHOUT"})
_END = ""


def struct_of(text: str) -> ColumnType:
    """The tree of a schema, such as `carrier STRING NOT NULL, flight INT`, as one STRUCT.

    Raises:
        ConfigurationError: The schema is invalid. The message names the field.
    """
    return _Fields(text).struct()


def fields_of(text: str) -> dict[str, str]:
    """A schema's top-level fields: the DDL after the name, by name.

    Raises:
        ConfigurationError: The schema is invalid.
    """
    fields = _Fields(text)
    fields.struct()
    return fields.found


_WHOLE = "the schema"


class _Fields:
    def __init__(self, text: str) -> None:
        self.found: dict[str, str] = {}
        self._text = text
        self._places: list[tuple[int, int]] = []
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

    def struct(self) -> ColumnType:
        # Spark also accepts the struct as a whole.
        if self._seen().upper() == "STRUCT" and self._seen(1) == "<":
            found = self._type(_WHOLE)
        elif self._seen().upper() in TYPES and self._seen(1) in {_END, "<", "("}:
            raise _error(f"{self._seen()} is a single type; write fields, such as 'flight INT'")
        else:
            found = self._fields("", _END)
        if self._seen() != _END:
            raise _error(f"unexpected {self._seen()!r}")
        return found

    def _seen(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place] if place < len(self._tokens) else _END

    def _take(self) -> str:
        token = self._seen()
        self._next += 1
        return token

    def _fields(self, inside: str, end: str) -> ColumnType:
        fields: dict[str, Field] = {}
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
            if name.lower() in fields:
                raise _error(f"duplicate field {inside}{name}")
            if self._seen() == ":":
                self._take()
            first = self._next
            kind = self._type(f"{inside}{name}")
            fields[name.lower()] = Field(name, kind, is_null=not self._rest(f"{inside}{name}", end))
            if inside in {"", f"{_WHOLE}."}:
                self.found[name] = self._text[self._places[first][0] : self._places[self._next - 1][1]]
            if self._seen() == end:
                return ColumnType("STRUCT", tuple(fields.values()))
            self._take()

    def _rest(self, field: str, end: str) -> bool:
        """Passes over what follows a type, and returns whether it is NOT NULL."""
        is_required = False
        token = self._seen()
        if token not in {",", end} and token.upper() not in _AFTER_A_TYPE:
            if token == _END:
                raise _error(f"{field}: missing {end!r} at the end")
            raise _error(f"{field}: unexpected {token!r} after the type; a comma may be missing")
        while self._seen() not in {",", end, _END}:
            seen = self._take()
            if seen == "(":
                self._skip_brackets(field)
            elif seen.upper() == "NOT":
                is_required = True
                if self._seen().upper() != "NULL":
                    written = f"{seen} {self._seen()}".rstrip(" ,>" + _END)
                    raise _error(f"{field}: invalid constraint {written!r}; write NOT NULL")
        return is_required

    def _skip_brackets(self, field: str) -> list[str]:
        inside: list[str] = []
        while (seen := self._take()) != ")":
            if seen == _END:
                raise _error(f"{field}: missing ')'")
            inside += self._skip_brackets(field) if seen == "(" else [seen]
        return inside

    def _type(self, field: str) -> ColumnType:
        written = self._take()
        name = written.upper()
        if written in {_END, *"<>(),:"}:
            raise _error(f"{field} has no type; add one, such as {field} STRING")
        if name not in TYPES:
            near = _OTHER_NAMES.get(name) or next(iter(meant_by(name, TYPES)), None)
            raise _error(f"{field}: {written!r} is not a Spark type{'' if near is None else f'; did you mean {near}?'}")
        name, digits = ALIASES.get(name, name), (10, 0)
        if name == "INTERVAL":
            while self._seen().upper() in {"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "TO"}:
                self._take()
        elif name in {"ARRAY", "MAP", "STRUCT"}:
            return self._nested(field, name)
        elif self._seen() == "(":
            self._take()
            numbers = [int(token) for token in self._skip_brackets(field) if token.isdecimal()]
            digits = self._digits(field, numbers) if name == "DECIMAL" and numbers else digits
        return ColumnType(name, digits=digits)

    def _nested(self, field: str, name: str) -> ColumnType:
        if self._take() != "<":
            example = {"ARRAY": "ARRAY<STRING>", "MAP": "MAP<STRING, STRING>", "STRUCT": "STRUCT<a: STRING>"}[name]
            raise _error(f"{field}: {name} needs an element type, such as {example}")
        self._levels += 1
        if self._levels > MOST_LEVELS:
            top = field.removeprefix(f"{_WHOLE}.").partition(".")[0]
            raise _error(f"{top}: nested more than {MOST_LEVELS} levels deep")
        if name == "STRUCT":
            found = ColumnType("STRUCT") if self._seen() == ">" else self._fields(f"{field}.", ">")
        else:
            first = self._type(field)
            found = array_of(first)
            if name == "MAP":
                if self._take() != ",":
                    raise _error(f"{field}: a MAP needs a key type and a value type")
                found = map_of(first, self._type(field))
        if self._take() != ">":
            raise _error(f"{field}: missing '>' after {name}<...")
        self._levels -= 1
        return found

    @staticmethod
    def _digits(field: str, numbers: list[int]) -> tuple[int, int]:
        precision, scale = [*numbers, 0][:2]
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise _error(
                f"{field}: invalid DECIMAL({precision}, {scale}); precision is 1 to {_MOST_DIGITS}, and scale is at "
                "most the precision"
            )
        return precision, scale


def _error(what: str) -> ConfigurationError:
    return ConfigurationError(f"schema: {what}")
