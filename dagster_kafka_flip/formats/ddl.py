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
_SIGNS = frozenset({_END, *"<>(),:"})


def struct_of(text: str) -> ColumnType:
    """The tree of a schema, such as `carrier STRING NOT NULL, flight INT`, as one STRUCT. An error names the field."""
    return _Parser(text).whole()


def fields_of(text: str) -> dict[str, str]:
    """A schema's top-level fields: the DDL after the name, by name."""
    parser = _Parser(text)
    return {name: parser.found[name] for name in parser.whole().names}


class _Parser:
    def __init__(self, text: str) -> None:
        self.found: dict[str, str] = {}
        """The DDL after the name of each field, by its path."""
        self._text = text
        self._tokens: list[re.Match[str]] = []
        self._next = end = 0
        for match in _TOKEN.finditer(text):
            if match.start() != end:
                break
            end = match.end()
            if match[1]:
                self._tokens.append(match)
        if end != len(text):
            raise _error(f"unexpected {text[end]!r} after {text[:end].strip()[-20:]!r}")

    def whole(self) -> ColumnType:
        # Spark also accepts the struct as a whole.
        is_struct = self._seen().upper() == "STRUCT" and self._seen(1) == "<"
        if not is_struct and self._seen().upper() in TYPES and self._seen(1) in {_END, "<", "("}:
            raise _error(f"{self._seen()} is a single type; write fields, such as 'flight INT'")
        self._next = 2 if is_struct else 0
        found = self._fields("", ">" if is_struct else _END, 0)
        self._expect(_END, "the schema")
        return found

    def _seen(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place][1] if place < len(self._tokens) else _END

    def _take(self) -> str:
        token = self._seen()
        self._next += 1
        return token

    def _expect(self, token: str, field: str) -> None:
        if (found := self._take()) != token:
            raise _error(f"{field}: expected {token or 'the end'}, not {found or 'the end'}")

    def _fields(self, inside: str, end: str, levels: int) -> ColumnType:
        """The fields up to an end, which is taken."""
        fields: dict[str, Field] = {}
        while True:
            name = self._take()
            if name in _SIGNS:
                raise _error(f"a field is missing before {name or 'the end'}; check for an extra comma")
            if name[0] != "`" and not _PLAIN_NAME.fullmatch(name):
                raise _error(f"quote the name {name}: write `{name}`")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            path = f"{inside}{name}"
            if name.lower() in fields:
                raise _error(f"duplicate field {path}")
            self._next += self._seen() == ":"
            first = self._tokens[self._next].start() if self._seen() else 0
            kind = self._type(path, levels)
            fields[name.lower()] = Field(name, kind, is_null=not self._rest(path, end))
            self.found[path] = self._text[first : self._tokens[self._next - 1].end()]
            if self._seen() == end:
                self._next += 1
                return ColumnType("STRUCT", tuple(fields.values()))
            self._expect(",", path)

    def _rest(self, field: str, end: str) -> bool:
        """Passes over what follows a type, and returns whether it is NOT NULL."""
        if self._seen() not in {",", end} and self._seen().upper() not in _AFTER_A_TYPE:
            missing = f"a comma or {end}" if end else "a comma"
            raise _error(f"{field}: unexpected {self._seen() or 'end'} after the type; {missing} may be missing")
        is_required = False
        while self._seen() not in {",", end, _END}:
            seen = self._take().upper()
            if seen == "(":
                self._skip_brackets(field)
            elif seen == "NOT":
                is_required = True
                if self._take().upper() != "NULL":
                    raise _error(f"{field}: a constraint is NOT NULL, and no other NOT")
        return is_required

    def _skip_brackets(self, field: str) -> list[str]:
        inside: list[str] = []
        while (seen := self._take()) != ")":
            if seen == _END:
                raise _error(f"{field}: missing ')'")
            inside += self._skip_brackets(field) if seen == "(" else [seen]
        return inside

    def _type(self, field: str, levels: int) -> ColumnType:
        written = self._take()
        name = written.upper()
        if written in _SIGNS:
            raise _error(f"{field} has no type; add one, such as {field} STRING")
        if name not in TYPES:
            near = _OTHER_NAMES.get(name) or next(iter(meant_by(name, TYPES)), None)
            raise _error(f"{field}: {written!r} is not a Spark type{'' if near is None else f'; did you mean {near}?'}")
        name, digits = ALIASES.get(name, name), (10, 0)
        if name in {"ARRAY", "MAP", "STRUCT"}:
            return self._nested(field, name, levels + 1)
        if name == "INTERVAL":
            while self._seen().upper() in {"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "TO"}:
                self._next += 1
        elif self._seen() == "(":
            self._next += 1
            numbers = [int(token) for token in self._skip_brackets(field) if token.isdecimal()]
            if name == "DECIMAL" and numbers:
                precision, scale = digits = ([*numbers, 0][0], [*numbers, 0][1])
                if not 1 <= precision <= _MOST_DIGITS or scale > precision:
                    limits = f"precision is 1 to {_MOST_DIGITS}, and scale is at most the precision"
                    raise _error(f"{field}: invalid DECIMAL({precision}, {scale}); {limits}")
        return ColumnType(name, digits=digits)

    def _nested(self, field: str, name: str, levels: int) -> ColumnType:
        if levels > MOST_LEVELS:
            raise _error(f"{field.partition('.')[0]}: nested more than {MOST_LEVELS} levels deep")
        self._expect("<", f"{field}: {name}")
        if name == "STRUCT":
            if self._seen() != ">":
                return self._fields(f"{field}.", ">", levels)
            found = ColumnType("STRUCT")
        else:
            found = array_of(self._type(field, levels))
            if name == "MAP":
                self._expect(",", f"{field}: the key of a MAP")
                found = map_of(found.inner.type, self._type(field, levels))
        self._expect(">", f"{field}: {name}")
        return found


def _error(what: str) -> ConfigurationError:
    return ConfigurationError(f"schema: {what}")
