"""Quotes names and strings for SQL, safe against injection."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quotes a column or table name."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Quotes a string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
