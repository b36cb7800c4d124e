"""The one clock by which planning, writing and recovery decide and wait; durations are measured without it."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def now() -> datetime:
    """The time now."""
    return datetime.now(tz=timezone.utc)


def now_ms() -> int:
    """The time now, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)
