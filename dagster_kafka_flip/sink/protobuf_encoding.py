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
            _fill_list(getattr(message, name), found, value, f"{at}[]")
        elif shape == "map":
            _fill_map(getattr(message, name), found, value, f"{at}{{}}")
        else:
            _fill_one(message, name, found, value, at)


def _fill_one(message: Any, name: str, found: Any, value: Value, at: str) -> None:
    kind, more = value
    if kind in {"message", "timestamp", "wrapper"}:
        inner = getattr(message, name)
        # Otherwise a message without values would be left out.
        inner.SetInParent()
        _fill_message(inner, found, value, at)
        return
    try:
        setattr(message, name, _plain(found, kind, more, at))
    except (ValueError, TypeError, OverflowError):
        raise _out_of_range(at) from None


def _fill_message(inner: Any, found: Any, value: Value, at: str) -> None:
    kind, more = value
    if kind == "message":
        _fill(inner, found, more, at)
    elif kind == "wrapper":
        try:
            inner.value = _plain(found, more, None, at)
        except (ValueError, TypeError, OverflowError):
            raise _out_of_range(at) from None
    else:
        seconds, micros = divmod(found, 1_000_000)
        if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
            raise _WrongRow(f"{at} is not in the years 1 to 9999 of google.protobuf.Timestamp")
        inner.seconds, inner.nanos = seconds, micros * 1000


def _fill_list(target: Any, found: Any, value: Value, at: str) -> None:
    kind, more = value
    for each in found:
        if each is None:
            raise _no_null(at)
        if kind in {"message", "timestamp", "wrapper"}:
            _fill_message(target.add(), each, value, at)
            continue
        try:
            target.append(_plain(each, kind, more, at))
        except (ValueError, TypeError, OverflowError):
            raise _out_of_range(at) from None


def _fill_map(target: Any, found: Any, value: Value, at: str) -> None:
    kind, more = value
    for key, each in found.items():
        if each is None:
            raise _no_null(at)
        try:
            if kind in {"message", "timestamp", "wrapper"}:
                # Asking for it makes it.
                _fill_message(target[key], each, value, at)
            else:
                target[key] = _plain(each, kind, more, at)
        except (ValueError, TypeError, OverflowError):
            raise _out_of_range(at) from None


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


def _no_null(at: str) -> _WrongRow:
    return _WrongRow(f"{at} is null, and Protobuf has no null in lists and maps")


def _out_of_range(at: str) -> _WrongRow:
    return _WrongRow(f"{at} is out of the range of its field")
