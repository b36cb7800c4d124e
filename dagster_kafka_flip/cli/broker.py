"""`dagster-kafka-flip broker`: a Kafka broker for development."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.servers import add_server_commands

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.broker.local_broker import LocalBroker


@click.group()
def broker() -> None:
    """Run a real Kafka broker on this machine, for development."""


def _broker(data_dir: Path, **options: Any) -> LocalBroker:
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    return LocalBroker(data_dir, **options)


add_server_commands(
    broker,
    _broker,
    folder=".kafka",
    variable="DAGSTER_KAFKA_FLIP_BROKER_DIR",
    about_folder="The folder with the broker's topics, settings and logs.",
    port=9092,
    address="bootstrap_servers",
    helps=(
        "Start the broker; the very first start downloads Kafka (44 MB).",
        "Stop the broker; its topics stay.",
    ),
)
