"""Sums of numbers that may be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def total(numbers: Iterable[int | None]) -> int | None:
    """Sums the numbers; None if one of them is unknown."""
    known = list(numbers)
    counted = [number for number in known if number is not None]
    return sum(counted) if len(counted) == len(known) else None
