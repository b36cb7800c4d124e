"""The command line, `dagster-kafka-flip`.

What a command needs is imported when it runs, so that help and completion are instant.
"""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.backfill import backfill
from dagster_kafka_flip.cli.options import json_option
from dagster_kafka_flip.cli.plan import plan
from dagster_kafka_flip.cli.position import position
from dagster_kafka_flip.cli.replay import ingest_command
from dagster_kafka_flip.cli.spark import spark
from dagster_kafka_flip.errors import KafkaFlipError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_kafka_flip.broker.local_broker import BrokerStatus


class _Group(click.Group):
    """A group whose commands end with a message, and not with a traceback, on an error of this package."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaFlipError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dagster-kafka-flip")
def main() -> None:
    """Land Kafka topics in Delta Lake tables, in bounded batches."""


main.add_command(plan)
main.add_command(ingest_command)
main.add_command(position)
main.add_command(backfill)
main.add_command(spark)


@main.group()
def broker() -> None:
    """Run a real Kafka broker on this machine, for development."""


def _data_dir_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".kafka"),
        show_default=True,
        envvar="DAGSTER_KAFKA_FLIP_BROKER_DIR",
        show_envvar=True,
        help="The folder with the broker's topics, settings and logs.",
    )(command)


@broker.command()
@_data_dir_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="The port for clients; 0 takes that of the last time, or a free one.",
)
@click.option(
    "--foreground/--daemon",
    default=True,
    show_default=True,
    help="Stay until Ctrl-C and stop the broker then, or leave it running.",
)
@json_option
def start(data_dir: Path, port: int, foreground: bool, as_json: bool) -> None:
    """Start the broker; the first start ever downloads Kafka (44 MB)."""
    from rich.console import Console

    from dagster_kafka_flip.broker.local_broker import KAFKA_VERSION, LocalBroker

    # SIGTERM then ends the command as Ctrl-C does, and takes the broker with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    local = LocalBroker(data_dir, port=port)
    before = local.status()
    try:
        with Console(stderr=True).status(f"Starting Kafka {KAFKA_VERSION} ..."):
            status = local.start(daemon=not foreground)
        _show(status, as_json=as_json)
        if foreground and before is None:
            click.echo("Ctrl-C stops it.", err=True)
            local.wait()
    except KeyboardInterrupt:
        if not foreground or before is not None:
            raise
        local.stop()
        click.echo("Stopped the broker.", err=True)


@broker.command()
@_data_dir_option
def stop(data_dir: Path) -> None:
    """Stop the broker; its topics stay."""
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    stopped = LocalBroker(data_dir).stop()
    click.echo(f"Stopped the broker on {data_dir}." if stopped else f"No broker was running on {data_dir}.")


@broker.command("status")
@_data_dir_option
@json_option
@click.pass_context
def show_status(context: click.Context, data_dir: Path, as_json: bool) -> None:
    """Show the running broker; exit with 1 if there is none."""
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    status = LocalBroker(data_dir).status()
    if status is None:
        click.echo("null" if as_json else f"No broker is running on {data_dir}.")
        context.exit(1)
    _show(status, as_json=as_json)


def _show(status: BrokerStatus, *, as_json: bool) -> None:
    uptime = timedelta(seconds=round(status.uptime.total_seconds()))
    if as_json:
        values = {
            "bootstrap_servers": status.bootstrap_servers,
            "pid": status.pid,
            "cluster_id": status.cluster_id,
            "uptime_seconds": int(uptime.total_seconds()),
            "data_dir": str(status.data_dir),
        }
        click.echo(json.dumps(values))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    rows = {
        "address": status.bootstrap_servers,
        "pid": status.pid,
        "cluster id": status.cluster_id,
        "uptime": uptime,
        "data dir": status.data_dir,
    }
    console.print(Text("The broker is running", style="bold green"))
    for name, value in rows.items():
        # Paths are not to be broken into lines, so that they can be copied.
        console.print(Text.assemble((f"  {name:<10}  ", "dim"), str(value)), soft_wrap=True)
