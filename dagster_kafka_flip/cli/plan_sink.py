"""`dagster-kafka-flip plan` for an asset that publishes a table: which versions its next run would publish."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.output import console, print_fields, print_table, waiting
from dagster_kafka_flip.cli.position_sink import facts_of, fields_of, next_run
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.sink_status import PlannedVersion, planned_versions, sink_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.cli.asset import PublishedAsset
    from dagster_kafka_flip.sink.sink_status import SinkStatus


def plan_sink(found: PublishedAsset, limit_rows: int, *, ask_table: bool, as_json: bool) -> None:
    """Prints the versions that the next run would publish, with the numbers in their commits. Writes nothing.

    Args:
        found: The asset.
        limit_rows: Most versions to show.
        ask_table: Whether Spark may be started if the table's log can't be seen without.
        as_json: Whether to print one line of JSON, with all versions.

    Raises:
        ConfigurationError: Only Spark can read the table's log, and it may not be started.
        KafkaFlipError: The next run would fail with this error.
    """
    publishing = found.publishing
    source, sink = publishing.source, publishing.sink
    with waiting("Reading the progress ..."), contextlib.ExitStack() as stack:
        started: list[SparkSession] = []

        def spark() -> SparkSession:
            if not ask_table:
                raise ConfigurationError(
                    f"the log of {source} can't be read without Spark, so the versions are unknown",
                    "Add --ask-table, which starts Spark",
                )
            if not started:
                started.append(stack.enter_context(found.session_of(publishing.spark, None, None)))
            return started[0]

        connection = found.connection_of(publishing.kafka, publishing.cluster)
        seen = sink_status(source, sink, connection, spark)
        versions: list[PlannedVersion] = []
        if seen.first is not None:
            after = seen.first
            if seen.snapshot:
                versions.append(PlannedVersion(seen.first, None, None))
                after += 1
            if after <= seen.stop:
                versions += planned_versions(source, after, seen.stop, spark)
    known = [each.rows for each in versions if each.rows is not None]
    uncounted = len(versions) - len(known)
    name = found.key.to_user_string()
    if as_json:
        document = {
            "asset": name,
            **facts_of(found, seen),
            "from_version": seen.first,
            "to_version": seen.stop,
            "snapshot": seen.snapshot,
            "rows": sum(known),
            "versions_with_unknown_rows": uncounted,
            "versions": [
                {"version": each.version, "operation": each.operation, "rows": each.rows} for each in versions
            ],
        }
        click.echo(json.dumps(document))
        return
    out = console()
    print_fields(
        out,
        {"asset": name, **fields_of(found, seen), "published": _published(seen), "next run": next_run(seen, source)},
    )
    if not versions:
        return
    out.print()
    rows = [
        (each.version, each.operation or "the snapshot: all rows", "unknown" if each.rows is None else each.rows)
        for each in versions
    ]
    print_table(out, ("version", "operation", "changed rows"), rows, most=limit_rows)
    out.print()
    parts = [f"{sum(known):,} changed"] * bool(known)
    if uncounted:
        parts.append(f"an unknown number in {counted(uncounted, 'version')}")
    text = ", and ".join(parts)
    print_fields(out, {"versions": f"{len(versions):,}", "rows": text})


def _published(seen: SinkStatus) -> str:
    if seen.published_version is None:
        return "nothing yet"
    if seen.snapshot:
        return f"{counted(sum(lane.rows for lane in seen.lanes), 'row')} of the snapshot of version {seen.first}"
    return f"up to version {seen.published_version}, {seen.lag_versions:,} behind the table"
