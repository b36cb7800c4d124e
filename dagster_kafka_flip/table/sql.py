"""Names and texts as they are written in SQL, so that nothing in them can end its own quotes."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A column's or a table's name."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
