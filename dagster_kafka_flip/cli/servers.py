"""`dagster-kafka-flip broker` and `spark`: servers for development, and preparation of local sessions."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import json_option, option_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_kafka_flip.broker.local_broker import LocalBroker
    from dagster_kafka_flip.cli.options import Option
    from dagster_kafka_flip.runtime.local_server import LocalServer, ServerStatus
    from dagster_kafka_flip.runtime.spark_server import SparkServer


def _add_server_commands(
    group: click.Group,
    make: Callable[..., LocalServer],
    *,
    folder: str,
    variable: str,
    about_folder: str,
    port: int,
    address: str,
    helps: tuple[str, str],
    options: tuple[Option, ...] = (),
) -> None:
    """Adds `start`, `stop` and `status` of the server that `make` returns, whose class is imported when a command runs.

    `address` is the name of its address in answers, `helps` are of `start` and `stop`, `options` more of `start`.
    """
    data_dir_option = click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(folder),
        show_default=True,
        envvar=variable,
        show_envvar=True,
        help=about_folder,
    )

    @group.command(help=helps[0])
    @data_dir_option
    @click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=port,
        show_default=True,
        help="The port for clients; 0 reuses the last port, or takes a free one.",
    )
    @click.option(
        "--foreground/--daemon",
        default=True,
        show_default=True,
        help="Run until Ctrl-C and then stop the server, or leave it running in the background.",
    )
    @option_group(*options)
    @json_option
    def start(data_dir: Path, *, foreground: bool, as_json: bool, **given: Any) -> None:
        server = make(data_dir, **given)
        # SIGTERM then ends the command like Ctrl-C, and stops the server.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        before = server.status()
        from dagster_kafka_flip.cli.answer import waiting

        try:
            with waiting(f"Starting the {server.what} ..."):
                status = server.start(daemon=not foreground)
            _show(status, address, as_json=as_json)
            if foreground and before is None:
                click.echo("Ctrl-C stops it.", err=True)
                server.wait()
        except KeyboardInterrupt:
            if not foreground or before is not None:
                raise
            server.stop()
            click.echo(f"Stopped the {server.what}.", err=True)

    @group.command(help=helps[1])
    @data_dir_option
    def stop(data_dir: Path) -> None:
        server = make(data_dir)
        stopped = server.stop()
        what = f"Stopped the {server.what}" if stopped else f"No {server.what} was running"
        click.echo(f"{what} on {data_dir}.")

    @group.command("status", help="Show the running server; exit with 1 if there is none.")
    @data_dir_option
    @json_option
    @click.pass_context
    def show_status(context: click.Context, data_dir: Path, *, as_json: bool) -> None:
        server = make(data_dir)
        status = server.status()
        if status is None:
            click.echo("null" if as_json else f"No {server.what} is running on {data_dir}.")
            context.exit(1)
        _show(status, address, as_json=as_json)

    # click has them; this is for what finds unused functions.
    del start, stop, show_status


def _show(status: ServerStatus, address: str, *, as_json: bool) -> None:
    from dagster_kafka_flip.cli.answer import answer

    document = {
        address: status.address,
        # Not as 12,345.
        "pid": status.pid if as_json else str(status.pid),
        "uptime_seconds": round(status.uptime.total_seconds()),
        "data_dir": str(status.data_dir),
    }
    answer(document, as_json=as_json)


@click.group()
def broker() -> None:
    """Run a real Kafka broker on this machine, for development."""


def _broker(data_dir: Path, **options: Any) -> LocalBroker:
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    return LocalBroker(data_dir, **options)


_add_server_commands(
    broker,
    _broker,
    folder=".kafka",
    variable="DAGSTER_KAFKA_FLIP_BROKER_DIR",
    about_folder="The folder with the broker's topics, settings and logs.",
    port=9092,
    address="bootstrap_servers",
    helps=("Start the broker; the very first start downloads Kafka (44 MB).", "Stop the broker; its topics stay."),
)


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


_add_server_commands(
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
