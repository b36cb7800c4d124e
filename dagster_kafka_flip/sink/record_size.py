"""The size of a record on its way to a broker, which a topic's `max.message.bytes` limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of a batch, the format of Kafka 0.11 and later.
_BATCH = 61
# Of a record alone in it: attributes, and its distances in time and offset from the batch's first record.
_RECORD = 3
_NULL = 1


def batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Returns the bytes of an uncompressed batch with one record.

    Args:
        key: The record's key.
        value: Its value.
        headers: Its headers.
    """
    size = _RECORD + _sized(key) + _sized(value) + _varint(len(headers))
    size += sum(_sized(name.encode()) + _sized(each) for name, each in headers)
    return _BATCH + _varint(size) + size


def _sized(data: bytes | None) -> int:
    return _NULL if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """The bytes of a number in zigzag code."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
