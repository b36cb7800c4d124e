"""Metadata of a run's materializations, and how the next run reads the position back."""

from __future__ import annotations

import hashlib
import heapq
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import (
    DataVersion,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableMetadataValue,
    TableRecord,
    TableSchema,
)

from dagster_kafka_flip.formats.fields import merge_fields
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.source.instants import instant, utc_time
from dagster_kafka_flip.table.known_position import KnownPosition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster import AssetMaterialization, AssetObservation, TextMetadataValue, TimestampMetadataValue

    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult, WindowsResult
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import PlannedWindow
    from dagster_kafka_flip.table.target import DeltaTarget

POSITION = "kafka/position"
POSITION_SET = "kafka/position_set"
ROW_COUNT = "dagster/row_count"
SPARK_UI = "spark/ui"
COLUMN_SCHEMA = "dagster/column_schema"
TABLE_NAME = "dagster/table_name"
WATERMARK = "kafka/watermark"
UNKNOWN = "kafka/unknown"
UNREPORTED_COMMITS = "delta/unreported_commits"

# More names would fill a page without adding information.
_NAMED_PARTITIONS = 20

# Each is a row in Dagster's database for each run; `kafka/position` has all topic partitions.
_SHOWN_SPLITS = 100

_SPLIT_COLUMNS = ("topic", "partition", "start", "stop", "offsets")


def table_metadata(target: DeltaTarget) -> dict[str, Any]:
    """Definition metadata of an asset with a table."""
    where = {TABLE_NAME: target.table} if target.uri is None else {"dagster/uri": target.uri}
    key = {"delta/key": ", ".join(target.key)} if target.key else {}
    return {"delta/stream": target.stream, **key, **where}


def data_version(state: EnumeratorState) -> DataVersion:
    """Data version: a hash of the position, unchanged if a run found nothing new."""
    document = json.dumps(state.to_json(), sort_keys=True)
    return DataVersion(hashlib.sha256(document.encode()).hexdigest()[:32])


def result_metadata(result: IngestResult, previous: AssetMaterialization | None) -> dict[str, Any]:
    """Returns the metadata of a materialization; an idle run repeats some of the previous one."""
    metadata: dict[str, Any] = {
        "kafka/idle": result.is_idle,
        "kafka/splits": splits_table(_splits(result), "lag_before", "lag_after"),
        **_of_commits(
            result.batches,
            rejected=result.rejected_records,
            unknown=result.unknown,
            planning=result.plan_seconds,
            starting=result.spark_seconds if result.started_spark else None,
        ),
        "kafka/lag_before": sum(result.plan.lag_before.values()),
        "kafka/lag_after": result.lag_after,
        "kafka/held_back_offsets": sum(result.plan.held_back.values()),
        **_merged(result),
        "delta/version": result.known.table_version,
        "spark/started": result.started_spark,
        "kafka/lost_offsets": result.lost_offsets,
        **_now_and_then(result),
        **_unreported(result),
        **_event_time(result, previous),
        **_of_results([result], result.fields, result.all_incidents),
        ROW_COUNT: result.known.table_rows,
        **_about_the_table(result, previous),
        # Long values come last on the page.
        POSITION: MetadataValue.json(result.known.to_json()),
    }
    return _known(metadata)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Omits unknown values: an unknown number is not 0."""
    return {name: value for name, value in values.items() if value is not None}


def _of_commits(
    parts: Sequence[BatchResult | WindowsResult],
    *,
    rejected: int | None,
    unknown: str | None,
    planning: float,
    starting: float | None,
) -> dict[str, Any]:
    """What a run read, wrote and took, by all its commits. Dagster plots numbers: an idle run has none of the times."""
    commits = [part.committed for part in parts if part.committed is not None]
    records = total(part.observed.records for part in parts)
    writing = sum(part.read_and_write_seconds for part in parts)
    confirming = sum(part.confirm_seconds for part in parts)
    return {
        "kafka/records_read": records,
        "kafka/bytes_read": total(part.observed.bytes for part in parts),
        "kafka/rejected_records": rejected,
        UNKNOWN: unknown,
        "kafka/events_without_row": total(part.observed.events_without_row for part in parts) or None,
        "kafka/tasks": sum(part.tasks for part in parts),
        "delta/rows_written": total(commit.rows for commit in commits),
        "delta/bytes_written": total(commit.bytes for commit in commits),
        "delta/commits": len(commits),
        "seconds/plan": round(planning, 3),
        "seconds/spark_start": None if starting is None else round(starting, 3),
        "seconds/read_and_write": round(writing, 3) if parts else None,
        "seconds/commit": round(confirming, 3) if parts else None,
        "seconds/total": round(planning + (starting or 0) + writing + confirming, 3),
        "kafka/records_per_second": per_second(records, writing) if records else None,
    }


def _of_results(
    results: Sequence[IngestResult | WindowsResult], fields: FieldsSeen | None, met: Sequence[Incident]
) -> dict[str, Any]:
    """What a run learned of records and columns, and what it tolerated."""
    changes = dict.fromkeys(change for result in results for change in result.column_changes)
    left_out = dict.fromkeys(name for result in results for name in result.columns_not_written)
    spark_ui = results[-1].spark_ui
    return {
        **fields_metadata(fields),
        # The schema versions, by subject, that records were read with.
        **{f"kafka/{side}_schema": schema for side, schema in results[-1].reader_schemas.items()},
        "delta/column_changes": ", ".join(changes) or None,
        "delta/columns_not_written": ", ".join(left_out) or None,
        SPARK_UI: None if spark_ui is None else MetadataValue.url(spark_ui),
        "kafka/incidents": MetadataValue.json([incident.to_json() for incident in met]) if met else None,
    }


def _column_schema(result: IngestResult | WindowsResult) -> TableSchema | None:
    """The table's columns, with their comments as descriptions."""
    columns = [TableColumn(name, type_, result.comments.get(name)) for name, type_ in result.columns]
    return TableSchema(columns=columns) if columns else None


