"""`dagster-kafka-flip position sink`: what an asset has published of its table, and what its next run would publish."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import asset_options, json_option, required_asset, spark_options

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_kafka_flip.cli.asset import PublishedAsset
    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.sink_status import SinkStatus


@click.command("sink")
@asset_options
@spark_options
@json_option
@click.pass_context
def position_of_sink(
    context: click.Context,
    *,
    asset: str | None,
    module_name: str | None,
    python_file: Path | None,
    spark_master: str | None,
    spark_remote: str | None,
    as_json: bool,
) -> None:
    """Show what an asset has published of its table, and what its next run would publish.

    Reads the progress from Kafka, and changes nothing. Starts Spark only if the table is not on a local file system.
    """
    asset = required_asset(context, asset, "the asset of the topic")

    from dagster_kafka_flip.cli.asset import find_published
    from dagster_kafka_flip.cli.output import console, print_fields, print_table, waiting
    from dagster_kafka_flip.sink.sink_status import sink_status

    found = find_published(asset, module_name=module_name, python_file=python_file)
    publishing = found.publishing
    source, sink = publishing.source, publishing.sink
    with waiting("Reading the progress ..."), contextlib.ExitStack() as stack:
        seen = sink_status(
            source,
            sink,
            found.connection_of(publishing.kafka, publishing.cluster),
            lambda: stack.enter_context(found.session_of(publishing.spark, spark_master, spark_remote)),
        )
    if as_json:
        document = {
            **facts_of(found, seen),
            "delivery_guarantee": sink.delivery_guarantee,
            "next_run": {"from_version": seen.first, "to_version": seen.stop},
            "lanes": [{"lane": lane.lane, "version": lane.version, "rows": lane.rows} for lane in seen.lanes],
        }
        click.echo(json.dumps(document))
        return
    out = console()
    print_fields(out, {**fields_of(found, seen), "next run": next_run(seen, source)})
    if seen.lanes:
        out.print()
        rows = [(str(lane.lane), lane.version, lane.rows) for lane in seen.lanes]
        print_table(out, ("lane", "published version", "rows of the next"), rows)


def facts_of(found: PublishedAsset, seen: SinkStatus) -> dict[str, Any]:
    """The sink's progress, as JSON."""
    source, sink = found.publishing.source, found.publishing.sink
    return {
        "table": str(source),
        "topic": sink.topic,
        "sink": sink.transactional_id_prefix,
        "published_version": seen.published_version,
        "newest_version": seen.newest_version,
        "lag_versions": seen.lag_versions,
    }


def fields_of(found: PublishedAsset, seen: SinkStatus) -> dict[str, object]:
    """What is published, and where to, for people."""
    source, sink = found.publishing.source, found.publishing.sink
    return {
        "table": f"{source}, newest version {seen.newest_version}",
        "topic": sink.topic,
        "sink": f"{sink.transactional_id_prefix} ({sink.delivery_guarantee})",
    }


def next_run(seen: SinkStatus, source: DeltaSource) -> str:
    """What the next run would publish, for people."""
    from dagster_kafka_flip.sink.progress import Segment

    if not seen.lanes:
        return f"the first one, with start {source.start}, up to version {seen.stop}"
    if seen.first is None:
        return "nothing: all is published"
    parts = [f"the snapshot of version {seen.first}"] * seen.snapshot
    begin = seen.first + seen.snapshot
    if begin <= seen.stop:
        parts.append(str(Segment(begin, seen.stop)))
    return ", then ".join(parts)
