"""`dagster-kafka-flip plan`: shows what a run would read or publish, without Spark and without side effects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_definitions_have_asset,
    check_not_of_asset,
    given_options,
    json_option,
    limit_rows_option,
)

if TYPE_CHECKING:
    from pathlib import Path

_OF_THE_SOURCE = frozenset(
    {"bootstrap_servers", "topics", "topic_pattern", "partitions", "group_id", "isolation_level"}
)
# What an asset that publishes a table does not have.
_OF_THE_READ = frozenset({"start", "stop", "max_records_per_batch", "max_bytes_per_batch", "parallelism"})
_OF_THE_RANGE = frozenset({"range_start", "range_stop", "time_column"})


@click.command()
@asset_options
@click.option(
    "--bootstrap-servers",
    envvar="KAFKA_BOOTSTRAP_SERVERS",
    show_envvar=True,
    help="host:port pairs of a cluster without security; for a secured cluster use --asset.",
)
@click.option("--topic", "topics", multiple=True, help="A topic to read; may be repeated.")
@click.option("--topic-pattern", help="A regular expression for the topics to read.")
@click.option("--partition", "partitions", multiple=True, help="A topic partition, such as flights-0; may be repeated.")
@click.option("--start", help="earliest (default), latest, committed, timestamp:..., offsets:{...}.")
@click.option("--stop", help="latest (default), committed, timestamp:..., offsets:{...}.")
@click.option("--group-id", help="Consumer group whose committed offsets are used; it is not joined.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="read_committed excludes records of open and aborted transactions.",
)
@click.option("--max-records-per-batch", type=click.IntRange(min=1), help="Maximum number of offsets in one commit.")
@click.option(
    "--max-bytes-per-batch", type=click.IntRange(min=1), help="Approximate maximum number of bytes in one commit."
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    help="Number of tasks that run in parallel. Default: this machine's cores.",
)
@click.option("--ask-table", is_flag=True, help="With --asset: start Spark and read the position from the table.")
@click.option(
    "--from",
    "range_start",
    metavar="TIME",
    help="With --asset: show what lands a range of time again. Its start, in ISO 8601 with a UTC offset, such as "
    "2026-01-31T00:00:00Z.",
)
@click.option("--to", "range_stop", metavar="TIME", help="The end of that range (exclusive).")
@click.option("--time-column", metavar="NAME", help="For a range of a stream: the column with the record's timestamp.")
@limit_rows_option
@json_option
@click.pass_context
def plan(
    context: click.Context,
    *,
    asset: str | None,
    python_file: Path | None,
    range_start: str | None,
    range_stop: str | None,
    time_column: str | None,
    parallelism: int | None,
    ask_table: bool,
    limit_rows: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show what a run would read, for an asset (--asset) or for topics; or what it would publish.

    With --from and --to: what lands a range of time again. For an asset with partitions, those that are completely in
    the range; for a stream the records with timestamps in it, up to the stream's position.

    Writes nothing and joins no group. Only uses Kafka and the schema registries of an asset's formats, and starts no
    Spark unless --ask-table is set.
    """
    check_definitions_have_asset(asset, python_file)

    from dagster_kafka_flip.cli.plan_request import planned_run, request_of_asset, request_of_flags

    if given_options(context, _OF_THE_RANGE):
        if asset is None or range_start is None or range_stop is None:
            raise click.UsageError("a range of time needs --asset, --from and --to")
        if given := given_options(context, _OF_THE_SOURCE | _OF_THE_READ | {"ask_table"}):
            raise click.UsageError(f"{', '.join(given)}: not for a range of time")
        from dagster_kafka_flip.cli.asset import find_asset
        from dagster_kafka_flip.cli.plan_range import plan_range, span_of

        # First, as an invalid range fails in any case.
        span = span_of(range_start, range_stop)
        found = find_asset(asset, python_file)
        plan_range(found, span, time_column, limit_rows, as_json=as_json)
        return
    if asset is None:
        if ask_table:
            raise click.UsageError("--ask-table needs an asset; select one with --asset")
        request = request_of_flags(flags)
    else:
        check_not_of_asset(context, asset, _OF_THE_SOURCE)
        from dagster_kafka_flip.cli.asset import PublishedAsset, find_either

        found = find_either(asset, python_file)
        if isinstance(found, PublishedAsset):
            given = given_options(context, _OF_THE_READ)
            if given:
                msg = f"{', '.join(given)}: only for an asset that lands topics, and {asset} publishes a table"
                raise click.UsageError(msg)
            from dagster_kafka_flip.cli.sink import plan_sink

            plan_sink(found, limit_rows, ask_table=ask_table, as_json=as_json)
            return
        request = request_of_asset(found, flags, ask_table=ask_table)

    from dagster_kafka_flip.cli.answer import answer, waiting

    with waiting("Asking Kafka ..."):
        document = planned_run(request, parallelism or os.cpu_count() or 1)
    answer(document, as_json=as_json, limit_rows=limit_rows)
