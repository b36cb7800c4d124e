"""Prints fields and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagster_kafka_flip.source.instants import utc_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.status import Status

# Wider than any table: the terminal wraps long lines, and rich would truncate topic names.
_WIDE = 1000


def console() -> Console:
    """Standard output without markup, so that topics and messages are printed unchanged."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=_WIDE)


def waiting(what: str) -> Status:
    """Shows a status on standard error while waiting."""
    return Console(stderr=True).status(what)


def print_fields(out: Console, fields: Mapping[str, object]) -> None:
    """Prints one line per field."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        out.print(Text.assemble((f"{name:<{width}}  ", "dim"), str(value)))


def print_table(
    out: Console,
    columns: Iterable[str],
    rows: Sequence[Iterable[object]],
    *,
    indent: int = 0,
    most: int | None = None,
    rest: str = "",
) -> None:
    """Prints a table with a left-aligned first column and right-aligned others; None is an empty cell.

    Args:
        out: Where to.
        columns: The header.
        rows: The rows.
        indent: Spaces before each line.
        most: Maximum number of rows to print; the number of others is below them. Default: all.
        rest: Said of the others.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(
            f"{'':{indent}}{column}" if number == 0 else column,
            justify="left" if number == 0 else "right",
            no_wrap=True,
        )
    for row in rows[:most]:
        first, *others = ("" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        table.add_row(*map(Text, (f"{'':{indent}}{first}", *others)))
    out.print(table)
    if most is not None and len(rows) > most:
        out.print(f"{'':{indent}}... and {len(rows) - most:,} more{rest}")


def utc(timestamp_ms: int | None) -> str | None:
    """Formats a timestamp for people."""
    text = iso(timestamp_ms)
    return text if text is None or "T" not in text else f"{text[:10]} {text[11:19]}Z"


def iso(timestamp_ms: int | None) -> str | None:
    """Formats a timestamp for scripts; a plain number if out of range for a calendar."""
    if timestamp_ms is None:
        return None
    time = utc_time(timestamp_ms)
    return str(timestamp_ms) if time is None else time.isoformat(timespec="milliseconds")
