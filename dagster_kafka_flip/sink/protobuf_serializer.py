"""ProtobufSerializer: the Protobuf schema of columns, and how rows fill a message of a given one."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError, SchemaNotFoundError
from dagster_kafka_flip.formats.column_types import STRING, WHOLE, parts_of
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_schema import message_named, schema_of
from dagster_kafka_flip.formats.protobuf_types import (
    COLUMNS,
    entry_of,
    is_required,
    kind_of,
    message_of,
    shape_of,
    type_name,
)
from dagster_kafka_flip.runtime.jvm_library import CATALOG
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.sink import conversion
from dagster_kafka_flip.sink.conversion import (
    INSTEAD,
    NOT_NULL,
    Conversion,
    SchemaPath,
    check_columns,
    of_text,
    widened,
    without,
)
from dagster_kafka_flip.sink.serializers import RegistrySerializer, serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql import Column

    from dagster_kafka_flip.formats.column_types import ColumnType, Field
    from dagster_kafka_flip.formats.protobuf_schema import ProtobufSchema
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schemas import Schemas
    from dagster_kafka_flip.sink.conversion import Inside


class ProtobufSerializer(RegistrySerializer):
    """Writes keys or values in Protobuf's binary encoding, with this package's Java library; ProtobufFormat reads them.

    The schema is derived from the columns, unless one is given: a message `Record`, whose fields keep their numbers
    from one schema of the subject to the next. Columns and fields are matched by name. Decimals, dates and times
    without a zone become strings: Protobuf has no type for them. A list or map that is null, or contains a null, is a
    RowNotSerializableError, because Protobuf would write an empty one.

    Attributes:
        schema: The schema to register: the text of a .proto file, or its Path. Default: derived from the columns.
        message: The message, such as `shop.Order`. Default: the schema's only message.
    """

    kind = "PROTOBUF"
    uses_library = True

    message: str | None = None

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

    def made(self, columns: ColumnType, schemas: Schemas, subject: str) -> str:
        known = None
        with contextlib.suppress(SchemaNotFoundError):
            latest = schemas.latest(subject)
            if latest.kind == self.kind:
                schema = _schema(latest, f"schema {latest.schema_id} of the subject {subject!r}")
                known = schema.message(MESSAGE) if MESSAGE in schema.messages else None
        return proto_of(columns, known)

    def whole(self, columns: ColumnType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        parsed = _schema(schema, what)
        try:
            message = message_named(parsed, self.message)
        except ValueError as error:
            raise ConfigurationError(f"{what}: {error}") from None
        found, value = conversion_of(columns, message, what), struct_of(columns.names)
        plan = f.lit(json.dumps({"fields": _plan(columns, message)}))
        content = f.call_function(f"{CATALOG}.encode_protobuf", found.changed(value), plan)
        return serialized(content, found.problem(value)), _indexes(parsed, message.full_name, what)


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
    **dict.fromkeys(WHOLE[:-1], "int32"),
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "bool",
    "BINARY": "bytes",
    "TIMESTAMP_LTZ": _TIMESTAMP,
}
# The first second that google.protobuf.Timestamp has, and the first that it has no longer.
_SECONDS = -62_135_596_800, 253_402_300_800
_UNSIGNED = {"uint32": 2**32, "fixed32": 2**32, "uint64": 2**64, "fixed64": 2**64}

_KEPT_BY_PROTOBUF = range(19_000, 20_000)
_LONGEST = 1000


def proto_of(columns: ColumnType, known: Descriptor | None) -> str:
    """A .proto file with the message of columns.

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
            if highest in _KEPT_BY_PROTOBUF:
                highest = _KEPT_BY_PROTOBUF.stop
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


def conversion_of(columns: ColumnType, message: Descriptor, what: str) -> Conversion:
    """What is done with columns before they fill a message. Fields are matched by name."""
    return conversion.conversion_of(columns, ("message", message), SchemaPath(what), _fit)


def _fit(kind: ColumnType, given: Any, at: SchemaPath) -> Sequence[Inside] | Conversion:
    shape, field = given
    if shape == "message":
        return _members(kind, field, at)
    if shape == "map" and kind.name == "MAP":
        return [(("single", entry_of(field, "key")), None), (("single", entry_of(field, "value")), _NONE_INSIDE)]
    if shape == "repeated" and kind.name == "ARRAY":
        return [(("single", field), _NONE_INSIDE)]
    if shape != "single" or kind.name in {"ARRAY", "MAP"}:
        raise at.misfit(f"is {kind}, but a {shape} field in the schema")
    wanted = kind_of(field)
    if wanted == "message" and kind.name == "STRUCT" and type_name(field) != "group":
        return _members(kind, message_of(field), at)
    if wanted == "wrapper":
        return _fit(kind, ("single", entry_of(field, "value")), at)
    found = _scalar(kind, wanted, field, at)
    if found is None:
        name = field.message_type.full_name if field.message_type is not None else wanted
        raise at.misfit(f"is {kind}, but {name} in the schema")
    return found


