"""Formats facts as `name=value` at the end of a log line, so that log lines can be searched and parsed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def facts(**values: str | float | None) -> str:
    """Formats `name=value` pairs, separated by spaces; omits None values.

    Args:
        values: Numbers and strings. Floats are formatted with two decimals; strings with spaces or quotes are quoted as
            in JSON.
    """
    return " ".join(f"{name}={_text(value)}" for name, value in values.items() if value is not None)


def total(numbers: Iterable[int | None]) -> int | None:
    """Sums the numbers; None if one of them is unknown.

    Args:
        numbers: The numbers.
    """
    known = list(numbers)
    counted = [number for number in known if number is not None]
    return sum(counted) if len(counted) == len(known) else None


def also_affects(met: Collection[object], what: str) -> str:
    """Returns how many others a message is about that names the first; nothing if there are none.

    Args:
        met: All of them.
        what: What they are, in the plural.
    """
    return f" (also affects {len(met) - 1} more {what})" if len(met) > 1 else ""


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(one in text for one in ' "=\n') else text
