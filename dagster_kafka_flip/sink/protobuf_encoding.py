"""Encodes Protobuf on Spark's executors.

The module is sent to them as it is, because they have the package protobuf, but not this one. So it imports nothing
from this package.

A *plan* says how a row becomes a message: one entry for each field of the struct, in its order, with the name of the
message's field, its shape, the kind of its values, and what that kind needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Value = tuple[str, Any]
"""The kind of a value, and what it needs: the plan of a message, the numbers of an enum, the kind in a wrapper."""

FieldPlan = tuple[str, str, Value]
"""A field's name, its shape (always, optional, repeated, map), and the kind of its values."""

# The years 1 to 9999, as google.protobuf.Timestamp has them.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


class _WrongRow(Exception):  # noqa: N818 -- it never leaves this module
    """Why a row can't be encoded. Shows no values: they may be secrets."""


def encoding(descriptor_set: bytes, name: str, plan: list[FieldPlan]) -> Callable[[Any], tuple[Any, str | None]]:
    """Returns a function that encodes a struct: the bytes, or why there are none."""
    made: list[Any] = []

    def encode(row: Any) -> tuple[Any, str | None]:
        from google.protobuf.message import EncodeError

        if not made:
            made.append(_message_class(descriptor_set, name))
        message = made[0]()
        try:
            _fill(message, row, plan, "")
            # Maps in an order that each run repeats.
            return bytearray(message.SerializeToString(deterministic=True)), None
        except _WrongRow as error:
            return None, str(error)
        except EncodeError:
            missing = ", ".join(sorted({path.rpartition(".")[2] for path in message.FindInitializationErrors()}))
            return None, f"the required field {missing} has no value"

    return encode


def _message_class(descriptor_set: bytes, name: str) -> Any:
    try:
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
    except ImportError as error:
        raise RuntimeError(
            "Spark's executors lack the Python package protobuf, which ProtobufSerializer needs there: install it for "
            f"the Python that PYSPARK_PYTHON names ({error})"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor_set).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _fill(message: Any, row: Any, plan: list[FieldPlan], path: str) -> None:
    for (name, shape, value), found in zip(plan, row, strict=True):
        at = f"{path}.{name}".lstrip(".")
        if found is None:
            if shape == "optional":
                continue
            why = (
                "has no null here, and an empty list or map is a different value"
                if shape in {"repeated", "map"}
                else ("has no null for a field without presence")
            )
            raise _WrongRow(f"{at} is null, and Protobuf {why}")
        if shape == "repeated":
            target = getattr(message, name)
            for each in found:
                _put(target, shape, None, each, value, f"{at}[]")
        elif shape == "map":
            target = getattr(message, name)
            for key, each in found.items():
                _put(target, shape, key, each, value, f"{at}{{}}")
        else:
            _put(message, shape, name, found, value, at)


def _put(target: Any, shape: str, where: Any, found: Any, value: Value, at: str) -> None:
    """Puts one value into a list, a map or a message."""
    kind, more = value
    if found is None:
        raise _WrongRow(f"{at} is null, and Protobuf has no null in lists and maps")
    try:
        if kind in {"message", "timestamp", "wrapper"}:
            _fill_message(_inner(target, shape, where), found, value, at)
        elif shape == "repeated":
            target.append(_plain(found, kind, more, at))
        elif shape == "map":
            target[where] = _plain(found, kind, more, at)
        else:
            setattr(target, where, _plain(found, kind, more, at))
    except (ValueError, TypeError, OverflowError):
        raise _WrongRow(f"{at} is out of the range of its field") from None


def _inner(target: Any, shape: str, where: Any) -> Any:
    """A new message in a list, a map or a message."""
    if shape == "repeated":
        return target.add()
    if shape == "map":
        # Asking for it makes it.
        return target[where]
    inner = getattr(target, where)
    # Otherwise a message without values would be left out.
    inner.SetInParent()
    return inner


def _fill_message(inner: Any, found: Any, value: Value, at: str) -> None:
    kind, more = value
    if kind == "message":
        _fill(inner, found, more, at)
    elif kind == "wrapper":
        inner.value = _plain(found, more, None, at)
    else:
        seconds, micros = divmod(found, 1_000_000)
        if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
            raise _WrongRow(f"{at} is not in the years 1 to 9999 of google.protobuf.Timestamp")
        inner.seconds, inner.nanos = seconds, micros * 1000


def _plain(found: Any, kind: str, more: Any, at: str) -> Any:
    """The value as the package protobuf wants it."""
    if kind == "bytes":
        return bytes(found)
    if kind == "digits":
        return format(found, "f")
    if kind == "integer":
        return int(found)
    if kind == "enum":
        number = more.get(found)
        if number is None:
            raise _WrongRow(f"{at} is not a name of its enum")
        return number
    return found
