"""Delta's log retention, which limits how long a table's history has a stream's position."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_LOG_RETENTION = timedelta(days=30)

_INTERVAL = re.compile(r"(?:interval\s+)?(?P<parts>\S.*)", re.DOTALL)
_PART = re.compile(r"([+-]?\d+(?:\.\d*)?)\s*(microsecond|millisecond|second|minute|hour|day|week)s?(?:\s+|$)")
_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_LONGEST = timedelta.max // timedelta(microseconds=1)


def parse_log_retention(text: str | None) -> timedelta | None:
    """Parses `delta.logRetentionDuration`, such as `interval 30 days`; None if it can't be parsed.

    Delta does not allow months and years here, because their length varies. Values above the maximum of `timedelta` are
    reduced to it.

    Args:
        text: The property's value; None for Delta's default.
    """
    if text is None:
        return DEFAULT_LOG_RETENTION
    interval = _INTERVAL.fullmatch(text.strip().lower())
    rest = "" if interval is None else interval["parts"]
    microseconds = Decimal(0)
    while rest:
        part = _PART.match(rest)
        if part is None:
            return None
        microseconds += Decimal(part[1]) * _MICROSECONDS[part[2]]
        rest = rest[part.end() :]
    if interval is None or microseconds < 0:
        return None
    return timedelta(microseconds=int(min(microseconds, _LONGEST)))
