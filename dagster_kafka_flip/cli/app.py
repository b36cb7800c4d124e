"""The command line, `dagster-kafka-flip`.

Commands import their dependencies when they run, so that help and completion are fast.
"""

from __future__ import annotations

from typing import Any

import click

from dagster_kafka_flip.cli.plan import plan
from dagster_kafka_flip.cli.position import position
from dagster_kafka_flip.cli.rebuild import rebuild_command
from dagster_kafka_flip.cli.servers import broker, spark
from dagster_kafka_flip.errors import KafkaFlipError


class _Group(click.Group):
    """A command group that prints this package's errors as a message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaFlipError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dagster-kafka-flip")
def main() -> None:
    """Ingest Kafka topics into Delta Lake tables, in bounded batches."""


for command in (plan, rebuild_command, position, broker, spark):
    main.add_command(command)
