"""Tables that can be read in a terminal and pasted into a document."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# Folded rows are no Markdown, and a pipe has no width that would ask for it.
_WIDTH = 200


def make_console() -> Console:
    """The terminal, or what stands in for it."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def print_table(console: Console, title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table in Markdown; all columns but the first are flush right."""
    columns = [Column(name, justify="right" if index else "left") for index, name in enumerate(names)]
    table = Table(*columns, box=box.MARKDOWN)
    for row in rows:
        table.add_row(*row)
    console.print(f"\n{title}", table)


def write_json(path: Path | None, results: Mapping[str, Sequence[Any]]) -> None:
    """Writes measurements to a file, one object for each; does nothing without a path."""
    if path is not None:
        document = {name: [dataclasses.asdict(each) for each in rows] for name, rows in results.items()}
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
