"""Which records of one Avro schema another one can read, by the Avro specification's section "Schema Resolution".

Avro's library does not compare logical types: it reads a time in milliseconds as one in microseconds, a decimal of
scale 2 as one of scale 4, and the bytes of a decimal as a text, so the values are wrong. Here such schemas don't fit.
Debezium's times have no logical type, but a name that contains their unit (`connect.name`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dagster_kafka_flip.formats.avro_schema import AvroSchema, kind, map_types, resolved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


def fitted(writer: AvroSchema, reader: AvroSchema) -> AvroSchema | str:
    """The reader schema for records of a writer's, or why none of them can be read with it.

    A record may still not fit: a union's branch or an enum's symbol that the reader does not have.
    """
    pair = _Pair(writer.named(), reader.named())
    problem = next(pair.problems(writer.root, reader.root, ""), None)
    if problem is not None:
        return problem.text
    # Avro compares full names, and applies a field's aliases only in a record that it matches with the reader's.
    also: dict[str, list[str]] = {}
    for written, read in pair.names.items():
        if len(read) == 1:
            (name,) = read
            also.setdefault(name, []).extend({written} - {name})
        elif renamed := sorted(name for name in read if (written, name) in pair.renaming):
            return f"{written} is read as {' and '.join(sorted(read))}, and fields of {renamed[0]} have aliases"

    def adapted(named: dict[str, Any]) -> dict[str, Any]:
        name = named.get("name", "")
        if further := also.get(name):
            named["aliases"] = [*named.get("aliases", ()), *further]
        if kind(named) == "enum":
            named["symbols"] = _in_other_order(named["symbols"], pair.written_symbols(name))
        return named

    return AvroSchema(map_types(reader.root, adapted))


def _in_other_order(read: list[str], written: list[list[str]]) -> list[str]:
    """The reader's symbols in an order that does not begin with those of a writer that has fewer.

    Else Avro takes the numbers of symbols as they are, and a broken record's, which the writer does not have, for one
    of the reader's. The order is not seen otherwise: columns have the symbols as text.
    """
    turned = [read[number:] + read[:number] for number in range(len(read))]
    return next(
        (each for each in turned if not any(len(few) < len(each) and each[: len(few)] == few for few in written)), read
    )


class _Problem(NamedTuple):
    """Why one type can't be read as another.

    Attributes:
        text: The reason, with the field's path.
        is_silent: Whether Avro would read it all the same, as another value.
    """

    text: str
    is_silent: bool = False


class _Pair:
    """Named types of both sides, and the pairs of records that are being compared."""

    def __init__(self, written: Mapping[str, dict[str, Any]], read: Mapping[str, dict[str, Any]]) -> None:
        self._written = written
        self._read = read
        self._open: set[tuple[str, str]] = set()
        # The reader's names by the writer's, and the pairs of records in which a field's alias counts.
        self.names: dict[str, set[str]] = {}
        self.renaming: set[tuple[str, str]] = set()

    def written_symbols(self, name: str) -> list[list[str]]:
        """The symbols of the writer's enums that are read as one of the reader's."""
        return [self._written[written]["symbols"] for written, read in self.names.items() if name in read]

    def problems(self, writer: AvroType, reader: AvroType, path: str) -> Iterator[_Problem]:
        writer, reader = resolved(writer, self._written), resolved(reader, self._read)
        if isinstance(writer, list):
            # Each record shows whether its branch fits. But none may be read as another value.
            found = [list(self.problems(branch, reader, path)) for branch in writer]
            if all(found) or any(problem.is_silent for problems in found for problem in problems):
                yield max(
                    itertools.chain(*found),
                    key=lambda problem: problem.is_silent,
                    default=_Problem(f"{_at(path)}an empty union"),
                )
            return
        if isinstance(reader, list):
            same = [branch for branch in reader if self._is_alike(writer, branch)]
            if same:
                yield from self.problems(writer, same[0], path)
            else:
                found = [list(self.problems(writer, branch, path)) for branch in reader]
                if all(found):
                    text = f"{_at(path)}no branch of the reader's union matches {_shown(writer)}"
                    yield _Problem(text, is_silent=any(each.is_silent for problems in found for each in problems))
            return
        written, read = kind(writer), kind(reader)
        if written != read and read not in _PROMOTIONS.get(written, ()):
            yield _Problem(f"{_at(path)}{_shown(writer)} can't be read as {_shown(reader)}")
            return
        yield from _logical_problems(writer, reader, path)
        if isinstance(writer, dict) and isinstance(reader, dict):
            yield from self._inside(writer, reader, path)

    def _is_alike(self, writer: AvroType, branch: AvroType) -> bool:
        """Whether Avro takes a branch of the reader's union before it looks for a promotion."""
        branch = resolved(branch, self._read)
        if kind(writer) != kind(branch):
            return False
        if kind(branch) in {"record", "enum", "fixed"}:
            return bool({_short(cast("dict[str, Any]", writer)["name"])} & _names(cast("dict[str, Any]", branch)))
        return True

    def _inside(self, writer: dict[str, Any], reader: dict[str, Any], path: str) -> Iterator[_Problem]:
        read = kind(reader)
        if read in {"record", "enum", "fixed"}:
            self.names.setdefault(writer["name"], set()).add(reader["name"])
        if read == "record":
            pair = (writer["name"], reader["name"])
            if pair in self._open:
                return
            self._open.add(pair)
            yield from self._fields(writer, reader, path)
            self._open.discard(pair)
        elif read == "array":
            yield from self.problems(writer["items"], reader["items"], f"{path}[]")
        elif read == "map":
            yield from self.problems(writer["values"], reader["values"], f"{path}{{}}")
        elif read == "fixed" and writer["size"] != reader["size"]:
            yield _Problem(f"{_at(path)}{writer['size']} bytes can't be read as {reader['size']}")
        elif read in {"fixed", "enum"} and _short(writer["name"]) not in _names(reader):
            yield _Problem(f"{_at(path)}the {read} {writer['name']} is not the reader's {reader['name']}")

    def _fields(self, writer: dict[str, Any], reader: dict[str, Any], path: str) -> Iterator[_Problem]:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            name = field["name"]
            inner = f"{path}.{name}" if path else name
            found = next((written[each] for each in (name, *field.get("aliases", ())) if each in written), None)
            if found is not None and found["name"] != name:
                self.renaming.add((writer["name"], reader["name"]))
            if found is not None:
                yield from self.problems(found["type"], field["type"], inner)
            elif "default" not in field:
                yield _Problem(f"{_at(inner)}the writer lacks this field, and the reader has no default for it")


