"""Decodes Protobuf on Spark's executors.

The module is sent to them as it is, because they have the package protobuf, but not this one. So it imports nothing
from this package.

A *plan* says how a value becomes a column's: its kind, and what that kind needs. A message's plan has one entry for
each field of the column's STRUCT: the name of the field in the writer's schema (None if it is not there), its shape,
and the plan of its value.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Plan = tuple[str, Any]
"""The kind of a value, and what it needs: the fields of a message, the names of an enum, the plan in a wrapper."""

FieldPlan = tuple["str | None", str, Plan, "Plan | None"]
"""A field's name, its shape (always, optional, repeated, map), the plan of its value, and that of a map's key."""

Messages = tuple[bytes, "Mapping[tuple[int, ...], tuple[str, Plan] | str]"]
"""A descriptor set, and by message indexes the name and the plan of a message, or why it can't be read."""

_MOST_NANOS = 999_999_999
# The years 1 to 9999.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_MOST_SECONDS = 315_576_000_000
# Larger numbers are not exact.
_EXACT = 2**53
_MOST_INDEXES = 100
_MOST_VARINT = 63
_NUMBER, _NUMBER_BYTES = 0, 5
_GUID, _GUID_BYTES = 1, 17
_LENGTH_BYTES = 4
# Two bytes of an empty message become a whole STRUCT: without a limit, a record of a few megabytes takes all of a
# worker's memory, and Java's.
_MOST_VALUES = 5_000_000


class _WrongRecord(Exception):  # noqa: N818 -- it never leaves this module
    """Why a record can't be decoded."""


class _Values:
    """How many values one record may still have."""

    def __init__(self) -> None:
        self._left = 0

    def begin(self) -> None:
        """Begins a record."""
        self._left = _MOST_VALUES

    def take(self, count: int) -> None:
        """Takes some."""
        self._left -= count
        if self._left < 0:
            msg = f"it has more than {_MOST_VALUES:,} values"
            raise _WrongRecord(msg)


def decoding(
    schemas: Mapping[bytes, tuple[str, Messages | str]] | None, own: tuple[bytes, str, Plan] | None, unknown: str
) -> Callable[[bytes | None], tuple[Any, str | None] | None]:
    """Returns a function that decodes a payload: its content, or why it can't be decoded.

    Args:
        schemas: By frame a schema's id and its messages, or why it can't be read; None if nothing precedes the
            content. Each payload is then followed by four bytes: how many of its first bytes were in a header.
        own: The descriptor set, the name and the plan of the only message, if nothing precedes the content.
        unknown: Marks what has to be asked for; the frame follows in hexadecimal digits.
    """
    ready: dict[Any, tuple[Any, Callable[[Any], Any]]] = {}
    values = _Values()

    def decode(data: bytes | None) -> tuple[Any, str | None] | None:
        if data is None:
            return None
        prefix = ""
        try:
            if own is not None:
                key, kind, content = None, own, bytes(data)
            else:
                key, prefix, kind, content = _located(schemas or {}, bytes(data), unknown)
            if key not in ready:
                descriptor_set, name, (_, fields) = kind
                ready[key] = _message_class(descriptor_set, name), _message(fields, values)
            values.begin()
            return _decoded(*ready[key], content), None
        except _WrongRecord as error:
            return None, f"{prefix}{error}"

    return decode


def _located(
    schemas: Mapping[bytes, tuple[str, Messages | str]], data: bytes, unknown: str
) -> tuple[Any, str, tuple[bytes, str, Plan], bytes]:
    """What a framed payload holds: a key, what a reason begins with, the message, and its content."""
    data, in_header = data[:-_LENGTH_BYTES], int.from_bytes(data[-_LENGTH_BYTES:], "big")
    size = _frame_size(data)
    frame = data[:size]
    if frame not in schemas:
        # Without a frame, another message says so.
        msg = f"{unknown} {frame.hex().upper()}" if size else "no frame"
        raise _WrongRecord(msg)
    what, messages = schemas[frame]
    if isinstance(messages, str):
        raise _WrongRecord(messages)
    indexes, start = _indexes(data[:in_header] if in_header else data, size, what)
    if in_header and start != in_header:
        msg = f"{what}: extra bytes follow the message indexes in its header"
        raise _WrongRecord(msg)
    found = messages[1].get(indexes)
    if found is None:
        msg = f"{what}: its message indexes {list(indexes)} match no message in it"
        raise _WrongRecord(msg)
    if isinstance(found, str):
        msg = f"{what} {found}"
        raise _WrongRecord(msg)
    return (frame, indexes), f"{what}: ", (messages[0], *found), data[start:]


def _frame_size(data: bytes) -> int:
    if data[:1] == bytes([_NUMBER]) and len(data) >= _NUMBER_BYTES:
        return _NUMBER_BYTES
    return _GUID_BYTES if data[:1] == bytes([_GUID]) and len(data) >= _GUID_BYTES else 0


def _indexes(data: bytes, at: int, what: str) -> tuple[tuple[int, ...], int]:
    """The message indexes behind a frame, and where the content begins."""
    count, at = _varint(data, at, what)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        msg = f"{what}: it claims {count} message indexes"
        raise _WrongRecord(msg)
    found: list[int] = []
    for _ in range(count):
        index, at = _varint(data, at, what)
        found.append(index)
    return tuple(found), at


