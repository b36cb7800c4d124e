"""Which records of one Avro schema another one can read, by the Avro specification's section "Schema Resolution".

Avro's library does not compare logical types: it reads a time in milliseconds as one in microseconds, a decimal of
scale 2 as one of scale 4, and the bytes of a decimal as a text, so the values are wrong. Here such schemas don't fit.
Debezium's times have no logical type, but a name that contains their unit (`connect.name`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dagster_kafka_flip.formats.avro_schema import ANY_NAME, OWN_NAMES, AvroSchema, kind, resolved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.formats.avro_schema import AvroType

_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}

_DEBEZIUM_TIME = "io.debezium.time."
_AS_AVRO = {
    f"{_DEBEZIUM_TIME}{name}": logical
    for name, logical in (
        ("Date", "date"),
        ("Time", "time-millis"),
        ("MicroTime", "time-micros"),
        ("Timestamp", "timestamp-millis"),
        ("MicroTimestamp", "timestamp-micros"),
        ("NanoTimestamp", "timestamp-nanos"),
    )
}


class Fitted(NamedTuple):
    """A writer's schema and the reader schema for its records, renamed so that Avro pairs what is one, and no more."""

    writer: AvroSchema
    reader: AvroSchema


def fitted(writer: AvroSchema, reader: AvroSchema) -> Fitted | str:
    """The schemas to decode a writer's records with, or why none of them can be read.

    A record may still not fit: a union's branch or an enum's symbol that the reader does not have.

    Avro's library would take a record of another name for one with the same fields, rename the writer's fields though
    they have the reader's names, and compare enums by full name. So the names that it sees are made here.
    """
    pairs = _Pairs(writer.named(), reader.named())
    try:
        written, read = pairs.of(writer.root, reader.root, "")
    except _MisfitError as misfit:
        return str(misfit)
    return Fitted(
        AvroSchema(_defined_once(written, writer.named(), set())),
        AvroSchema(_defined_once(read, reader.named(), set())),
    )


class _MisfitError(Exception):
    """One type can't be read as another.

    Args:
        text: The reason, with the field's path.
        is_silent: Whether Avro would read it all the same, as another value.
    """

    def __init__(self, text: str, *, is_silent: bool = False) -> None:
        super().__init__(text)
        self.is_silent = is_silent


