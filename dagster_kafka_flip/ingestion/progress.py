"""Computes and formats the progress, rate and remaining time of a long read."""

from __future__ import annotations

from collections import deque

# The rate is averaged over this many readings, because single ones fluctuate with Spark's updates.
_READINGS = 6

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP = 1000
_TWO_DIGITS = 10

# Thresholds for minutes and hours, in seconds and minutes.
_LONG = 90


class ReadProgress:
    """One read, from its first reading on.

    Args:
        offsets: Number of offsets to read, and so the maximum number of records.
        record_bytes: Average record size in bytes (key and value); None if unknown.
        behind: Number of offsets in the log after this read.
    """

    def __init__(self, offsets: int, record_bytes: float | None = None, behind: int = 0) -> None:
        self._offsets = offsets
        self._record_bytes = record_bytes
        self._behind = behind
        self._seen: deque[tuple[float, int]] = deque(maxlen=_READINGS)

    def line(self, records: int, seconds: float) -> str | None:
        """Returns the progress text; None if nothing changed since the last call.

        Args:
            records: Records read so far, by Spark's count.
            seconds: Seconds since the read began.
        """
        # A repeated task counts twice.
        done, whole = min(records, self._offsets), self._offsets
        before = self._seen[-1][1] if self._seen else 0
        if whole == 0 or done == before:
            return None
        if done < before:
            self._seen.clear()
        self._seen.append((seconds, done))
        parts = [self._done(done, whole), *self._pace(done, whole)]
        if self._behind:
            parts.append(f"the log has {self._behind:,} more offsets after this batch")
        return ", ".join(parts)

    def _done(self, done: int, whole: int) -> str:
        text = f"read {done:,} of at most {whole:,} records ({100 * done // whole} %)"
        if self._record_bytes is None:
            return text
        return f"{text}, about {_size(done * self._record_bytes)} of {_size(whole * self._record_bytes)}"

    def _pace(self, done: int, whole: int) -> list[str]:
        (begin, before), (now, _) = self._seen[0], self._seen[-1]
        # Excludes Spark's warm-up before the first reading.
        if now <= begin:
            return []
        rate = (done - before) / (now - begin)
        pace = [f"{rate:,.0f} records/s"]
        if whole > done:
            pace.append(f"about {_duration((whole - done) / rate)} left")
        return pace


def _size(count: float) -> str:
    unit = 0
    while round(count) >= _STEP and unit < len(_BYTE_UNITS) - 1:
        count /= _STEP
        unit += 1
    digits = 1 if unit and round(count, 1) < _TWO_DIGITS else 0
    return f"{count:.{digits}f} {_BYTE_UNITS[unit]}"


def _duration(seconds: float) -> str:
    if seconds < _LONG:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < _LONG else f"{minutes // 60} h {minutes % 60} min"
