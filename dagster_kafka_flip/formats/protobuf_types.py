"""Protobuf's types as columns, and how a writer's message is read as the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.formats.protobuf_decoding import FieldPlan, Plan

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

# A larger type holds each of these values exactly. An enum is a number.
_WIDENS = {
    "int": {"bigint", "decimal", "enum"},
    "enum": {"int", "bigint", "decimal"},
    "bigint": {"decimal"},
    "float": {"double"},
}

_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WELL_KNOWN = {
    "google.protobuf.Timestamp": ("timestamp", None),
    "google.protobuf.Duration": ("duration", None),
    "google.protobuf.Struct": ("json", "Struct"),
    "google.protobuf.Value": ("json", "Value"),
    "google.protobuf.ListValue": ("json", "ListValue"),
    **{f"google.protobuf.{name}Value": ("wrapper", None) for name in _WRAPPERS},
}

_OWN_MEANING = {"timestamp", "duration", "wrapper", "json"}

# Messages that hold several of the same kind, several levels deep, would be columns without end.
_MOST_FIELDS = 10_000


class MisfitError(Exception):
    """Why a writer's message can't be read as the reader's."""


# Protobuf's own limit when it parses.
_MOST_LEVELS = 100


def check_columns(message: Descriptor, what: str) -> None:
    """Checks that a message can be turned into columns.

    Args:
        message: The message.
        what: Name of the schema in an error.

    Raises:
        ConfigurationError: It contains itself, has no fields or too many, or two names differ only in case.
    """
    if not message.fields:
        msg = f"{what}: the message {message.full_name} has no fields, but a table needs a column"
        raise ConfigurationError(msg)
    for number, problem in enumerate(_unreadable(message, message.name, ()), 1):
        if problem is not None:
            msg = f"{what}: {problem}"
            raise ConfigurationError(msg)
        if number > _MOST_FIELDS:
            msg = (
                f"{what}: the message {message.full_name} would become more than {_MOST_FIELDS} fields. Give a "
                "descriptor set with fewer, or land the bytes with RawFormat"
            )
            raise ConfigurationError(msg)


def struct(message: Descriptor) -> StructType:
    """The STRUCT of a message, which has been checked."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _data_type(field)) for field in message.fields])


def plan(writer: Descriptor, reader: Descriptor) -> Plan:
    """How to read a writer's message as the reader's, which has been checked.

    Raises:
        MisfitError: A field has another type.
    """
    return "message", [_field_plan(writer, field, reader.name) for field in reader.fields]


def _field_plan(writer: Descriptor, field: FieldDescriptor, path: str) -> FieldPlan:
    path = f"{path}.{field.name}"
    if field.number not in writer.fields_by_number:
        return None, "always", ("plain", None), None
    written = writer.fields_by_number[field.number]
    if shape_of(written) != shape_of(field):
        raise _misfit(path, written, field)
    if shape_of(field) == "map":
        value = _value_plan(entry_of(written, "value"), entry_of(field, "value"), f"{path}{{}}")
        return (
            written.name,
            "map",
            value,
            _value_plan(entry_of(written, "key"), entry_of(field, "key"), f"{path}{{key}}"),
        )
    if shape_of(field) == "repeated":
        return written.name, "repeated", _value_plan(written, field, f"{path}[]"), None
    return written.name, "optional" if written.has_presence else "always", _value_plan(written, field, path), None


def _value_plan(written: FieldDescriptor, field: FieldDescriptor, path: str) -> Plan:
    has, wants = kind_of(written), kind_of(field)
    is_message = wants in {"message", "empty"}
    if {has, wants} & _OWN_MEANING:
        # Messages of other meanings have the same fields: Timestamp and Duration.
        if has != wants or _described(written) != _described(field):
            raise _misfit(path, written, field)
    elif is_message and has in {"message", "empty"}:
        if wants == "empty":
            return "empty", None
        inner = message_of(field)
        return "message", [_field_plan(message_of(written), each, path) for each in inner.fields]
    elif has != wants and wants not in _WIDENS.get(has, ()):
        raise _misfit(path, written, field)
    if wants == "enum":
        _check_enum(written, field, path)
        return "enum", {**_numbers(written), **_numbers(field)}
    if wants == "wrapper":
        return "wrapper", _value_plan(entry_of(written, "value"), entry_of(field, "value"), path)
    if wants == "json":
        return "json", _WELL_KNOWN[message_of(field).full_name][1]
    return (wants, None) if wants in {"decimal", "string", "timestamp", "duration"} else ("plain", None)


def _numbers(field: FieldDescriptor) -> dict[int, str]:
    """The names of an enum by number; of names for the same number the first one."""
    if field.enum_type is None:
        return {}
    found: dict[int, str] = {}
    for value in field.enum_type.values:
        found.setdefault(value.number, value.name)
    return found


def _check_enum(written: FieldDescriptor, field: FieldDescriptor, path: str) -> None:
    """Refuses enums in which a name means two numbers: by its number, a value would become another one."""
    if written.enum_type is None or field.enum_type is None:
        return
    numbers = {value.name: value.number for value in field.enum_type.values}
    for value in written.enum_type.values:
        number = numbers.get(value.name, value.number)
        if number != value.number:
            msg = f"the enum of the field {path} ({field.number}) has {value.name} as {value.number}, not as {number}"
            raise MisfitError(msg)


def _misfit(path: str, written: FieldDescriptor, field: FieldDescriptor) -> MisfitError:
    return MisfitError(f"the field {path} ({field.number}) is {_described(written)}, not {_described(field)}")


def _described(field: FieldDescriptor) -> str:
    if shape_of(field) == "map":
        return f"map<{_described(entry_of(field, 'key'))}, {_described(entry_of(field, 'value'))}>"
    named = field.message_type or field.enum_type
    name = named.full_name if named is not None else _type_name(field)
    return f"repeated {name}" if shape_of(field) == "repeated" else name


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
        msg = f"{field.full_name} is not a message"
        raise TypeError(msg)
    return found


def kind_of(field: FieldDescriptor) -> str:
    """What kind of column a single value becomes."""
    if field.message_type is None:
        return _KINDS[_type_name(field)]
    known = _WELL_KNOWN.get(field.message_type.full_name)
    if known is not None and _is_genuine(field.message_type):
        return known[0]
    return "message" if field.message_type.fields else "empty"


def _type_name(field: FieldDescriptor) -> str:
    """What a scalar's type is called in Protobuf's language."""
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


def _data_type(field: FieldDescriptor) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if shape_of(field) == "map":
        return MapType(_single_type(entry_of(field, "key")), _single_type(entry_of(field, "value")))
    return ArrayType(_single_type(field)) if shape_of(field) == "repeated" else _single_type(field)


def _single_type(field: FieldDescriptor) -> DataType:
    from pyspark.sql import types as t

    kind = kind_of(field)
    if kind == "message":
        return struct(message_of(field))
    if kind == "wrapper":
        return _single_type(entry_of(field, "value"))
    known: dict[str, DataType] = {
        "double": t.DoubleType(),
        "float": t.FloatType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "decimal": t.DecimalType(20, 0),
        "boolean": t.BooleanType(),
        "empty": t.BooleanType(),
        "binary": t.BinaryType(),
        "timestamp": t.TimestampType(),
        "duration": t.DecimalType(21, 9),
    }
    return known.get(kind, t.StringType())


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
        if len(around) > _MOST_LEVELS:
            yield f"its messages are nested more than {_MOST_LEVELS} levels deep, Protobuf's limit"
            return
        yield None
        if inner is not None and kind_of(value) == "message":
            yield from _unreadable(inner, at, around)
