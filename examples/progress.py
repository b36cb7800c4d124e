"""Progress display of the programs in the terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console
    from rich.progress import ProgressColumn


def progress(console: Console, *columns: ProgressColumn) -> Progress:
    """Progress with a spinner, the elapsed time, and additional columns."""
    return Progress(
        SpinnerColumn(finished_text="[green]✓[/green]"),
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=console,
        # Other libraries' output does not belong in it.
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextlib.contextmanager
def busy(console: Console, text: str) -> Generator[None]:
    """Shows the current step and its elapsed time."""
    with progress(console) as shown:
        task = shown.add_task(text, total=1)
        yield
        shown.update(task, completed=1)
