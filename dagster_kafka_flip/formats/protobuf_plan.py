"""How the Java library reads the messages of a writer's schema as the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.formats.protobuf_types import (
    OWN_MEANING,
    entry_of,
    is_proto2,
    is_required,
    kind_of,
    meaning_of,
    message_of,
    shape_of,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# A larger type holds each of these values exactly. An enum is a number.
_WIDENS = {
    "int": {"bigint", "decimal", "enum"},
    "enum": {"int", "bigint", "decimal"},
    "bigint": {"decimal"},
    "float": {"double"},
}


class MisfitError(Exception):
    """Why a writer's message can't be read as the reader's."""


class _Pair(NamedTuple):
    """A message of the writer's schema, the message that it is read as, if it is read, and what it then means."""

    written: Descriptor
    reader: Descriptor | None
    meaning: str

    @property
    def names(self) -> tuple[str, str | None, str]:
        return self.written.full_name, None if self.reader is None else self.reader.full_name, self.meaning


def plan(writer: Descriptor, reader: Descriptor) -> list[dict[str, Any]]:
    """How a writer's message is read as the reader's, which has been checked: the message, then those in it.

    They name each other by their number in this list. Those that are not read are in it, too: what is wrong in them is
    wrong in the record.
    """
    top = _Pair(writer, reader, "row")
    paths, numbers, messages = {top.names: reader.name}, {top.names: 0}, [top]

    def number_of(pair: _Pair, path: str) -> int:
        if pair.names not in numbers:
            numbers[pair.names], paths[pair.names] = len(messages), path
            messages.append(pair)
        return numbers[pair.names]

    # The list grows meanwhile.
    return [_message(pair, paths[pair.names], number_of) for pair in messages]


def _message(pair: _Pair, path: str, number_of: Any) -> dict[str, Any]:
    written, reader, meaning = pair
    columns = [] if reader is None else list(reader.fields)
    if meaning != "row":
        columns.sort(key=lambda field: field.number)
    places = {field.number: place for place, field in enumerate(columns)}
    read = {field.number: field for field in columns}
    size = len(columns)
    for field in written.fields:
        # A message comes in several parts, perhaps.
        may_grow = field.message_type is not None and shape_of(field) == "single"
        if field.number not in places and (may_grow or is_required(field)):
            places[field.number], size = size, size + 1
    fields = [
        {
            **_field(pair, field, read.get(field.number), path, number_of),
            "number": field.number,
            "path": field.full_name,
            "place": places.get(field.number, -1),
            "presence": _presence(field, meaning),
            "others": [places[number] for number in _excluded(field) if number in places],
        }
        for field in sorted(written.fields, key=lambda field: field.number)
    ]
    return {"meaning": meaning, "columns": len(columns), "places": size, "fields": fields}


def _field(
    pair: _Pair, written: FieldDescriptor, field: FieldDescriptor | None, path: str, number_of: Any
) -> dict[str, Any]:
    shape = shape_of(written)
    found = {"type": type_name(written), "shape": shape}
    if field is not None:
        if pair.meaning == "entry":
            path += "{key}" if field.name == "key" else "{}"
        else:
            path = f"{path}.{field.name}"
        if shape != shape_of(field):
            raise _misfit(path, written, field)
        path += "[]" if shape == "repeated" else ""
        if shape != "map":
            _check(written, field, path)
    if written.message_type is not None:
        inner = None if field is None else message_of(field)
        of_values = _Pair(written.message_type, inner, "row" if inner is None else meaning_of(inner))
        return {**found, "message": number_of(of_values, path)}
    kind = kind_of(written if field is None else field)
    if field is None and kind == "string" and is_proto2(pair.written.file):
        # Protobuf does not check its characters.
        kind = "binary"
    names = {**_names(written), **({} if field is None else _names(field))} if kind == "enum" else {}
    return {**found, "as": kind, "names": names}


def _presence(written: FieldDescriptor, meaning: str) -> str:
    """Whether a field that is not there is wrong (required), null (optional), or has a value (always)."""
    if meaning == "value":
        return "optional"
    if meaning not in {"row", "empty"}:
        return "always"
    if is_required(written):
        return "required"
    return "optional" if written.has_presence else "always"


def _excluded(written: FieldDescriptor) -> Iterable[int]:
    """The numbers of the other fields of a `oneof`."""
    around = written.containing_oneof
    return () if around is None else (each.number for each in around.fields if each.number != written.number)


def _check(written: FieldDescriptor, field: FieldDescriptor, path: str) -> None:
    """Refuses a field whose values the reader's type may not hold."""
    has, wants = kind_of(written), kind_of(field)
    if {has, wants} & OWN_MEANING:
        # Messages of other meanings have the same fields: Timestamp and Duration.
        fits = has == wants and _described(written) == _described(field)
    elif wants in {"message", "empty"}:
        fits = has in {"message", "empty"}
    else:
        fits = has == wants or wants in _WIDENS.get(has, ())
    if not fits:
        raise _misfit(path, written, field)
    if written.enum_type is None or field.enum_type is None:
        return
    numbers = {value.name: value.number for value in field.enum_type.values}
    for value in written.enum_type.values:
        # By its number, a value would become another one.
        number = numbers.get(value.name, value.number)
        if number != value.number:
            msg = f"the enum of the field {path} ({field.number}) has {value.name} as {value.number}, not as {number}"
            raise MisfitError(msg)


def _names(field: FieldDescriptor) -> Mapping[int, str]:
    """The names of an enum by number; of names for the same number the first one."""
    values = () if field.enum_type is None else field.enum_type.values
    return {value.number: value.name for value in reversed(values)}


def _misfit(path: str, written: FieldDescriptor, field: FieldDescriptor) -> MisfitError:
    return MisfitError(f"the field {path} ({field.number}) is {_described(written)}, not {_described(field)}")


def _described(field: FieldDescriptor) -> str:
    if shape_of(field) == "map":
        return f"map<{_described(entry_of(field, 'key'))}, {_described(entry_of(field, 'value'))}>"
    named = field.message_type or field.enum_type
    name = named.full_name if named is not None else type_name(field)
    return f"repeated {name}" if shape_of(field) == "repeated" else name
