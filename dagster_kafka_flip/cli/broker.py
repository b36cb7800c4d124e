"""`dagster-kafka-flip broker`: a Kafka broker for development."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.options import data_dir_option, json_option
from dagster_kafka_flip.cli.server_commands import run_server, show_running, show_server, start_options, stop_server

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.broker.local_broker import BrokerStatus

_WHAT = "broker"

_data_dir = data_dir_option(
    ".kafka", "DAGSTER_KAFKA_FLIP_BROKER_DIR", "The folder with the broker's topics, settings and logs."
)


@click.group()
def broker() -> None:
    """Run a real Kafka broker on this machine, for development."""


@broker.command()
@_data_dir
@start_options(9092, _WHAT)
@json_option
def start(data_dir: Path, port: int, foreground: bool, as_json: bool) -> None:
    """Start the broker; the very first start downloads Kafka (44 MB)."""
    from dagster_kafka_flip.broker.local_broker import KAFKA_VERSION, LocalBroker

    server = LocalBroker(data_dir, port=port)
    waiting = f"Starting Kafka {KAFKA_VERSION} ..."
    run_server(_WHAT, server, partial(_show, as_json=as_json), waiting=waiting, foreground=foreground)


@broker.command()
@_data_dir
def stop(data_dir: Path) -> None:
    """Stop the broker; its topics stay."""
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    stop_server(_WHAT, LocalBroker(data_dir), data_dir)


@broker.command("status")
@_data_dir
@json_option
def show_status(data_dir: Path, as_json: bool) -> None:
    """Show the running broker; exit with 1 if there is none."""
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    show_running(_WHAT, LocalBroker(data_dir), data_dir, partial(_show, as_json=as_json), as_json=as_json)


def _show(status: BrokerStatus, *, as_json: bool) -> None:
    fields = {
        "bootstrap_servers": status.bootstrap_servers,
        "pid": status.pid,
        "cluster_id": status.cluster_id,
        "uptime": status.uptime,
        "data_dir": status.data_dir,
    }
    show_server(_WHAT, fields, as_json=as_json)
