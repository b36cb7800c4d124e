"""ProtobufSerializer: columns in Protobuf's binary encoding, with a schema registry.

The schema of columns, and how rows fill a message of a given one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError, SchemaNotFoundError
from dagster_kafka_flip.formats.column_types import STRING, WHOLE, parts_of
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_schema import message_named, schema_of
from dagster_kafka_flip.formats.protobuf_types import entry_of, kind_of, message_of, shape_of
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.nested import (
    INSTEAD,
    Conversion,
    SchemaPath,
    check_columns,
    of_array,
    of_map,
    of_struct,
    of_text,
)
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializers import serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql import Column

    from dagster_kafka_flip.formats.column_types import ColumnType, Field
    from dagster_kafka_flip.formats.protobuf_schema import ProtobufSchema
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
    from dagster_kafka_flip.registry.schemas import Schemas
    from dagster_kafka_flip.sink.protobuf_encoding import FieldPlan, Value


class ProtobufSerializer(RegistrySerializer):
    """Writes keys or values in Protobuf's binary encoding, with the package protobuf on Spark's executors.

    The schema is derived from the columns, unless one is given: a message `Record`, whose fields keep their numbers
    from one schema of the subject to the next. Columns and fields are matched by name. Decimals, dates and times
    without a zone become strings: Protobuf has no type for them. A list or map that is null, or contains a null, is a
    RowNotSerializableError, because Protobuf would write an empty one.

    Args:
        schema: The schema to register: the text of a .proto file, or its Path. Default: derived from the columns.
        message: The message, such as `shop.Order`. Default: the schema's only message.
        registry: See RegistrySerializer.
        columns: See RegistrySerializer.
        use_latest: See RegistrySerializer.
        subject: See RegistrySerializer.
    """

    kind = "PROTOBUF"

    message: str | None = None

    @check_arguments
    def __init__(
        self,
        schema: str | Path | None = None,
        *,
        message: str | None = None,
        registry: SchemaRegistry | str,
        columns: Sequence[str] = (),
        use_latest: bool = False,
        subject: str | None = None,
    ) -> None:
        super().__init__(
            registry=registry,
            columns=columns,  # pyright: ignore[reportArgumentType]
            declared=schema,  # pyright: ignore[reportArgumentType]
            message=message,  # pyright: ignore[reportCallIssue]
            use_latest=use_latest,
            subject=subject,
        )

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> str | None:
        if isinstance(declared, Path):
            try:
                return declared.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"a ProtobufSerializer's schema: {declared} can't be read ({error})") from None
        if declared is not None and not isinstance(declared, str):
            raise ConfigurationError(
                f"a ProtobufSerializer's schema is the text of a .proto file, or its Path, not "
                f"{type(declared).__name__}"
            )
        return declared

    def made(self, columns: ColumnType, latest: RegisteredSchema | None) -> str:
        """The schema of columns, with the numbers of the latest one's fields."""
        known = None
        if latest is not None and latest.kind == self.kind:
            schema = _schema(latest, f"schema {latest.schema_id} of the subject {latest.subject!r}")
            known = schema.message(MESSAGE) if MESSAGE in schema.messages else None
        return proto_of(columns, known)

    def _latest(self, schemas: Schemas, subject: str) -> RegisteredSchema | None:
        try:
            return schemas.latest(subject)
        except SchemaNotFoundError:
            return None

    def whole(self, columns: ColumnType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem, and the message indexes."""
        from pyspark import cloudpickle
        from pyspark.sql import functions as f

        from dagster_kafka_flip.sink import protobuf_encoding

        parsed = _schema(schema, what)
        try:
            message = message_named(parsed, self.message)
        except ValueError as error:
            raise ConfigurationError(f"{what}: {error}") from None
        plan, conversion = plan_of(columns, message, what)
        # Executors don't have this package.
        cloudpickle.register_pickle_by_value(protobuf_encoding)
        encode = protobuf_encoding.encoding(parsed.serialized(), message.full_name, plan)
        # Not with Arrow: in Spark 4.0 it turns NaN into null. And Spark would encode a row twice if it might.
        encoded = f.udf(encode, "content binary, problem string", useArrow=False).asNondeterministic()
        value = struct_of(columns.names)
        whole = encoded(conversion.changed(value))
        if conversion.wrong is not None:
            # Known only here: on its way to Python a text gets other characters.
            wrong = conversion.wrong(value)
            whole = f.when(wrong.isNull(), whole).otherwise(serialized(f.lit(None).cast("binary"), wrong))
        return whole, _indexes(parsed, message.full_name, what)


def _schema(schema: RegisteredSchema, what: str) -> ProtobufSchema:
    try:
        return schema_of(compiled(schema.text, schema.references))
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None


def _indexes(schema: ProtobufSchema, name: str, what: str) -> bytes:
    """Confluent's message indexes: how many numbers lead to the message, and these."""
    found = [indexes for indexes, each in schema.by_indexes().items() if each == name]
    if len(found) != 1:
        raise ConfigurationError(
            f"{what}: Confluent's clients do not agree on the place of the message {name}", "Put it first in the file"
        )
    (indexes,) = found
    # The first message of a file is a single zero.
    return b"\x00" if indexes == (0,) else b"".join(_varint(each) for each in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    """A number in zigzag code."""
    left, found = number << 1, bytearray()
    while left > 0x7F:  # noqa: PLR2004 -- seven bits a byte
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


MESSAGE = "Record"
"""Name of the message that is made of columns."""

_TIMESTAMP = "google.protobuf.Timestamp"

# Protobuf has no types for others: their digits, as text.
_NAMES = {
    "BOOLEAN": "bool",
    "TINYINT": "int32",
    "SMALLINT": "int32",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BINARY": "bytes",
    "TIMESTAMP_LTZ": _TIMESTAMP,
}
# How the values of columns are written as a kind of field.
_HOW: Mapping[str, Mapping[str, str]] = {
    "boolean": {"BOOLEAN": "plain"},
    "int": dict.fromkeys(WHOLE[:-1], "plain"),
    "bigint": dict.fromkeys(WHOLE, "plain"),
    # Of DECIMAL only whole ones.
    "decimal": dict.fromkeys((*WHOLE, "DECIMAL"), "integer"),
    "float": {"FLOAT": "plain"},
    "double": {"FLOAT": "plain", "DOUBLE": "plain"},
    "binary": {"BINARY": "bytes"},
    "timestamp": {"TIMESTAMP_LTZ": "timestamp"},
    "string": {"STRING": "plain", "DECIMAL": "digits", "DATE": "plain", "TIMESTAMP_NTZ": "plain"},
}

# Protobuf keeps these numbers for itself.
_FIRST_KEPT, _LAST_KEPT = 19_000, 19_999
_LONGEST = 1000


def proto_of(columns: ColumnType, known: Descriptor | None) -> str:
    """Returns a .proto file with the message of columns.

    Fields keep the numbers that they have in an earlier message, whatever the order of columns; others get new ones,
    and the numbers of fields that are gone are reserved.
    """
    check_columns(columns, "Protobuf", (*WHOLE, "STRING", "BOOLEAN"))
    for path, field in parts_of(columns):
        if path.endswith(("[]", "{}")) and field.type.name in {"ARRAY", "MAP"}:
            raise ConfigurationError(
                f"the column {path} is a list or map inside another, which has no exact form in Protobuf", INSTEAD
            )
    lines = [*_message_lines(MESSAGE, columns, known)]
    imports = ['import "google/protobuf/timestamp.proto";', ""] if any(_TIMESTAMP in line for line in lines) else []
    return "\n".join(['syntax = "proto3";', "", *imports, *lines, ""])


def _message_lines(name: str, struct: ColumnType, known: Descriptor | None) -> Iterator[str]:
    before = {} if known is None else {field.name: field for field in known.fields}
    kept = set() if known is None else _numbers_of(known)
    numbers = {field.name: before[field.name].number for field in struct.fields if field.name in before}
    highest = max(kept, default=0)
    for field in struct.fields:
        if field.name not in numbers:
            highest += 1
            if _FIRST_KEPT <= highest <= _LAST_KEPT:
                highest = _LAST_KEPT + 1
            numbers[field.name] = highest
    yield f"message {name} {{"
    gone = sorted(kept - set(numbers.values()))
    if gone:
        yield f"  reserved {', '.join(map(str, gone))};"
    for field in sorted(struct.fields, key=lambda each: numbers[each.name]):
        for line in _field_lines(field, before.get(field.name), numbers[field.name], struct.names):
            yield f"  {line}"
    yield "}"


def _numbers_of(known: Descriptor) -> set[int]:
    """The numbers that a message uses or reserved."""
    from google.protobuf.descriptor_pb2 import DescriptorProto

    proto = DescriptorProto()
    known.CopyToProto(proto)
    return {field.number for field in known.fields}.union(
        # Its own reservations are single numbers; a range to the largest number would not end.
        *(range(each.start, min(each.end, each.start + _LONGEST)) for each in proto.reserved_range)
    )


def _field_lines(field: Field, known: FieldDescriptor | None, number: int, siblings: list[str]) -> Iterator[str]:
    kind, name = field.type, field.name
    is_map = kind.name == "MAP"
    single = kind.inner.type if is_map or kind.name == "ARRAY" else kind
    label = "" if is_map else "optional " if single is kind else "repeated "
    if single.name == "STRUCT":
        type_name = f"{name}_type"
        # In one message no field may have the name of a message.
        while type_name in siblings:
            type_name += "_"
        yield from _message_lines(type_name, single, _inner_message(known))
    else:
        type_name = _NAMES.get(single.name, "string")
    if is_map:
        type_name = f"map<{_NAMES.get(kind.fields[0].type.name, 'string')}, {type_name}>"
    yield f"{label}{type_name} {name} = {number};"


def _inner_message(known: FieldDescriptor | None) -> Descriptor | None:
    if known is None:
        return None
    value = entry_of(known, "value") if shape_of(known) == "map" else known
    return value.message_type if kind_of(value) == "message" else None


def plan_of(columns: ColumnType, message: Descriptor, what: str) -> tuple[list[FieldPlan], Conversion]:
    """Returns how rows fill a message, and what is done with their columns before. Fields are matched by name."""
    return _message_plan(columns, message, SchemaPath(what=what))


def _message_plan(struct: ColumnType, message: Descriptor, at: SchemaPath) -> tuple[list[FieldPlan], Conversion]:
    plans: list[FieldPlan] = []
    conversions: list[tuple[str, Conversion]] = []
    for column in struct.fields:
        inside = at.deeper(f".{column.name}")
        field = message.fields_by_name.get(column.name)
        if field is None:
            names = ", ".join(each.name for each in message.fields)
            raise inside.misfit(f"is a column, but {message.full_name} has no such field; its fields are {names}")
        plan, conversion = _field_plan(column.type, field, inside)
        plans.append(plan)
        conversions.append((column.name, conversion))
    return plans, of_struct(conversions)


def _field_plan(kind: ColumnType, field: FieldDescriptor, at: SchemaPath) -> tuple[FieldPlan, Conversion]:
    shape = shape_of(field)
    if shape == "map" and kind.name == "MAP":
        key = kind.fields[0].type
        (how, _), changed = _value_plan(key, entry_of(field, "key"), at)
        # Keys are written as they are.
        if how not in {"plain", "integer"} or changed.change is not None:
            raise at.misfit(f"has keys of type {key}, but the schema has different ones")
        inside = at.deeper("{}")
        value, conversion = _value_plan(kind.inner.type, entry_of(field, "value"), inside)
        return (field.name, "map", value), of_map(conversion, of_text(inside.path) if key == STRING else Conversion())
    if shape == "repeated" and kind.name == "ARRAY":
        value, conversion = _value_plan(kind.inner.type, field, at.deeper("[]"))
        return (field.name, "repeated", value), of_array(conversion)
    if shape != "single" or kind.name in {"ARRAY", "MAP"}:
        raise at.misfit(f"is {kind}, but a {shape} field in the schema")
    value, conversion = _value_plan(kind, field, at)
    return (field.name, "optional" if field.has_presence else "always", value), conversion


def _value_plan(kind: ColumnType, field: FieldDescriptor, at: SchemaPath) -> tuple[Value, Conversion]:
    wanted = kind_of(field)
    if wanted == "message" and kind.name == "STRUCT":
        plans, conversion = _message_plan(kind, message_of(field), at)
        return ("message", plans), conversion
    if wanted == "wrapper":
        (inner, _), conversion = _value_plan(kind, entry_of(field, "value"), at)
        return ("wrapper", inner), conversion
    found = _scalar_plan(kind, wanted, field, at)
    if found is None:
        name = field.message_type.full_name if field.message_type is not None else wanted
        raise at.misfit(f"is {kind}, but {name} in the schema")
    return found


def _scalar_plan(
    kind: ColumnType, wanted: str, field: FieldDescriptor, at: SchemaPath
) -> tuple[Value, Conversion] | None:
    """How a value that holds no others is written; None if the schema has another type."""
    if wanted == "enum" and kind == STRING and field.enum_type is not None:
        return ("enum", {value.name: value.number for value in field.enum_type.values}), Conversion()
    how = _HOW.get(wanted, {}).get(kind.name)
    if how is None or (how == "integer" and kind.digits[1] > 0):
        return None
    changes: Mapping[str, Callable[[Column], Column]] = {
        "DATE": lambda value: value.cast("string"),
        "TIMESTAMP_NTZ": _clock,
        "TIMESTAMP_LTZ": _micros,
    }
    return (how, None), of_text(at.path) if kind == STRING else Conversion(changes.get(kind.name))


def _clock(value: Column) -> Column:
    """What a clock shows. Not by date_format, which takes it for a time of the session's zone: its clock skips some."""
    from pyspark.sql import functions as f

    text = f.to_csv(f.struct(value.alias("value")), {"timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"})
    return f.when(value.isNotNull(), text)


def _micros(value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.unix_micros(value)
