"""Timestamps in milliseconds since the epoch, their conversion to datetimes and strings, and the clock.

Producers can write any timestamp. Microseconds instead of milliseconds give the year 55,000, which is out of range for
a datetime.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

LAST_TIMESTAMP_MS = 2**63 - 1
"""The latest timestamp that Kafka can hold, in milliseconds since the epoch: producers can write any."""

LAST_SPARK_TIMESTAMP_MS = LAST_TIMESTAMP_MS // 1000
"""The latest one that Spark can: a TIMESTAMP has microseconds. Its Kafka reader fails on others, unselected or not."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_MS = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(milliseconds=1)


def utc_time(milliseconds: float) -> datetime | None:
    """Converts milliseconds since the epoch to a datetime; None if out of range."""
    # Written this way so that NaN counts as out of range.
    if not _FIRST_MS <= milliseconds <= _LAST_MS:
        return None
    return _EPOCH + timedelta(milliseconds=milliseconds)


def nearest_time(milliseconds: int) -> datetime:
    """Converts milliseconds since the epoch to a datetime, clamped to the range of datetime."""
    return _EPOCH + timedelta(milliseconds=min(max(milliseconds, _FIRST_MS), _LAST_MS))


def instant(milliseconds: int) -> str:
    """Converts milliseconds since the epoch to ISO 8601 text with a UTC offset, in whole seconds if exact."""
    known = utc_time(milliseconds)
    if known is None:
        # For example from a producer that writes microseconds instead of milliseconds.
        end = "beyond the year 9999" if milliseconds > 0 else "before the year 1"
        return f"{milliseconds} ms after 1970, which is {end}"
    return known.isoformat(timespec="seconds" if milliseconds % 1000 == 0 else "milliseconds").replace("+00:00", "Z")


# The one clock by which planning, writing and recovery decide and wait; durations are measured without it.
def now() -> datetime:
    return datetime.now(tz=timezone.utc)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sleep(seconds: float) -> None:
    time.sleep(seconds)