class _Pairs:
    """The types of both sides that belong together, renamed. Raises a `_MisfitError` for those that don't."""

    def __init__(self, written: Mapping[str, dict[str, Any]], read: Mapping[str, dict[str, Any]]) -> None:
        self._written = written
        self._read = read
        self._records: dict[tuple[str, str], tuple[AvroType, AvroType]] = {}
        self._numbers = itertools.count()

    def of(self, writer: AvroType, reader: AvroType, path: str) -> tuple[AvroType, AvroType]:
        writer, reader = resolved(writer, self._written), resolved(reader, self._read)
        branches: list[AvroType] = writer if isinstance(writer, list) else [writer]
        readers: list[AvroType] = reader if isinstance(reader, list) else [reader]
        written: list[AvroType] = []
        read: dict[int, AvroType] = {}
        misfit = _MisfitError(f"{_at(path)}an empty union")
        for branch in branches:
            try:
                number, one, other = self._branch(resolved(branch, self._written), readers, path)
            except _MisfitError as error:
                if error.is_silent:
                    raise
                # Each record shows whether its branch fits.
                one, misfit = self._unreadable(), error
            else:
                if read.setdefault(number, other) != other:
                    msg = f"{_at(path)}several branches of the writer's union would be read as {_shown(other)}"
                    raise _MisfitError(msg)
            written.append(one)
        if not read:
            raise misfit
        whole = [read.get(number, each) for number, each in enumerate(readers)]
        return (
            written if isinstance(writer, list) else written[0],
            whole if isinstance(reader, list) else whole[0],
        )

    def _branch(self, writer: AvroType, readers: list[AvroType], path: str) -> tuple[int, AvroType, AvroType]:
        """The reader's branch for a type, by its number: Avro takes the first of its kind, else a promotion."""
        found = [resolved(each, self._read) for each in readers]
        likeness = [_likeness(writer, each) for each in found]
        if any(likeness):
            number = likeness.index(max(likeness))
        elif len(found) == 1:
            number = 0
        else:
            promotions = _PROMOTIONS.get(kind(writer), ())
            number = next((number for number, each in enumerate(found) if kind(each) in promotions), None)
            if number is None:
                msg = f"{_at(path)}no branch of the reader's union matches {_shown(writer)}"
                raise _MisfitError(msg)
        return number, *self._single(writer, found[number], path)

    def _unreadable(self) -> dict[str, Any]:
        """In place of a writer's branch: a type that nothing can be read as."""
        return {"type": "fixed", "name": f"{OWN_NAMES}{next(self._numbers)}.unreadable", "size": 1}

    def _single(self, writer: AvroType, reader: AvroType, path: str) -> tuple[AvroType, AvroType]:
        written, read = kind(writer), kind(reader)
        if written != read and read not in _PROMOTIONS.get(written, ()):
            msg = f"{_at(path)}{_shown(writer)} can't be read as {_shown(reader)}"
            raise _MisfitError(msg)
        _check_logical(writer, reader, path)
        if isinstance(writer, str) or isinstance(reader, str) or isinstance(writer, list) or isinstance(reader, list):
            return writer, reader
        for inner, mark in (("items", "[]"), ("values", "{}")):
            if inner in reader:
                one, other = self.of(writer[inner], reader[inner], f"{path}{mark}")
                return {**writer, inner: one}, {**reader, inner: other}
        return self._named(writer, reader, path) if "name" in reader else (writer, reader)

    def _named(self, writer: dict[str, Any], reader: dict[str, Any], path: str) -> tuple[AvroType, AvroType]:
        what = kind(reader)
        if not _likeness(writer, reader):
            msg = (
                f"{_at(path)}the {what} {writer['name']} is not the reader's {reader['name']} (if it is, the reader's "
                "needs that name among its aliases)"
            )
            raise _MisfitError(msg)
        if what == "fixed" and writer["size"] != reader["size"]:
            msg = f"{_at(path)}{writer['size']} bytes can't be read as {reader['size']}"
            raise _MisfitError(msg)
        if what == "record":
            pair = (writer["name"], reader["name"])
            if pair not in self._records:
                self._records[pair] = self._record(writer, reader, path)
            return self._records[pair]
        name = self._name(reader)
        if what == "enum":
            reader = {**reader, "symbols": _in_other_order(reader["symbols"], writer["symbols"])}
        return {**writer, "name": name}, {**reader, "name": name}

    def _name(self, reader: dict[str, Any]) -> str:
        # Spark names a union's members by what follows the last dot.
        return f"{OWN_NAMES}{next(self._numbers)}.{_short(reader['name'])}"

    def _record(self, writer: dict[str, Any], reader: dict[str, Any], path: str) -> tuple[AvroType, AvroType]:
        name = self._name(reader)
        there = {field["name"]: field for field in writer["fields"]}
        names = {field["name"] for field in reader["fields"]}
        written, read = dict(there), list[dict[str, Any]]()
        for field in reader["fields"]:
            inner = f"{path}.{field['name']}" if path else field["name"]
            # A name comes before all aliases, and a field is read once.
            found = [field["name"]] if field["name"] in there else []
            found = found or [each for each in field.get("aliases", ()) if each in there and each not in names]
            if len(found) > 1 or any(written[each] is not there[each] for each in found):
                msg = f"{_at(inner)}by the aliases, several fields would be read as one, or one as several"
                raise _MisfitError(msg)
            if found:
                one, other = self.of(there[found[0]]["type"], field["type"], inner)
                written[found[0]] = {"name": field["name"], "type": one}
                read.append({**field, "type": other})
            elif "default" in field:
                read.append(field)
            else:
                msg = f"{_at(inner)}the writer lacks this field, and the reader has no default for it"
                raise _MisfitError(msg)
        return (
            {"type": "record", "name": name, "fields": list(written.values())},
            {**reader, "name": name, "fields": read},
        )