def _about_the_table(result: IngestResult, previous: AssetMaterialization | None) -> dict[str, Any]:
    """A run's metadata about the table; a run without Spark repeats that of an earlier one."""
    values = {
        "dagster/uri": None if result.location is None else uri(result.location),
        TABLE_NAME: result.table_name,
        COLUMN_SCHEMA: _column_schema(result),
    }
    earlier = {} if previous is None else previous.metadata
    return {name: found for name, value in values.items() if (found := value or earlier.get(name)) is not None}


def _merged(result: IngestResult) -> dict[str, int | None]:
    """What became of the changes, for a table whose rows have a key."""
    merged = result.merged
    if merged is None:
        return {}
    return {
        "delta/rows_inserted": merged.inserted,
        "delta/rows_updated": merged.updated,
        "delta/rows_deleted": merged.deleted,
        "delta/rows_unchanged": merged.unchanged,
    }


def _now_and_then(result: IngestResult) -> dict[str, Any]:
    """Metadata that only some runs have."""
    metadata: dict[str, Any] = {}
    if result.state.watermark is not None:
        metadata["kafka/low_watermark"] = timestamp_value(result.state.watermark)
        metadata["kafka/paused_offsets"] = sum(result.plan.paused.values())
    if result.plan.discovered:
        metadata["kafka/discovered"] = first_few(result.plan.discovered, _NAMED_PARTITIONS)
    if result.plan.removed:
        metadata["kafka/removed"] = first_few(result.plan.removed, _NAMED_PARTITIONS)
    if result.dead_letter_table is not None:
        if result.dead_letters is not None:
            metadata["kafka/dead_letters"] = result.dead_letters
        metadata["kafka/dead_letter_table"] = result.dead_letter_table
    if result.group_commit_failures:
        metadata["kafka/group_commit_failures"] = result.group_commit_failures
    if result.overrides_start:
        metadata["kafka/start_overridden"] = True
    return metadata


def _unreported(result: IngestResult) -> dict[str, Any]:
    """Commits of earlier runs that were not reported."""
    before = result.unreported
    if before is None:
        return {}
    metadata: dict[str, Any] = {
        UNREPORTED_COMMITS: before.commits,
        "delta/unreported_versions": f"{before.from_version} to {before.to_version}",
    }
    if before.rows is not None:
        metadata["delta/unreported_rows"] = before.rows
    if before.runs:
        metadata["delta/unreported_runs"] = ", ".join(before.runs)
    return metadata


def _event_time(result: IngestResult, previous: AssetMaterialization | None) -> dict[str, Any]:
    """The table's event-time watermark; an idle run keeps the previous one."""
    if result.watermark is None:
        recorded = previous.metadata.get(WATERMARK) if result.is_idle and previous is not None else None
        return {} if recorded is None else {WATERMARK: recorded}
    delay = round(time.time() - result.watermark / 1000, 3)
    return {WATERMARK: timestamp_value(result.watermark), "seconds/end_to_end_delay": delay}


