"""Shared implementation of the commands that start, stop and show a local server."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from dagster_kafka_flip.cli.options import option_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dagster_kafka_flip.cli.options import Option

Status_co = TypeVar("Status_co", covariant=True)


class _Server(Protocol[Status_co]):
    """A local server, started by this or another process."""

    def start(self, *, daemon: bool = False) -> Status_co: ...
    def stop(self) -> bool: ...
    def status(self) -> Status_co | None: ...
    def wait(self) -> None: ...


def start_options(port: int, what: str) -> Option:
    """Adds `--port`, and `--foreground` or `--daemon`."""
    return option_group(
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=port,
            show_default=True,
            help="The port for clients; 0 reuses the last port, or takes a free one.",
        ),
        click.option(
            "--foreground/--daemon",
            default=True,
            show_default=True,
            help=f"Run until Ctrl-C and then stop the {what}, or leave it running in the background.",
        ),
    )


def run_server(
    what: str, server: _Server[Status_co], show: Callable[[Status_co], None], *, waiting: str, foreground: bool
) -> None:
    """Starts a server and shows it; in the foreground, waits for an interrupt and then stops it.

    Args:
        what: Name of the server, such as `broker`.
        server: The server. If it already runs, it is only shown.
        show: Prints the server's fields.
        waiting: Status text during the start.
        foreground: Whether to run in the foreground.
    """
    from dagster_kafka_flip.cli.output import waiting as shown_while_waiting

    # SIGTERM then ends the command like Ctrl-C, and stops the server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = server.status()
    try:
        with shown_while_waiting(waiting):
            status = server.start(daemon=not foreground)
        show(status)
        if foreground and before is None:
            click.echo("Ctrl-C stops it.", err=True)
            server.wait()
    except KeyboardInterrupt:
        if not foreground or before is not None:
            raise
        server.stop()
        click.echo(f"Stopped the {what}.", err=True)


def stop_server(what: str, server: _Server[Status_co], data_dir: Path) -> None:
    """Stops a server, and prints whether it was running."""
    stopped = server.stop()
    click.echo(f"Stopped the {what} on {data_dir}." if stopped else f"No {what} was running on {data_dir}.")


def show_running(
    what: str, server: _Server[Status_co], data_dir: Path, show: Callable[[Status_co], None], *, as_json: bool
) -> None:
    """Shows the running server; exits with 1 if there is none."""
    status = server.status()
    if status is None:
        click.echo("null" if as_json else f"No {what} is running on {data_dir}.")
        click.get_current_context().exit(1)
    show(status)


def show_server(what: str, fields: Mapping[str, object], *, as_json: bool) -> None:
    """Prints the fields of a running server.

    Args:
        what: Name of the server, such as `broker`.
        fields: Values by name. The first is the address; `uptime` is a timedelta.
        as_json: Whether to print one line of JSON.
    """
    uptime = fields["uptime"]
    seconds = round(uptime.total_seconds()) if isinstance(uptime, timedelta) else 0
    if as_json:
        values = {name: value if isinstance(value, int) else str(value) for name, value in fields.items()}
        del values["uptime"]
        click.echo(json.dumps({**values, "uptime_seconds": seconds}))
        return
    from dagster_kafka_flip.cli.output import console, print_fields

    out = console()
    first = next(iter(fields))
    rows = {"address" if name == first else name.replace("_", " "): value for name, value in fields.items()}
    out.print(f"The {what} is running", style="bold green")
    print_fields(out, {f"  {name}": value for name, value in {**rows, "uptime": timedelta(seconds=seconds)}.items()})