def _defined_once(avro_type: AvroType, named: Mapping[str, dict[str, Any]], done: set[str]) -> AvroType:
    """The type without aliases, with each named type defined where it first occurs, and under a name with a dot.

    In a type whose name has one, Avro takes a name without for a name of the same namespace.
    """
    if isinstance(avro_type, list):
        return [_defined_once(each, named, done) for each in avro_type]
    if isinstance(avro_type, str):
        return _defined_once(named[avro_type], named, done) if avro_type in named else avro_type
    plain = {name: value for name, value in avro_type.items() if name not in {"aliases", "namespace"}}
    if (name := plain.get("name")) is not None:
        plain["name"] = name if name.startswith(OWN_NAMES) else f"{OWN_NAMES}own.{name}"
        if plain["name"] in done:
            return plain["name"]
        done.add(plain["name"])
    for inner in ("items", "values"):
        if inner in plain:
            plain[inner] = _defined_once(plain[inner], named, done)
    if "fields" in plain:
        plain["fields"] = [
            {
                **{name: value for name, value in field.items() if name != "aliases"},
                "type": _defined_once(field["type"], named, done),
            }
            for field in plain["fields"]
        ]
    return plain


def _in_other_order(read: list[str], written: list[str]) -> list[str]:
    """The reader's symbols in an order that does not begin with those of a writer that has fewer.

    Else Avro takes the numbers of symbols as they are, and a broken record's, which the writer does not have, for one
    of the reader's. The order is not seen otherwise: columns have the symbols as text.
    """
    begins = len(written) < len(read) and read[: len(written)] == written
    return read[1:] + read[:1] if begins else read


def _check_logical(writer: AvroType, reader: AvroType, path: str) -> None:
    written, read = _logical(writer), _logical(reader)
    if "decimal" in (written, read) and "string" in (kind(writer), kind(reader)):
        # Bytes can be read as a text, and a text as bytes.
        msg = f"{_at(path)}{_shown(writer)} can't be read as {_shown(reader)}"
        raise _MisfitError(msg, is_silent=True)
    if written is None or read is None:
        return
    if not _are_same(written, read):
        msg = f"{_at(path)}a {written} would be read as a {read}; the reader schema must declare {written}"
        raise _MisfitError(msg, is_silent=True)
    if read == "decimal":
        one, other = cast("dict[str, Any]", writer), cast("dict[str, Any]", reader)
        scale, wanted = one.get("scale", 0), other.get("scale", 0)
        if scale != wanted:
            msg = f"{_at(path)}a decimal with the scale {scale} would be read as one with the scale {wanted}"
            raise _MisfitError(msg, is_silent=True)
        if one["precision"] > other["precision"]:
            msg = f"{_at(path)}a decimal of {one['precision']} digits may not fit one of {other['precision']}"
            raise _MisfitError(msg)


def _logical(avro_type: AvroType) -> str | None:
    """The logical type, or the name of Debezium's time."""
    if not isinstance(avro_type, dict):
        return None
    name = str(avro_type.get("connect.name", ""))
    return avro_type.get("logicalType") or (name if name.startswith(_DEBEZIUM_TIME) else None)


def _are_same(written: str, read: str) -> bool:
    """Whether two logical types mean the same. Debezium's have no time zone, so Avro's local ones fit them too."""
    one, other = (_AS_AVRO.get(name, name) for name in (written, read))
    if (one, other) == (written, read):
        return written == read
    return one.removeprefix("local-") == other.removeprefix("local-")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _likeness(writer: AvroType, reader: AvroType) -> int:
    """How well a reader's type fits a writer's without a promotion: 0 not at all, more by name than by alias."""
    if kind(writer) != kind(reader):
        return 0
    if not isinstance(writer, dict) or not isinstance(reader, dict) or "name" not in reader:
        return 1
    name, other = writer["name"], reader["name"]
    if name == other:
        return 3
    if _short(name) == _short(other):
        return 2
    return int(_short(name) in map(_short, reader.get("aliases", ())) or ANY_NAME in reader)


def _shown(avro_type: AvroType) -> str:
    logical = _logical(avro_type)
    return f"{kind(avro_type)} ({logical})" if logical else kind(avro_type)


def _at(path: str) -> str:
    return f"{path}: " if path else ""
