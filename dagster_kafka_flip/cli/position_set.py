"""`dagster-kafka-flip position set` and `reset`: move a stream's position by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_can_ask,
    check_definitions_have_asset,
    given_options,
    limit_rows_option,
    spark_options,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dagster_kafka_flip.source.offsets import OffsetsInitializer


def _move_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Show what would be read again or skipped, and change nothing."),
        click.option("--reason", required=True, help="Why; kept in the table's history."),
        limit_rows_option,
        spark_options,
        click.option("--group-id", help="The group whose committed offsets count. Default: the asset's."),
        click.option("--topic", "topics", multiple=True, help="What the stream reads. Default: what it has read."),
        click.option("--bootstrap-servers", help="host:port pairs of Kafka, with --table."),
        click.option("--stream", help="Id of the stream. Default: the asset's, or main."),
        click.option("--table", help="Path or catalog name of the Delta table."),
        asset_options,
    ):
        command = option(command)
    return command


@click.command("set")
@_move_options
@click.option(
    "--to",
    help="earliest, latest, timestamp:2026-01-31T00:00:00Z, committed, committed:earliest, or offsets:{...}, which "
    "moves the topic partitions that it names.",
)
@click.option(
    "--give-up",
    is_flag=True,
    help="Give up the position of what the source (or --topic) does not read any more, so that another stream of the "
    "table may read it. Without --to, the rest stays where it is.",
)
@click.pass_context
def set_position(context: click.Context, *, to: str | None, **flags: Any) -> None:
    """Move a stream's position, by an empty commit of its own.

    Shows how many records will be read again, or skipped, and asks. A run in flight that was planned before is refused.
    """
    from dagster_kafka_flip.source.offsets import OffsetsInitializer

    if to is None and not flags["give_up"]:
        msg = "say where to: --to, or --give-up"
        raise click.UsageError(msg)
    with written("--to"):
        where_to = None if to is None else OffsetsInitializer.parse(to)
    _move(context, where_to, flags)


@click.command("reset")
@_move_options
@click.pass_context
def reset_position(context: click.Context, **flags: Any) -> None:
    """Move a stream to where its source starts, as if it had never run."""
    _move(context, None, flags)


def _move(context: click.Context, to: OffsetsInitializer | None, flags: Mapping[str, Any]) -> None:
    from dagster_kafka_flip.cli.move_request import request_of_asset, request_of_table
    from dagster_kafka_flip.cli.output import waiting
    from dagster_kafka_flip.cli.position_set_output import print_move
    from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move

    asset, give_up = flags["asset"], flags.get("give_up", False)
    check_definitions_have_asset(context, asset)
    if asset is None and flags["table"] is None:
        msg = "say which table: --table, or an asset with --asset"
        raise click.UsageError(msg)
    given = given_options(context, frozenset({"table", "bootstrap_servers", "topics"}))
    if asset is not None and given:
        msg = f"{', '.join(given)}: the asset says so already; leave it out, or leave out --asset"
        raise click.UsageError(msg)
    if not flags["reason"].strip():
        msg = "--reason is empty; whoever reads the table's history later needs it"
        raise click.UsageError(msg)
    request = request_of_table(flags) if asset is None else request_of_asset(flags)
    check_can_ask(yes=flags["yes"] or flags["dry_run"])
    with request.session() as spark:
        with waiting("Reading the table's history and Kafka's offsets ..."):
            source = request.source(spark)
            if to is not None and to.needs_group and source.group_id is None:
                msg = "--to committed needs --group-id, the group whose offsets count"
                raise click.UsageError(msg)
            # `reset` goes to where the source starts; `set --give-up` alone leaves the rest where it is.
            where_to = to if give_up else to or source.starting_offsets
            move = plan_move(source, request.target, spark, where_to, give_up=give_up)
        print_move(str(request.target), request.target.stream, move, flags["limit_rows"])
        if give_up and not move.given_up:
            msg = (
                "--give-up: the source still reads everything that the stream has a position of, so there is nothing "
                "to give up. Take the topics out of the source first; with --table, name with --topic what the stream "
                "is to read from now on"
            )
            raise click.UsageError(msg)
        if flags["dry_run"]:
            click.echo("Nothing was changed (--dry-run).")
            return
        if not flags["yes"]:
            click.confirm("Move the position?", abort=True)
        committed = commit_move(move, request.target, spark, flags["reason"])
    click.echo(f"The position is set in version {committed.version} of {request.target}.")
    click.echo(request.tell_dagster(committed.version, flags["reason"], move))
