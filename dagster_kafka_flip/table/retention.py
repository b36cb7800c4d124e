"""How long Delta keeps the commits of a table, and with them a stream's position."""

from __future__ import annotations

import re
from datetime import timedelta

LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_LOG_RETENTION = timedelta(days=30)

_PART = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day|week)s?\b")


def parse_log_retention(text: str | None) -> timedelta:
    """The value of `delta.logRetentionDuration`, such as `interval 30 days`; what can't be read is Delta's default.

    Delta allows no months and no years here, because they are of no fixed length.
    """
    parts = _PART.findall((text or "").lower())
    if not parts:
        return DEFAULT_LOG_RETENTION
    return sum((timedelta(**{f"{unit}s": int(number)}) for number, unit in parts), timedelta())