def _members(struct: ColumnType, message: Descriptor, at: SchemaPath) -> Sequence[Inside]:
    fields = message.fields_by_name
    for name in struct.names:
        if name not in fields:
            names = ", ".join(each.name for each in message.fields)
            why = f"is a column, but {message.full_name} has no such field; its fields are {names}"
            raise at.deeper(f".{name}").misfit(why)
    for field in message.fields:
        if is_required(field) and field.name not in struct.names:
            raise at.deeper(f".{field.name}").misfit("is a required field, and the table has no such column")
    return [((shape_of(fields[name]), fields[name]), _not_null(fields[name])) for name in struct.names]


_NONE_INSIDE = "and Protobuf has no null in lists and maps"


def _not_null(field: FieldDescriptor) -> str | None:
    """Why null has no form in a field; None if it has one."""
    if shape_of(field) != "single":
        return "and Protobuf has no null here, and an empty list or map is a different value"
    if is_required(field):
        return NOT_NULL
    return None if field.has_presence else "and Protobuf has no null for a field without presence"


def _scalar(kind: ColumnType, wanted: str, field: FieldDescriptor, at: SchemaPath) -> Conversion | None:
    """The conversion of a value that holds no others; None if the schema has another type."""
    if wanted == "enum" and kind == STRING and field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}
        by_name = f.create_map(*(f.lit(each) for pair in numbers.items() for each in pair))
        why = f"{at.path} is not a name of its enum"
        return without(lambda value: ~value.isin([*numbers]), why, lambda value: f.try_element_at(by_name, value))
    if wanted == "string" and kind.name in _TEXTS:
        # Of decimals the library writes all digits.
        return of_text(at.path) if kind == STRING else Conversion(_TEXTS[kind.name])
    has_value = wanted in COLUMNS and (field.message_type is None or wanted == "timestamp")
    found = widened(kind, COLUMNS[wanted]) if has_value else None
    if found is not None and wanted == "timestamp":
        first, end = (seconds * 1_000_000 for seconds in _SECONDS)
        why = f"{at.path} is not in the years 1 to 9999 of google.protobuf.Timestamp"
        return without(lambda value: ~f.unix_micros(value).between(first, end - 1), why)
    most = _UNSIGNED.get(type_name(field))
    if found is None or most is None:
        return found
    highest, why = Decimal(most - 1), f"{at.path} is out of the range of its field"
    return without(lambda value: ~value.cast("decimal(38,0)").between(f.lit(0), f.lit(highest)), why, found.change)


def _clock(value: Column) -> Column:
    """What a clock shows. Not by date_format, which takes it for a time of the session's zone: its clock skips some."""
    text = f.to_csv(f.struct(value.alias("value")), {"timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"})
    return f.when(value.isNotNull(), text)


# Columns that become texts, and what is done before.
_TEXTS: Mapping[str, Callable[[Column], Column] | None] = {
    "STRING": None,
    "DECIMAL": None,
    "DATE": lambda value: value.cast("string"),
    "TIMESTAMP_NTZ": _clock,
}


def _plan(struct: ColumnType, message: Descriptor) -> list[dict[str, Any]]:
    """How the library writes each field of a struct."""
    return [_field_plan(each.type, message.fields_by_name[each.name]) for each in struct.fields]


def _field_plan(kind: ColumnType, field: FieldDescriptor) -> dict[str, Any]:
    shape, meaning, around = shape_of(field), kind_of(field), field.containing_oneof
    single = kind.inner.type if shape == "repeated" else kind
    fields: list[dict[str, Any]] = []
    if shape == "map":
        sides = zip(kind.fields, ("key", "value"), strict=True)
        # As Google's serializers, which write both, whatever they are.
        fields = [{**_field_plan(each.type, entry_of(field, side)), "skips": False} for each, side in sides]
    elif meaning == "message":
        fields = _plan(single, message_of(field))
    elif meaning == "wrapper":
        fields = [_field_plan(single, entry_of(field, "value"))]
    return {
        "number": field.number,
        "oneof": around.name if around is not None and len(around.fields) > 1 else None,
        "shape": shape,
        "type": meaning if meaning in {"wrapper", "timestamp"} else type_name(field),
        "skips": shape == "single" and not field.has_presence,
        "fields": fields,
    }
