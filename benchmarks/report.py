"""Tables that can be read in a terminal and pasted into a document."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from importlib.metadata import version
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


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, for a document."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (names, ["---"] * len(names), *rows))


def write_json(path: Path | None, results: Mapping[str, Sequence[Any]], **settings: Any) -> None:
    """Writes measurements to a file, one object for each, with the machine; does nothing without a path.

    Args:
        path: The file.
        results: The measurements by name.
        settings: What they were measured with.
    """
    if path is not None:
        document: dict[str, Any] = {name: [dataclasses.asdict(each) for each in rows] for name, rows in results.items()}
        document |= {"settings": settings, "machine": _machine()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _machine() -> dict[str, Any]:
    """What it was measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    packages = ("pyspark", "delta-spark", "confluent-kafka", "dagster")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30), 1),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        # Of the minute before the end: what else the machine had to do.
        "load": round(os.getloadavg()[0], 2),
    }
