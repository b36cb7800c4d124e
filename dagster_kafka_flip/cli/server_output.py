"""How a running server is shown."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


def show_server(what: str, facts: Mapping[str, object], *, as_json: bool) -> None:
    """Prints what there is to know of a server.

    Args:
        what: What it is, such as `broker`.
        facts: By name. The first is its address; `uptime` is a timedelta.
        as_json: As one line of JSON.
    """
    uptime = facts["uptime"]
    seconds = round(uptime.total_seconds()) if isinstance(uptime, timedelta) else 0
    if as_json:
        values = {name: value if isinstance(value, int) else str(value) for name, value in facts.items()}
        del values["uptime"]
        click.echo(json.dumps({**values, "uptime_seconds": seconds}))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    first = next(iter(facts))
    rows = {"address" if name == first else name.replace("_", " "): value for name, value in facts.items()}
    console.print(Text(f"The {what} is running", style="bold green"))
    for name, value in {**rows, "uptime": timedelta(seconds=seconds)}.items():
        # Paths are not to be broken into lines, so that they can be copied.
        console.print(Text.assemble((f"  {name:<10}  ", "dim"), str(value)), soft_wrap=True)