def _logical_problems(writer: AvroType, reader: AvroType, path: str) -> Iterator[_Problem]:
    written, read = _logical(writer), _logical(reader)
    if "decimal" in (written, read) and "string" in (kind(writer), kind(reader)):
        # Bytes can be read as a text, and a text as bytes.
        yield _Problem(f"{_at(path)}{_shown(writer)} can't be read as {_shown(reader)}", is_silent=True)
        return
    if written is None or read is None:
        return
    if not _are_same(written, read):
        yield _Problem(
            f"{_at(path)}a {written} would be read as a {read}; the reader schema must declare {written}",
            is_silent=True,
        )
    elif read == "decimal":
        one, other = cast("dict[str, Any]", writer), cast("dict[str, Any]", reader)
        scale, wanted = one.get("scale", 0), other.get("scale", 0)
        if scale != wanted:
            text = f"{_at(path)}a decimal with the scale {scale} would be read as one with the scale {wanted}"
            yield _Problem(text, is_silent=True)
        elif one["precision"] > other["precision"]:
            text = f"{_at(path)}a decimal of {one['precision']} digits may not fit one of {other['precision']}"
            yield _Problem(text)


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


def _names(defined: dict[str, Any]) -> set[str]:
    return {_short(name) for name in (defined["name"], *defined.get("aliases", ()))}


def _shown(avro_type: AvroType) -> str:
    logical = _logical(avro_type)
    return f"{kind(avro_type)} ({logical})" if logical else kind(avro_type)


def _at(path: str) -> str:
    return f"{path}: " if path else ""
