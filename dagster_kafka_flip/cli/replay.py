"""`dagster-kafka-flip ingest --replay`: writes the records of an asset's old commit to another table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.options import asset_options, required_asset, spark_options, written
from dagster_kafka_flip.settings.names import counted

if TYPE_CHECKING:
    from pathlib import Path


@click.command("ingest")
@asset_options
@click.option(
    "--replay",
    "version",
    type=click.IntRange(min=0),
    required=True,
    help="Version of the asset's table whose records to write again; `position show` lists the versions.",
)
@click.option(
    "--into", required=True, help="Path or catalog name of another table; it is created if it does not exist."
)
@spark_options
@click.pass_context
def ingest_command(
    context: click.Context,
    *,
    asset: str | None,
    module_name: str | None,
    python_file: Path | None,
    version: int,
    into: str,
    spark_master: str | None,
    spark_remote: str | None,
) -> None:
    """Write the records of an old commit to another table, as the asset would write them now.

    Reads the same offsets again, with the asset's formats and function. Repeating the command never duplicates rows.
    The asset's own table and its position do not change.
    """
    asset = required_asset(context, asset, "the asset of the commit")

    from dagster_kafka_flip.cli.asset import find_asset
    from dagster_kafka_flip.cli.output import waiting
    from dagster_kafka_flip.ingestion.replay import replay
    from dagster_kafka_flip.table.target import DeltaTarget

    with written("--into"):
        DeltaTarget.of(into)
    found = find_asset(asset, module_name=module_name, python_file=python_file)
    found.check_has_position()
    with (
        found.session(spark_master, spark_remote) as spark,
        found.transform() as transform,
        waiting(f"Replaying the records of version {version} of {found.target} ..."),
    ):
        done = replay(
            found.source,
            found.target,
            version,
            into,
            spark=spark,
            connection=found.connection(),
            decoder=found.with_registries().decoder,
            transform=transform,
        )
    if done.batch is None:
        click.echo(f"Version {done.version} of {into} already holds them; nothing was read.")
        return
    splits = done.batch.plan.splits
    offsets = sum(split.offset_span for split in splits)
    rows = done.batch.committed.rows
    click.echo(
        f"Wrote {'an unknown number of rows' if rows is None else counted(rows, 'row')} from "
        f"{counted(offsets, 'offset')} of {counted(len(splits), 'split')} in version {done.version} of {into}."
    )
