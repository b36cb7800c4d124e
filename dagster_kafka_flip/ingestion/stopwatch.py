"""A stopwatch with laps."""

from __future__ import annotations

import time


class Clock:
    """Starts when created."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last call."""
        last, self._last = self._last, time.monotonic()
        return self._last - last
