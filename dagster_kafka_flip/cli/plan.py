"""`dagster-kafka-flip plan`: what a run would read, without Spark and without writing anything."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_definitions_have_asset,
    given_options,
    json_option,
    limit_rows_option,
)

if TYPE_CHECKING:
    from pathlib import Path

_OF_THE_SOURCE = frozenset(
    {
        "bootstrap_servers",
        "topics",
        "topic_pattern",
        "partitions",
        "group_id",
        "isolation_level",
        "properties",
        "max_drift",
    }
)


def _a_number(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    del context, parameter
    if value is not None and math.isnan(value):
        msg = "'nan' is no number of seconds"
        raise click.BadParameter(msg)
    return value


@click.command()
@asset_options
@click.option(
    "--bootstrap-servers",
    envvar="KAFKA_BOOTSTRAP_SERVERS",
    show_envvar=True,
    help="host:port pairs of a cluster without security; for one with it, --asset.",
)
@click.option("--topic", "topics", multiple=True, help="A topic to read; may be repeated.")
@click.option("--topic-pattern", help="A regular expression for the topics to read.")
@click.option("--partition", "partitions", multiple=True, help="A topic partition, such as flights-0; may be repeated.")
@click.option("--start", help="earliest (default), latest, committed, timestamp:..., offsets:{...}.")
@click.option("--stop", help="latest (default), committed, timestamp:..., offsets:{...}.")
@click.option("--group-id", help="Consumer group whose committed offsets are looked up; it is not joined.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="Whether records of open and aborted transactions are left out.",
)
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="A client setting; may be repeated.")
@click.option(
    "--max-drift",
    type=click.FloatRange(min=0.001, max=1e9),
    callback=_a_number,
    help="Seconds ahead of the slowest at most.",
)
@click.option("--max-records-per-batch", type=click.IntRange(min=1), help="Most offsets in one commit.")
@click.option("--max-bytes-per-batch", type=click.IntRange(min=1), help="About the most bytes in one commit.")
@click.option("--spread", type=click.Choice(["backlog", "time"]), help="How a batch is spread. Default: backlog.")
@click.option(
    "--parallelism", type=click.IntRange(min=1), help="Tasks that run at once. Default: this machine's cores."
)
@click.option("--ask-table", is_flag=True, help="With --asset: start Spark, and look up the position in the table.")
@click.option("--sample", is_flag=True, help="Read a few records of each split: sizes and timestamps.")
@limit_rows_option
@json_option
@click.pass_context
def plan(
    context: click.Context,
    *,
    asset: str | None,
    module_name: str | None,
    python_file: Path | None,
    parallelism: int | None,
    ask_table: bool,
    sample: bool,
    limit_rows: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show what a run would read: of an asset (--asset), or of topics.

    Writes nothing and joins no group. Asks Kafka alone, and starts no Spark unless it is to ask the table.
    """
    check_definitions_have_asset(context, asset)

    from dagster_kafka_flip.cli.plan_request import request_of_asset, request_of_flags

    if asset is None:
        if ask_table:
            msg = "--ask-table is for an asset, whose table is known; say which one with --asset"
            raise click.UsageError(msg)
        request = request_of_flags(flags)
    else:
        given = given_options(context, _OF_THE_SOURCE)
        if given:
            msg = f"{', '.join(given)}: the asset says so already; leave it out, or leave out --asset"
            raise click.UsageError(msg)
        request = request_of_asset(asset, module_name, python_file, flags, ask_table=ask_table)

    from dagster_kafka_flip.cli.output import waiting
    from dagster_kafka_flip.cli.plan_output import show, to_json
    from dagster_kafka_flip.cli.planned_run import plan_run
    from dagster_kafka_flip.source.api import SplitEnumeratorContext

    about = SplitEnumeratorContext(parallelism or os.cpu_count() or 1, request.record_bytes, request.tolerated)
    with contextlib.ExitStack() as stack:
        stack.enter_context(waiting("Asking Kafka ..."))
        enumerator = stack.enter_context(
            contextlib.closing(
                request.source.create_enumerator(about)
                if request.state is None
                else request.source.restore_enumerator(about, request.state)
            )
        )
        run = plan_run(enumerator, request.limits, sample=sample)
    if as_json:
        click.echo(json.dumps(to_json(request, run, about.current_parallelism)))
    else:
        show(request, run, limit_rows)
