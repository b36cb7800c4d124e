"""`dagster-kafka-flip spark`: a local Spark server, and preparation of local sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.servers import add_server_commands

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.runtime.spark_server import SparkServer

_packages = click.option(
    "--package",
    "packages",
    multiple=True,
    help="Maven coordinates of an additional jar, as in SparkResource(packages=...). May be repeated.",
)


@click.group()
def spark() -> None:
    """Run a local Spark server, and prepare machines and images."""


@spark.command()
@_packages
def prepare(packages: tuple[str, ...]) -> None:
    """Download Spark's jars and create a class archive: local sessions then start in about half the CPU time.

    Takes about half a minute. Run it when you build an image, or once per machine, and again after an upgrade of
    pyspark, delta-spark or Java.
    """
    from dagster_kafka_flip.cli.answer import waiting
    from dagster_kafka_flip.runtime.class_archive import make_archive
    from dagster_kafka_flip.runtime.session_settings import own_settings
    from dagster_kafka_flip.runtime.spark_jars import fetch_jars

    with waiting("Downloading jars and creating the class archive ..."):
        path = make_archive(fetch_jars(packages), own_settings())
    click.echo(f"Sessions with master local[*] start from the class archive {path} ({path.stat().st_size >> 20} MB).")


def _server(
    data_dir: Path, *, port: int = 0, settings: tuple[str, ...] = (), packages: tuple[str, ...] = ()
) -> SparkServer:
    from dagster_kafka_flip.runtime.spark_server import SparkServer

    return SparkServer(data_dir, port=port, config=dict(map(_setting, settings)), packages=packages)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        # Omits the value: it may be a secret.
        raise click.UsageError("write --conf as spark.NAME=VALUE, such as --conf spark.driver.memory=4g")
    return name, value


add_server_commands(
    spark,
    _server,
    folder=".spark",
    variable="DAGSTER_KAFKA_FLIP_SPARK_DIR",
    about_folder="The folder with the server's log.",
    port=15002,
    address="remote",
    helps=(
        "Start a Spark Connect server for SparkResource(remote=...), on 127.0.0.1 and without a password.",
        "Stop the server; runs that use it fail.",
    ),
    options=(
        click.option(
            "--conf",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="A Spark setting, such as spark.driver.memory=4g. May be repeated.",
        ),
        _packages,
    ),
)
