"""Facts at the end of a log line, the same way in each, so that they can be searched for and taken apart."""

from __future__ import annotations

import json


def facts(**values: str | float | None) -> str:
    """`name=value` for each, with spaces between; those that are None are left out.

    Args:
        values: Numbers and texts. Numbers with a fraction get two digits of it; a text with spaces or quotes is quoted
            as in JSON.
    """
    return " ".join(f"{name}={_text(value)}" for name, value in values.items() if value is not None)


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(one in text for one in ' "=\n') else text
