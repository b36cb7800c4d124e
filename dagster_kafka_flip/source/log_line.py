"""Facts at the end of a log line, the same way in each, so that they can be searched for and taken apart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def facts(**values: str | float | None) -> str:
    """`name=value` for each, with spaces between; those that are None are left out.

    Args:
        values: Numbers and texts. Numbers with a fraction get two digits of it; a text with spaces or quotes is quoted
            as in JSON.
    """
    return " ".join(f"{name}={_text(value)}" for name, value in values.items() if value is not None)


def total(numbers: Iterable[int | None]) -> int | None:
    """Their sum; None if one of them is not known.

    Args:
        numbers: What to add up.
    """
    known = list(numbers)
    counted = [number for number in known if number is not None]
    return sum(counted) if len(counted) == len(known) else None


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(one in text for one in ' "=\n') else text
