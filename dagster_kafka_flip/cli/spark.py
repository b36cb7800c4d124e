"""`dagster-kafka-flip spark`: a local Spark server, and preparation of local sessions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.options import data_dir_option, json_option
from dagster_kafka_flip.cli.server_commands import run_server, show_running, show_server, start_options, stop_server

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.runtime.spark_server import SparkServerStatus

_WHAT = "Spark server"

_data_dir = data_dir_option(".spark", "DAGSTER_KAFKA_FLIP_SPARK_DIR", "The folder with the server's log.")
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
    from dagster_kafka_flip.cli.output import waiting
    from dagster_kafka_flip.runtime.session import prepare_session

    with waiting("Downloading jars and creating the class archive ..."):
        path = prepare_session(packages)
    click.echo(f"Sessions with master local[*] start from the class archive {path} ({path.stat().st_size >> 20} MB).")


@spark.command()
@_data_dir
@start_options(15002, "server")
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A Spark setting, such as spark.driver.memory=4g. May be repeated.",
)
@_packages
@json_option
def start(
    data_dir: Path, port: int, foreground: bool, settings: tuple[str, ...], packages: tuple[str, ...], as_json: bool
) -> None:
    """Start a Spark Connect server with the jars of this package, for SparkResource(remote=...).

    Runs that use it do not wait for Spark to start. It listens on 127.0.0.1, without a password.
    """
    from dagster_kafka_flip.runtime.spark_server import SparkServer

    config = dict(_setting(text) for text in settings)
    server = SparkServer(data_dir, port=port, config=config, packages=packages)
    show = partial(_show, as_json=as_json)
    run_server(_WHAT, server, show, waiting="Starting Spark ...", foreground=foreground)


@spark.command()
@_data_dir
def stop(data_dir: Path) -> None:
    """Stop the server; runs that use it fail."""
    from dagster_kafka_flip.runtime.spark_server import SparkServer

    stop_server(_WHAT, SparkServer(data_dir), data_dir)


@spark.command("status")
@_data_dir
@json_option
def show_status(data_dir: Path, as_json: bool) -> None:
    """Show the running server; exit with 1 if there is none."""
    from dagster_kafka_flip.runtime.spark_server import SparkServer

    show_running(_WHAT, SparkServer(data_dir), data_dir, partial(_show, as_json=as_json), as_json=as_json)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        # Omits the value: it may be a secret.
        raise click.UsageError("write --conf as spark.NAME=VALUE, such as --conf spark.driver.memory=4g")
    return name, value


def _show(status: SparkServerStatus, *, as_json: bool) -> None:
    fields = {"remote": status.remote, "pid": status.pid, "uptime": status.uptime, "data_dir": status.data_dir}
    show_server(_WHAT, fields, as_json=as_json)
