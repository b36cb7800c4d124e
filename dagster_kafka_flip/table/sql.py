"""Quotes names and strings for SQL, safe against injection."""

from __future__ import annotations


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    # Where spark.sql.variable.substitute is on, as it is by default, Spark replaces ${...} in quotes, too.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
    return f"'{escaped}'"
