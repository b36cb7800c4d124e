"""Metadata of the windows of a run: per partition, and for the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import MetadataValue

from dagster_kafka_flip.assets.metadata import (
    COLUMN_SCHEMA,
    SPARK_UI,
    TABLE_NAME,
    column_schema,
    columns_metadata,
    fields_metadata,
    known_metadata,
    per_second,
    reader_schemas_metadata,
    splits_table,
    timestamp_value,
    uri,
)
from dagster_kafka_flip.formats.fields import merge_fields
from dagster_kafka_flip.source.incident import total

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.ingestion.result import WindowsResult
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.window import PlannedWindow

_SHOWN_KEPT = 100

_RUN = "run/"
# Metrics of the whole run, across its windows.
_OF_THE_RUN = (
    "kafka/records_read",
    "kafka/bytes_read",
    "kafka/rejected_records",
    "kafka/events_without_row",
    "kafka/stragglers",
    "kafka/tasks",
    "kafka/records_per_second",
    "delta/rows_written",
    "delta/bytes_written",
    "delta/commits",
)


def window_metadata(
    result: WindowsResult, planned: PlannedWindow, topics: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns the metadata of one partition.

    Args:
        result: The commit that wrote the window.
        planned: The partition's window.
        topics: The partition's topics; None for all.
    """
    splits = [split for split in planned.splits if topics is None or split.topic_partition.topic in topics]
    read = {split.topic_partition.topic for split in planned.splits}
    metadata: dict[str, Any] = {
        "kafka/window_start": timestamp_value(planned.window.start_ms),
        "kafka/window_end": timestamp_value(planned.window.stop_ms),
        "kafka/complete": planned.is_complete,
        "kafka/splits": splits_table(_splits(splits)),
        "kafka/offsets": sum(split.offset_span for split in splits),
    }
    if (rows := result.rows_of(planned, topics)) is not None:
        metadata["dagster/partition_row_count"] = rows
    kept = [str(tp) for tp in result.kept if topics is None or tp.topic in topics]
    if kept:
        metadata["kafka/kept_topic_partitions"] = MetadataValue.json(kept[:_SHOWN_KEPT])
    # Late records are only counted for all topics together.
    is_all = topics is None or read <= set(topics)
    if is_all and (late := result.late_records(planned)) is not None:
        metadata["kafka/late_records"] = late
    if planned.is_complete:
        # All records up to the window's end are in the table, except those beyond the maximum lateness.
        metadata["kafka/watermark"] = timestamp_value(planned.window.stop_ms)
    return metadata


def shared(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's metadata for each of its partitions; names mark the values of the whole run."""
    return {
        f"{_RUN}{name}" if name in _OF_THE_RUN or name.startswith("seconds/") else name: value
        for name, value in metadata.items()
    }


def of_run(metadata: Mapping[str, Any], name: str) -> Any:
    """Returns a count of the run, such as `delta/rows_written`, from a partition's materialization; None if missing."""
    return metadata.get(f"{_RUN}{name}", metadata.get(name))


def windows_metadata(results: Sequence[WindowsResult]) -> dict[str, Any]:
    """Returns the metadata of a run, which Dagster shows for each of its partitions.

    Args:
        results: The run's commits, at least one.
    """
    commits = [result.committed for result in results if result.committed is not None]
    records = total(result.observed.records for result in results)
    planning = sum(result.plan_seconds for result in results)
    seconds = sum(result.read_and_write_seconds for result in results)
    confirming = sum(result.confirm_seconds for result in results)
    starting = sum(result.spark_seconds for result in results)
    metadata: dict[str, Any] = {
        **known_metadata(
            {
                "kafka/records_read": records,
                "kafka/bytes_read": total(result.observed.bytes for result in results),
                "kafka/rejected_records": rejected_records(results),
                "kafka/stragglers": stragglers(results),
            },
            unknown(results),
        ),
        "kafka/tasks": sum(result.tasks for result in results),
        **{
            name: number
            for name, number in (
                ("delta/rows_written", total(commit.rows for commit in commits)),
                ("delta/bytes_written", total(commit.bytes for commit in commits)),
            )
            if number is not None
        },
        "delta/commits": len(commits),
        "seconds/plan": round(planning, 3),
        "seconds/spark_start": round(starting, 3),
        "seconds/read_and_write": round(seconds, 3),
        "seconds/commit": round(confirming, 3),
        "seconds/total": round(planning + starting + seconds + confirming, 3),
        "dagster/uri": uri(results[-1].location),
    }
    if (name := results[-1].table_name) is not None:
        metadata[TABLE_NAME] = name
    metadata |= fields_metadata(fields(results))
    metadata |= reader_schemas_metadata(results[-1])
    metadata |= columns_metadata(results)
    if records:
        metadata["kafka/records_per_second"] = per_second(records, seconds)
    if events := total(result.observed.events_without_row for result in results):
        metadata["kafka/events_without_row"] = events
    if commits:
        metadata["delta/version"] = commits[-1].version
    if results[-1].columns:
        metadata[COLUMN_SCHEMA] = column_schema(results[-1])
    if (spark_ui := results[-1].spark_ui) is not None:
        metadata[SPARK_UI] = MetadataValue.url(spark_ui)
    if met := incidents(results):
        metadata["kafka/incidents"] = MetadataValue.json([incident.to_json() for incident in met])
    return metadata


def incidents(results: Sequence[WindowsResult]) -> tuple[Incident, ...]:
    """Tolerated errors, without duplicates."""
    return tuple({incident.message: incident for result in results for incident in result.plan.incidents}.values())


def stragglers(results: Sequence[WindowsResult]) -> int | None:
    """Number of records in no window, because they were too late or have no timestamp; None if unknown."""
    return total(result.stragglers for result in results)


def rejected_records(results: Sequence[WindowsResult]) -> int | None:
    """Number of undecodable records that were kept; None if unknown."""
    return total(result.observed.rejected for result in results)


def fields(results: Sequence[WindowsResult]) -> FieldsSeen | None:
    """Fields of the records; None if unknown, or if none are declared."""
    return merge_fields(result.observed.fields for result in results if result.plan.splits)


def unknown(results: Sequence[WindowsResult]) -> str | None:
    """Reason why a value is unknown, from the first commit with one; None if all are known."""
    return next((why for result in results if (why := result.observed.unknown) is not None), None)


def _splits(splits: Iterable[KafkaPartitionSplit]) -> Iterable[dict[str, Any]]:
    for split in splits:
        yield {
            "topic": split.topic_partition.topic,
            "partition": split.topic_partition.partition,
            "start": split.starting_offset,
            "stop": split.stopping_offset,
            "offsets": split.offset_span,
        }
