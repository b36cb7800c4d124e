"""`dagster-kafka-flip spark`: what local Spark sessions need."""

from __future__ import annotations

import click


@click.group()
def spark() -> None:
    """Prepare this machine, or an image, for Spark sessions."""


@spark.command()
@click.option(
    "--package",
    "packages",
    multiple=True,
    help="Maven coordinates of a further jar, as in SparkResource(packages=...). May be given several times.",
)
def prepare(packages: tuple[str, ...]) -> None:
    """Fetch Spark's jars, and make a class archive: local sessions then start in about half the CPU time.

    Takes about half a minute. Run it when you build an image, or once on a machine; again after an upgrade of pyspark,
    delta-spark or Java.
    """
    from rich.console import Console

    from dagster_kafka_flip.runtime.session import prepare_session

    with Console(stderr=True).status("Fetching jars and making the class archive ..."):
        path = prepare_session(packages)
    click.echo(f"Sessions with master local[*] start from the class archive {path} ({path.stat().st_size >> 20} MB).")
