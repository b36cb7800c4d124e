"""`dagster-kafka-flip position set` and `reset`: move a stream's position manually."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_asset_or_table,
    check_can_ask,
    limit_rows_option,
    only_writer,
    option_group,
    runs_stopped_option,
    spark_options,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.offsets import OffsetsInitializer

_move_options = option_group(
    asset_options,
    click.option("--table", help="Path or catalog name of the Delta table."),
    click.option("--stream", help="Id of the stream. Default: the asset's, or main."),
    click.option("--bootstrap-servers", help="host:port pairs of Kafka, with --table."),
    click.option("--topic", "topics", multiple=True, help="Topic of the stream. Default: all that it has read."),
    click.option("--group-id", help="The group with the committed offsets. Default: the asset's."),
    spark_options,
    limit_rows_option,
    runs_stopped_option,
    click.option("--reason", required=True, help="The reason; stored in the table's history."),
    click.option("--dry-run", is_flag=True, help="Show what would be read again or skipped, and change nothing."),
    click.option("--yes", is_flag=True, help="Skip the confirmation."),
)


@click.command("set")
@_move_options
@click.option(
    "--to",
    help="earliest, latest, timestamp:2026-01-31T00:00:00Z, committed, committed:earliest, or offsets:{...}, which "
    "moves only the listed topic partitions.",
)
@click.option(
    "--give-up",
    is_flag=True,
    help="Give up the position of topic partitions that the source (or --topic) no longer reads, so another stream of "
    "the table can read them. Without --to, all other positions stay.",
)
@click.pass_context
def set_position(context: click.Context, *, to: str | None, **flags: Any) -> None:
    """Move a stream's position with an empty commit.

    Shows how many records will be read again or skipped, and asks for confirmation. A running ingestion that was
    planned before fails.
    """
    from dagster_kafka_flip.source.offsets import OffsetsInitializer

    if to is None and not flags["give_up"]:
        raise click.UsageError("set --to or --give-up")
    with written("--to"):
        where_to = None if to is None else OffsetsInitializer.parse(to)
    _move(context, where_to, flags)


@click.command("reset")
@_move_options
@click.pass_context
def reset_position(context: click.Context, **flags: Any) -> None:
    """Move a stream to its source's start, as if it had never run."""
    _move(context, None, flags)


def _move(context: click.Context, to: OffsetsInitializer | None, flags: Mapping[str, Any]) -> None:
    from dagster_kafka_flip.cli.answer import answer, waiting
    from dagster_kafka_flip.cli.streams import move_to_json, request_of_asset, request_of_table
    from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move

    give_up = flags.get("give_up", False)
    check_asset_or_table(context, frozenset({"table", "bootstrap_servers", "topics"}))
    if not flags["reason"].strip():
        raise click.UsageError("--reason is empty; it is stored in the table's history")
    request = request_of_table(flags) if flags["asset"] is None else request_of_asset(flags)
    check_can_ask(yes=flags["yes"] or flags["dry_run"])
    with only_writer(), request.session() as spark:
        with waiting("Reading the table's history and Kafka's offsets ..."):
            source = request.source(spark)
            if to is not None and to.needs_group and source.group_id is None:
                raise click.UsageError("--to committed needs --group-id, the group with the committed offsets")
            # `reset` moves to the source's start; `set --give-up` alone keeps the other positions.
            where_to = to if give_up else to or source.starting_offsets
            move = plan_move(source, request.target, spark, where_to, give_up=give_up)
        answer(move_to_json(str(request.target), request.target.stream, move), limit_rows=flags["limit_rows"])
        if give_up and not move.given_up:
            raise click.UsageError(
                "--give-up: nothing to give up: the source still reads all topic partitions of the stream's position, "
                "or the table's rows have a key, so that it has one stream. First remove the topics from the source; "
                "with --table, list the topics to keep with --topic"
            )
        if flags["dry_run"]:
            click.echo("Nothing was changed (--dry-run).")
            return
        if not flags["yes"]:
            click.confirm("Move the position?", abort=True)
        committed = commit_move(move, request.target, spark, flags["reason"])
    click.echo(f"The position is set in version {committed.version} of {request.target}.")
    click.echo(request.update_dagster_record(committed.version, flags["reason"], move))
