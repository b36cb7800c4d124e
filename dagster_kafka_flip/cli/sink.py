"""What an asset has published of its table, and what its next run would publish."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.cli.answer import answer, waiting
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.sink.sink_status import planned_versions, sink_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.cli.asset import PublishedAsset
    from dagster_kafka_flip.sink.sink_status import SinkStatus


def show_sink(found: PublishedAsset, master: str | None, remote: str | None, *, as_json: bool) -> None:
    """Prints the progress of each lane. Starts Spark only if the table is not on a local file system."""
    publishing = found.publishing
    with waiting("Reading the progress ..."), contextlib.ExitStack() as stack:
        seen = sink_status(
            publishing.source,
            publishing.sink,
            found.connection_of(publishing.kafka, publishing.cluster),
            lambda: stack.enter_context(found.session_of(publishing.spark, master, remote)),
        )
    lanes = [{"lane": lane.lane, "version": lane.version, "rows_of_the_next": lane.rows} for lane in seen.lanes]
    answer({**_progress(found, seen), "lanes": lanes}, as_json=as_json)


def plan_sink(found: PublishedAsset, limit_rows: int, *, ask_table: bool, as_json: bool) -> None:
    """Prints the versions that the next run would publish, with the numbers in their commits."""
    publishing = found.publishing
    source = publishing.source
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
        seen = sink_status(source, publishing.sink, connection, spark)
        versions: list[dict[str, Any]] = []
        if seen.first is not None:
            versions += [{"version": seen.first, "operation": None, "rows": None}] * seen.snapshot
            after = seen.first + seen.snapshot
            if after <= seen.stop:
                versions += planned_versions(source, after, seen.stop, spark)
    known = [each["rows"] for each in versions if each["rows"] is not None]
    document = {
        **_progress(found, seen),
        "rows": sum(known) if known or not versions else None,
        "versions_with_unknown_rows": len(versions) - len(known),
        "versions": versions,
    }
    answer(document, as_json=as_json, limit_rows=limit_rows)


def _progress(found: PublishedAsset, seen: SinkStatus) -> dict[str, Any]:
    source, sink = found.publishing.source, found.publishing.sink
    return {
        "asset": found.key.to_user_string(),
        "table": str(source),
        "topic": sink.topic,
        "sink": sink.transactional_id_prefix,
        "delivery_guarantee": sink.delivery_guarantee,
        "published_version": seen.published_version,
        "newest_version": seen.newest_version,
        "lag_versions": seen.lag_versions,
        "start": None if seen.lanes else str(source.start),
        "from_version": seen.first,
        "to_version": seen.stop,
        "snapshot": seen.snapshot,
    }