def _varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    """A number in zigzag code, and where the next one begins."""
    number = shift = 0
    while at < len(data) and shift <= _MOST_VARINT:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 -- the bit that says that more follow
            return (number >> 1) ^ -(number & 1), at
    msg = f"{what}: its message indexes are {'cut off' if at >= len(data) else 'not numbers'}"
    raise _WrongRecord(msg)


def _message_class(descriptor_set: bytes, name: str) -> Any:
    try:
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
    except ImportError as error:
        msg = (
            "Spark's executors lack the Python package protobuf, which ProtobufFormat needs there: install it for the "
            f"Python that PYSPARK_PYTHON names ({error})"
        )
        raise RuntimeError(msg) from error
    # A separate pool: schemas of other records may have other messages with the same names.
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor_set).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _decoded(kind: Any, convert: Callable[[Any], Any], data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = kind()
    try:
        message.ParseFromString(data)
        if not message.IsInitialized():
            # The name alone: a path to it has keys of maps in it, which are values.
            missing = ", ".join(sorted({path.rpartition(".")[2] for path in message.FindInitializationErrors()}))
            msg = f"the required field {missing} is missing"
            raise _WrongRecord(msg)
        return convert(message)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        msg = f"it is not {name}, is truncated, is nested too deeply, or a string in it is not valid UTF-8"
        raise _WrongRecord(msg) from None
    except UnicodeDecodeError:
        msg = "a string in it is not valid UTF-8"
        raise _WrongRecord(msg) from None
    except RecursionError:
        msg = "it is nested too deeply"
        raise _WrongRecord(msg) from None


def _width(plan: Plan) -> int:
    """How many values there are in a value, not counting messages in it."""
    kind, more = plan
    return len(more) if kind == "message" else 1


def _converter(plan: Plan, values: _Values) -> Callable[[Any], Any] | None:
    """Returns the function that turns a Protobuf value into a column's value; None if none is needed."""
    kind, more = plan
    if kind == "message":
        return _message(more, values)
    if kind == "enum":
        return lambda number: more.get(number) or str(number)
    if kind == "wrapper":
        convert = _converter(more, values)
        return attrgetter("value") if convert is None else lambda wrapper: convert(wrapper.value)
    known: dict[str, Callable[[Any], Any]] = {
        "decimal": Decimal,
        "string": _text,
        "empty": lambda _: True,
        "timestamp": _timestamp,
        "duration": _duration,
        "json": lambda value: json.dumps(_JSON[more](value), ensure_ascii=False, sort_keys=True),
    }
    return known.get(kind)


def _message(fields: list[FieldPlan], values: _Values) -> Callable[[Any], Any]:
    steps = [_step(*field, values) for field in fields]
    return lambda message: tuple([step(message) for step in steps])  # faster than a generator


def _step(name: str | None, shape: str, value: Plan, key: Plan | None, values: _Values) -> Callable[[Any], Any]:
    """What reads one field of a message."""
    if name is None:
        return lambda _: None
    get, convert = attrgetter(name), _converter(value, values)
    width = _width(value)
    if shape in {"map", "repeated"}:

        def counted(message: Any) -> Any:
            found = get(message)
            values.take(len(found) * width)
            return found

        if shape == "map":
            of_key = (None if key is None else _converter(key, values)) or _same
            of_value = convert or _same
            return lambda message: {of_key(each): of_value(inner) for each, inner in counted(message).items()}
        if convert is None:
            return lambda message: list(counted(message))
        return lambda message: [convert(each) for each in counted(message)]
    if shape == "optional":
        of_value = convert or _same

        def present(message: Any) -> Any:
            if not message.HasField(name):
                return None
            if width > 1:
                values.take(width)
            return of_value(get(message))

        return present
    return get if convert is None else lambda message: convert(get(message))


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    # In proto2 texts are not checked: protobuf hands out bytes, or raises.
    if value.__class__ is not str:
        msg = "a string in it is not valid UTF-8"
        raise _WrongRecord(msg)
    return value


def _timestamp(value: Any) -> dt.datetime:
    seconds, nanos = value.seconds, value.nanos
    if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos <= _MOST_NANOS):
        msg = "a google.protobuf.Timestamp in it is out of range"
        raise _WrongRecord(msg)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return epoch + dt.timedelta(seconds=seconds, microseconds=nanos // 1000)


def _duration(value: Any) -> Decimal:
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > _MOST_SECONDS or abs(nanos) > _MOST_NANOS or seconds * nanos < 0:
        msg = "a google.protobuf.Duration in it is out of range"
        raise _WrongRecord(msg)
    return Decimal(seconds * 1_000_000_000 + nanos).scaleb(-9)


def _json_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None:
        msg = "a google.protobuf.Value in it has no value"
        raise _WrongRecord(msg)
    if kind == "null_value":
        return None
    if kind == "struct_value":
        return _json_object(value.struct_value)
    if kind == "list_value":
        return _json_array(value.list_value)
    if kind != "number_value":
        return getattr(value, kind)
    number = value.number_value
    if not math.isfinite(number):
        msg = "a google.protobuf.Value in it is not a JSON number (NaN or infinite)"
        raise _WrongRecord(msg)
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


def _json_object(value: Any) -> dict[str, Any]:
    return {name: _json_value(each) for name, each in value.fields.items()}


def _json_array(value: Any) -> list[Any]:
    return [_json_value(each) for each in value.values]


_JSON: dict[str, Callable[[Any], Any]] = {"Struct": _json_object, "Value": _json_value, "ListValue": _json_array}
