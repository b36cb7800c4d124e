"""Reads Delta tables without Spark: in milliseconds, and by another implementation of the format than wrote them."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable, QueryBuilder


def rows(table: object, *columns: str, where: str = "true", version: int | None = None) -> list[tuple[Any, ...]]:
    """Some columns of a table's rows, sorted.

    Args:
        table: The table's path.
        columns: Names of columns, or expressions of DataFusion's SQL.
        where: Which rows.
        version: Those after an earlier commit.
    """
    query = QueryBuilder().register("landed", DeltaTable(str(table), version=version))
    found = query.execute(f"SELECT {', '.join(columns)} FROM landed WHERE {where}").read_all()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def values(table: object, column: str) -> list[Any]:
    """One column of a table's rows, sorted."""
    return [value for (value,) in rows(table, column)]


def count(table: object) -> int:
    """How many rows a table has."""
    return len(rows(table, "1"))


def version(table: object) -> int:
    """The number of a table's newest commit."""
    return DeltaTable(str(table)).version()


def history(table: object, limit: int | None = None) -> list[dict[str, Any]]:
    """What a table's commits tell of themselves, the newest first."""
    return DeltaTable(str(table)).history(limit)


def operations(table: object) -> list[str]:
    """The operations of a table's commits, the oldest first."""
    return [commit["operation"] for commit in reversed(history(table))]
