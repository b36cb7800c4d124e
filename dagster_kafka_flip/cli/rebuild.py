"""`dagster-kafka-flip rebuild`: builds an asset's table again from its topic's beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_can_ask,
    check_definitions_have_asset,
    only_writer,
    runs_stopped_option,
    spark_options,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path


@click.command("rebuild")
@asset_options
@click.option(
    "--staging",
    required=True,
    help="Path or catalog name of another table, in which to build the rows. It is created; remove it afterwards.",
)
@runs_stopped_option
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@spark_options
def rebuild_command(
    *,
    asset: str | None,
    python_file: Path | None,
    staging: str,
    runs_stopped: bool,
    yes: bool,
    spark_master: str | None,
    spark_remote: str | None,
) -> None:
    """Rebuild a table with a key, from the beginning of its topics.

    Reads the topics into another table, with the asset's formats, function and limits, and then replaces all rows of
    the asset's table in one commit, which also has the new position. Until then readers see the old rows. Repeat the
    command after a crash: it continues where it stopped.
    """
    check_definitions_have_asset(asset, python_file)
    if asset is None:
        raise click.UsageError("select the asset of the table with --asset")

    from dagster_kafka_flip.cli.answer import waiting
    from dagster_kafka_flip.cli.asset import find_asset
    from dagster_kafka_flip.ingestion.rebuild import rebuild
    from dagster_kafka_flip.table.target import DeltaTarget

    with written("--staging"):
        DeltaTarget.of(staging)
    check_can_ask(yes=yes, has_dry_run=False)
    found = find_asset(asset, python_file)
    found.check_has_position()
    if not yes:
        click.confirm(f"Rebuild {found.target}, and replace all of its rows?", abort=True)
    # Neither with the asset's word for its runs, nor with that for those into the dead-letter table.
    single = {"single_writer": runs_stopped}
    letters = found.ingestion.dead_letter
    with (
        only_writer(),
        found.session(spark_master, spark_remote) as spark,
        found.transform() as transform,
        waiting(f"Building {found.target} in {staging} ..."),
    ):
        done = rebuild(
            found.source,
            found.target.model_copy(update=single),
            staging,
            spark=spark,
            connection=found.connection(),
            decoder=found.with_registries().decoder,
            transform=transform,
            dead_letters=None if letters is None else letters.model_copy(update=single),
            limits=found.ingestion.limits,
        )
    click.echo(f"Version {done.version} of {found.target} has {done.rows:,} rebuilt rows. You can drop {staging}.")
    reason = f"rebuilt from {staging}"
    click.echo(found.void_record(found.target.stream, done.version, reason, done.state))
