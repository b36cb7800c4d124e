"""`dagster-kafka-flip position`: shows and moves the positions of a table's streams, and shows those of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_asset_or_table,
    given_options,
    json_option,
    limit_rows_option,
    spark_options,
    written,
)
from dagster_kafka_flip.cli.position_set import reset_position, set_position

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.cli.position_report import PositionReport
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.target import DeltaTarget


@click.group()
def position() -> None:
    """Show the positions of a table's streams, or move one."""


position.add_command(set_position)
position.add_command(reset_position)


@position.command()
@asset_options
@click.option("--table", help="Path or catalog name of the Delta table.")
@click.option("--stream", help="Id of one stream. Default: the asset's, or all of the table.")
@click.option(
    "--commits", type=click.IntRange(min=0), default=5, show_default=True, help="Last commits to show of each stream."
)
@click.option("--bootstrap-servers", help="host:port pairs of Kafka, to also show the lag.")
@spark_options
@limit_rows_option
@json_option
@click.pass_context
def show(
    context: click.Context,
    *,
    asset: str | None,
    python_file: Path | None,
    table: str | None,
    stream: str | None,
    commits: int,
    bootstrap_servers: str | None,
    spark_master: str | None,
    spark_remote: str | None,
    limit_rows: int,
    as_json: bool,
) -> None:
    """Show the position of each stream of a table (--table), or of an asset (--asset).

    Reads the table's history with Spark, and with an asset or an address also the lag from Kafka. Exits with 1 if a
    position or a lag is unknown. Of an asset that publishes a table: what it has published, and what its next run would
    publish.
    """
    check_asset_or_table(context, frozenset({"table", "bootstrap_servers"}))

    from dagster_kafka_flip.cli.answer import answer
    from dagster_kafka_flip.cli.streams import lag_of, stream_to_json
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.table.target import DeltaTarget

    with written():
        # Also validates the id: a misspelt one would look like a new stream.
        target = DeltaTarget.of(
            DeltaTarget(table="of/the/asset" if table is None else table, stream="main" if stream is None else stream)
        )
        connection = None if bootstrap_servers is None else KafkaConnection(bootstrap_servers=bootstrap_servers)
    found = None
    if asset is not None:
        from dagster_kafka_flip.cli.asset import PublishedAsset, find_either

        found = find_either(asset, python_file)
        if isinstance(found, PublishedAsset):
            if given := given_options(context, frozenset({"stream", "commits"})):
                raise click.UsageError(f"{', '.join(given)}: {asset} publishes a table, and has no stream")
            from dagster_kafka_flip.cli.sink import show_sink

            show_sink(found, spark_master, spark_remote, as_json=as_json)
            return
        found.check_has_position()
        stream = found.target.stream if stream is None else stream
        target = DeltaTarget(table=found.target.table, stream=stream)
        connection = found.connection()
    history, reports = _reports(target, found, stream, commits, spark_master, spark_remote)
    sources = {} if found is None else {found.target.stream: found.source}
    streams = [
        stream_to_json(report, lag_of(connection, sources.get(report.stream), report.anchor)) for report in reports
    ]
    answer(
        {"table": str(target), "version": history[0].version if history else None, "streams": streams},
        as_json=as_json,
        limit_rows=limit_rows,
    )
    context.exit(1 if any(one["error"] or one["lag_error"] for one in streams) else 0)


def _reports(
    target: DeltaTarget,
    found: LandingAsset | None,
    stream: str | None,
    commits: int,
    master: str | None,
    remote: str | None,
) -> tuple[Sequence[Commit], list[PositionReport]]:
    """The table's history, and the position of one stream or all."""
    from dagster_kafka_flip.cli.answer import waiting
    from dagster_kafka_flip.cli.options import command_session
    from dagster_kafka_flip.cli.position_report import report_position, streams_of
    from dagster_kafka_flip.errors import KafkaFlipError, TableError
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.spark_error import CHECK_ACCESS, told

    session = command_session(master, remote) if found is None else found.session(master, remote)
    with waiting("Starting Spark ...") as status, session as spark:
        status.update("Reading the table's history ...")
        try:
            # Only reads, so single_writer does not matter.
            table = DeltaTable(spark, target.model_copy(update={"single_writer": True}))
            history = table.history()
        except KafkaFlipError:
            raise
        except Exception as error:
            raise TableError(*told(f"the history of {target} can't be read", error, CHECK_ACCESS)) from error
        if history is None:
            raise TableError(
                f"there is no Delta table {target}; check the path or the name (a catalog other than Spark's default "
                "needs a session that has it: --asset or --spark-remote)"
            )
        names = streams_of(history) if stream is None else (stream,)
        return history, [report_position(history, name, str(target), commits) for name in names]
