"""Points in time, in milliseconds since the epoch: the one place that makes datetimes and texts of them.

A record's timestamp is whatever its producer wrote. Microseconds where milliseconds belong give the year 55,000, which
no datetime can hold.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

LAST_TIMESTAMP_MS = 2**63 - 1
"""The latest timestamp that Kafka can hold."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_MS = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(milliseconds=1)


def utc_time(milliseconds: float) -> datetime | None:
    """A point in time; None where no datetime can hold it.

    Args:
        milliseconds: Since the epoch.
    """
    # Asked this way round, so that what is no number at all is not in between either.
    if not _FIRST_MS <= milliseconds <= _LAST_MS:
        return None
    return _EPOCH + timedelta(milliseconds=milliseconds)


def nearest_time(milliseconds: int) -> datetime:
    """A point in time, or the one nearest to it that a datetime can hold.

    Args:
        milliseconds: Since the epoch.
    """
    return _EPOCH + timedelta(milliseconds=min(max(milliseconds, _FIRST_MS), _LAST_MS))


def instant(milliseconds: int) -> str:
    """A point in time as text with an offset from UTC: whole seconds where it is one.

    Args:
        milliseconds: Since the epoch.
    """
    time = utc_time(milliseconds)
    if time is None:
        # Such as of a producer that took microseconds for milliseconds.
        end = "beyond the year 9999" if milliseconds > 0 else "before the year 1"
        return f"{milliseconds} ms after 1970, which is {end}"
    return time.isoformat(timespec="seconds" if milliseconds % 1000 == 0 else "milliseconds").replace("+00:00", "Z")
