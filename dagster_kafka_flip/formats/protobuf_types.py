"""Protobuf's types as columns."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import MOST_LEVELS, STRING, ColumnType, Field, array_of, map_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

_KINDS = {
    "double": "double",
    "float": "float",
    "int64": "bigint",
    "uint64": "decimal",
    "int32": "int",
    "fixed64": "decimal",
    "fixed32": "bigint",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "uint32": "bigint",
    "enum": "enum",
    "sfixed32": "int",
    "sfixed64": "bigint",
    "sint32": "int",
    "sint64": "bigint",
}

_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WELL_KNOWN = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Struct": "struct",
    "google.protobuf.Value": "value",
    "google.protobuf.ListValue": "list",
    **{f"google.protobuf.{name}Value": "wrapper" for name in _WRAPPERS},
}

COLUMNS = {
    **{each: ColumnType(each.upper()) for each in ("double", "float", "int", "bigint", "boolean", "binary")},
    "decimal": ColumnType("DECIMAL", digits=(20, 0)),
    "duration": ColumnType("DECIMAL", digits=(21, 9)),
    "empty": ColumnType("BOOLEAN"),
    "timestamp": ColumnType("TIMESTAMP_LTZ"),
}
"""The columns of kinds; others are a STRING."""

OWN_MEANING = frozenset(_WELL_KNOWN.values())
"""The kinds of messages that are not a STRUCT of their fields."""

# Messages that hold several of the same kind, several levels deep, would be columns without end.
_MOST_FIELDS = 10_000


def check_columns(message: Descriptor, what: str) -> None:
    """Checks that a message can be turned into columns; `what` is the schema's name in an error."""
    if not message.fields:
        raise ConfigurationError(f"{what}: the message {message.full_name} has no fields, but a table needs a column")
    for number, problem in enumerate(_unreadable(message, message.name, ()), 1):
        if problem is not None:
            raise ConfigurationError(f"{what}: {problem}")
        if number > _MOST_FIELDS:
            raise ConfigurationError(
                f"{what}: the message {message.full_name} would become more than {_MOST_FIELDS} fields",
                "Give a descriptor set with fewer, or land the bytes with RawFormat",
            )


def struct_of(message: Descriptor) -> ColumnType:
    """The STRUCT of a message, which has been checked."""
    return ColumnType("STRUCT", tuple(Field(field.name, _column(field)) for field in message.fields))


def shape_of(field: FieldDescriptor) -> str:
    """Whether a field is `single`, `repeated` or a `map`."""
    if not _is_repeated(field):
        return "single"
    return "map" if field.message_type is not None and field.message_type.GetOptions().map_entry else "repeated"


def _is_repeated(field: Any) -> bool:
    # Newer versions of protobuf have no label, older ones no is_repeated.
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def entry_of(field: FieldDescriptor, name: str) -> FieldDescriptor:
    """The field `key` or `value` of a map, or the `value` of a wrapper."""
    return message_of(field).fields_by_name[name]


def message_of(field: FieldDescriptor) -> Descriptor:
    """The message that a field holds."""
    found = field.message_type
    if found is None:
        raise TypeError(f"{field.full_name} is not a message")
    return found


def is_required(field: Any) -> bool:
    """Whether a message is wrong without the field."""
    return field.is_required if hasattr(field, "is_required") else field.label == field.LABEL_REQUIRED


@lru_cache(maxsize=256)
def is_proto2(file: FileDescriptor) -> bool:
    """Whether a file is in proto2, whose strings Protobuf does not check."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    return FileDescriptorProto.FromString(file.serialized_pb).syntax in {"", "proto2"}


def kind_of(field: FieldDescriptor) -> str:
    """What kind of column a single value becomes."""
    if field.message_type is None:
        return _KINDS[type_name(field)]
    kind = meaning_of(field.message_type)
    return "message" if kind in {"row", "entry"} else kind


def meaning_of(message: Descriptor) -> str:
    """What a message means: a `row`, a map's `entry`, something `empty`, or one of OWN_MEANING."""
    known = _WELL_KNOWN.get(message.full_name)
    if known is not None and _is_genuine(message):
        return known
    if message.GetOptions().map_entry:
        return "entry"
    return "row" if message.fields else "empty"


def type_name(field: FieldDescriptor) -> str:
    """What its type is called in Protobuf's descriptors."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()  # pyright: ignore[reportArgumentType]


def _is_genuine(message: Descriptor) -> bool:
    """Whether a message with the name of a well-known one has its fields: a schema can bring a file of its own."""
    from google.protobuf import descriptor_pool

    for module in ("timestamp", "duration", "struct", "wrappers"):
        __import__(f"google.protobuf.{module}_pb2")
    own = descriptor_pool.Default().FindMessageTypeByName(message.full_name)
    return _signature(own) == _signature(message)


def _signature(message: Descriptor) -> list[tuple[Any, ...]]:
    return sorted((field.number, field.name, field.type, shape_of(field)) for field in message.fields)


def _column(field: FieldDescriptor) -> ColumnType:
    if shape_of(field) == "map":
        return map_of(_single(entry_of(field, "key")), _single(entry_of(field, "value")))
    return array_of(_single(field)) if shape_of(field) == "repeated" else _single(field)


def _single(field: FieldDescriptor) -> ColumnType:
    kind = kind_of(field)
    if kind == "message":
        return struct_of(message_of(field))
    if kind == "wrapper":
        return _single(entry_of(field, "value"))
    return COLUMNS.get(kind, STRING)


def _unreadable(message: Descriptor, path: str, around: tuple[str, ...]) -> Iterator[str | None]:
    """For each field, at any depth, why it can't be a column; None if it can."""
    around = (*around, message.full_name)
    seen: dict[str, str] = {}
    for field in message.fields:
        at = f"{path}.{field.name}"
        if (other := seen.setdefault(field.name.lower(), field.name)) != field.name:
            yield (
                f"the fields {other} and {field.name} of the message {message.full_name} differ only in case; names in "
                "Spark are not case-sensitive. Give a descriptor set that renames one; Protobuf matches fields by "
                "number"
            )
        value = entry_of(field, "value") if shape_of(field) == "map" else field
        inner = value.message_type
        if inner is not None and inner.full_name in around and kind_of(value) == "message":
            yield (
                f"the message {inner.full_name} contains itself ({at}), and a column can't. Give a descriptor set "
                "without that field, or land the bytes with RawFormat"
            )
            return
        if len(around) > MOST_LEVELS:
            yield f"its messages are nested more than {MOST_LEVELS} levels deep, Protobuf's limit"
            return
        yield None
        if inner is not None and kind_of(value) == "message":
            yield from _unreadable(inner, at, around)
