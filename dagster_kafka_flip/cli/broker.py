"""`dagster-kafka-flip broker`: a Kafka broker for development."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.options import data_dir_option, json_option
from dagster_kafka_flip.cli.server_output import show_server

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.broker.local_broker import BrokerStatus


@click.group()
def broker() -> None:
    """Run a real Kafka broker on this machine, for development."""


@broker.command()
@data_dir_option(".kafka", "DAGSTER_KAFKA_FLIP_BROKER_DIR", "The folder with the broker's topics, settings and logs.")
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
@data_dir_option(".kafka", "DAGSTER_KAFKA_FLIP_BROKER_DIR", "The folder with the broker's topics, settings and logs.")
def stop(data_dir: Path) -> None:
    """Stop the broker; its topics stay."""
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    stopped = LocalBroker(data_dir).stop()
    click.echo(f"Stopped the broker on {data_dir}." if stopped else f"No broker was running on {data_dir}.")


@broker.command("status")
@data_dir_option(".kafka", "DAGSTER_KAFKA_FLIP_BROKER_DIR", "The folder with the broker's topics, settings and logs.")
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
    facts = {
        "bootstrap_servers": status.bootstrap_servers,
        "pid": status.pid,
        "cluster_id": status.cluster_id,
        "uptime": status.uptime,
        "data_dir": status.data_dir,
    }
    show_server("broker", facts, as_json=as_json)