def fields_metadata(fields: FieldsSeen | None) -> dict[str, Any]:
    """Returns declared fields that no record has, and undeclared fields that some have."""
    if fields is None:
        return {}
    names_by_entry = {"kafka/fields_never_seen": fields.never, "kafka/undeclared_fields": fields.undeclared}
    return {name: ", ".join(names) for name, names in names_by_entry.items() if names}


def timestamp_value(milliseconds: float) -> TimestampMetadataValue | TextMetadataValue:
    """Returns a timestamp; as text if out of range, as from a producer that writes microseconds."""
    moment = utc_time(milliseconds)
    return MetadataValue.text(instant(round(milliseconds))) if moment is None else MetadataValue.timestamp(moment)


def per_second(records: int, seconds: float) -> float:
    """Records per second; 0 if no time passed."""
    return round(records / seconds, 3) if seconds > 0 else 0.0


def known_position(event: AssetMaterialization | AssetObservation | None) -> KnownPosition | None:
    """Reads the position from what a run has reported; None if it has none that can be read."""
    if event is None or POSITION not in event.metadata:
        return None
    return KnownPosition.from_json(event.metadata[POSITION].value)


def uri(location: str) -> str:
    """Normalizes a location of Spark or Delta to a URI: `/x` and `file:/x` become `file:///x`."""
    if location.startswith("/"):
        return Path(location).as_uri()
    scheme, _, path = location.partition(":")
    return location if path.startswith("//") else f"{scheme}://{path}"


def splits_table(splits: Iterable[Mapping[str, Any]], *more_columns: str) -> TableMetadataValue:
    """Returns the splits in their order; if they are too many for a page, the largest."""
    largest = heapq.nlargest(_SHOWN_SPLITS, enumerate(splits), key=lambda numbered: numbered[1]["offsets"])
    constraints = TableColumnConstraints(nullable=False)
    return MetadataValue.table(
        records=[TableRecord(split) for _, split in sorted(largest, key=lambda numbered: numbered[0])],
        schema=TableSchema(
            columns=[
                TableColumn(name, "string" if name == "topic" else "int", constraints=constraints)
                for name in (*_SPLIT_COLUMNS, *more_columns)
            ]
        ),
    )


def _splits(result: IngestResult) -> Iterable[Mapping[str, Any]]:
    for tp, end in sorted(result.plan.end_offsets.items()):
        start, stop = result.plan.starting_position[tp], result.position_of(tp)
        yield {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": start,
            "stop": stop,
            "offsets": stop - start,
            "lag_before": max(0, end - start),
            "lag_after": max(0, end - stop),
        }


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
    """Returns the metadata of one partition."""
    splits = [split for split in planned.splits if topics is None or split.topic_partition.topic in topics]
    read = {split.topic_partition.topic for split in planned.splits}
    metadata: dict[str, Any] = {
        "kafka/window_start": timestamp_value(planned.window.start_ms),
        "kafka/window_end": timestamp_value(planned.window.stop_ms),
        "kafka/complete": planned.is_complete,
        "kafka/splits": splits_table(_splits_of_windows(splits)),
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
    """Returns the metadata of a run, of at least one commit, which Dagster shows for each of its partitions."""
    versions = [result.committed.version for result in results if result.committed is not None]
    metadata: dict[str, Any] = {
        **_of_commits(
            results,
            rejected=rejected_records(results),
            unknown=unknown(results),
            planning=sum(result.plan_seconds for result in results),
            starting=sum(result.spark_seconds for result in results),
        ),
        "kafka/stragglers": stragglers(results),
        "delta/version": versions[-1] if versions else None,
        "dagster/uri": uri(results[-1].location),
        TABLE_NAME: results[-1].table_name,
        **_of_results(results, fields(results), incidents(results)),
        COLUMN_SCHEMA: _column_schema(results[-1]),
    }
    return _known(metadata)


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


def _splits_of_windows(splits: Iterable[KafkaPartitionSplit]) -> Iterable[dict[str, Any]]:
    for split in splits:
        yield {
            "topic": split.topic_partition.topic,
            "partition": split.topic_partition.partition,
            "start": split.starting_offset,
            "stop": split.stopping_offset,
            "offsets": split.offset_span,
        }
