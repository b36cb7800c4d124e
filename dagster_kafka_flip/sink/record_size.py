"""The size of a record on its way to a broker, which a topic's `max.message.bytes` limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bytes of a batch's header, in the format of Kafka 0.11 and later.
_BATCH = 61
# Bytes of a batch's only record: attributes, and its distances in time and offset from the first record.
_RECORD = 3
_NULL = 1
# Maximum bytes of such a number in zigzag encoding.
_NUMBER = 5
# Maximum bytes of a record without headers, besides key and value: four numbers; the last, 0 headers, is a byte.
_MOST = _BATCH + _RECORD + 3 * _NUMBER + 1


def batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Returns the bytes of an uncompressed batch with one record."""
    size = _RECORD + _sized(key) + _sized(value) + _varint(len(headers))
    size += sum(_sized(name.encode()) + _sized(each) for name, each in headers)
    return _BATCH + _varint(size) + size


def is_surely_within(limit: int, key: bytes | None, value: bytes | None) -> bool:
    """Whether a record without headers is surely within a batch's limit of bytes; quicker than computing its size."""
    return len(key or b"") + len(value or b"") + _MOST <= limit


def _sized(data: bytes | None) -> int:
    return _NULL if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """The bytes of a number in zigzag code."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
