"""A command's answer: one document, as a line of JSON for scripts, or as text for people."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.instants import utc_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.status import Status

# Wider than any table: the terminal wraps long lines, and rich would truncate topic names.
_WIDE = 1000

# A document has fewer fields. What has more is by topic or topic partition, and limited like a table.
_MOST_FIELDS = 20


def waiting(what: str) -> Status:
    """Shows a status on standard error while waiting."""
    return Console(stderr=True).status(what)


def iso(timestamp_ms: int | None) -> str | None:
    """Formats a timestamp; a plain number if out of range for a calendar."""
    if timestamp_ms is None:
        return None
    time = utc_time(timestamp_ms)
    return str(timestamp_ms) if time is None else time.isoformat(timespec="milliseconds")


def answer(document: Mapping[str, Any], *, as_json: bool = False, limit_rows: int | None = None) -> None:
    """Prints a document as JSON, or as text with so many rows of each table at most (None: all).

    As text, a list of flat documents is a table. What is unknown, empty or false is left out.
    """
    if as_json:
        click.echo(json.dumps(document))
    else:
        # Without markup, so that topics and messages are printed unchanged.
        out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=_WIDE)
        _print_fields(out, document, limit_rows, "")


def _print_fields(out: Console, document: Mapping[str, Any], most: int | None, indent: str) -> None:
    shown = {name: value for name, value in document.items() if _is_told(value)}
    width = max((len(name) for name, value in shown.items() if not _is_nested(value)), default=0)
    for name, value in shown.items():
        if not _is_nested(value):
            out.print(Text.assemble((f"{indent}{name:<{width}}  ", "dim"), _text(value)))
            continue
        out.print(f"{indent}{name}", style="bold")
        inner = indent + "  "
        if isinstance(value, Mapping):
            limit = None if most is None else max(most, _MOST_FIELDS)
            _print_fields(out, dict(itertools.islice(value.items(), limit)), most, inner)
            _print_rest(out, len(value), limit, inner)
        elif any(_is_nested(cell) for row in value for cell in row.values()):
            for each in value:
                _print_fields(out, each, most, inner)
                out.print()
        else:
            _print_table(out, value[:most], inner)
            _print_rest(out, len(value), most, inner)


def _print_table(out: Console, rows: Sequence[Mapping[str, Any]], indent: str) -> None:
    columns = [name for name in (rows[0] if rows else ()) if any(_is_told(row[name]) for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        header, justify = (f"{indent}{column}", "left") if number == 0 else (column, "right")
        table.add_column(header, justify=justify, no_wrap=True)
    for row in rows:
        first, *others = (_text(row[column]) for column in columns)
        table.add_row(*map(Text, (f"{indent}{first}", *others)))
    out.print(table)


def _print_rest(out: Console, number: int, most: int | None, indent: str) -> None:
    if most is not None and number > most:
        out.print(f"{indent}... and {number - most:,} more")


def _is_nested(value: object) -> bool:
    """Whether a value has documents in it, and not only numbers and texts."""
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(each, Mapping) for each in value))


def _is_told(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_told, value.values()))
    if isinstance(value, list):
        return any(map(_is_told, value))
    return value is not None and value is not False and value != ""


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "yes" if value else ""
    if isinstance(value, list):
        return first_few(_text(each) for each in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
