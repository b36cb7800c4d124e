"""What runs tell of themselves: by the keys of docs/metadata.md, for Dagster's metadata and Airflow's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.fields import merge_fields
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.source.instants import instant, now_ms, utc_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult, WindowsResult
    from dagster_kafka_flip.source.incident import Incident

CHECKPOINT = "kafka/checkpoint"
"""Where the next run continues, for machines."""
POSITION = "kafka/position"
"""The same in events of earlier versions; now Dagster's table of it."""
ROWS = "delta/rows"
SPARK_UI = "spark/ui"
UNKNOWN = "kafka/unknown"
UNREPORTED_COMMITS = "delta/unreported_commits"
WATERMARK = "kafka/watermark"

# More names would fill a page without adding information.
_NAMED_PARTITIONS = 20


def stream_facts(result: IngestResult) -> dict[str, Any]:
    """What a run of a stream tells. Unknown values are left out: an unknown number is not 0."""
    plan, merged, before, low = result.plan, result.merged, result.unreported, result.state.watermark
    return known(
        {
            "kafka/idle": result.is_idle,
            **_of_commits(
                result.batches,
                rejected=result.rejected_records,
                unknown=result.unknown,
                planning=result.plan_seconds,
                starting=result.spark_seconds if result.started_spark else None,
            ),
            "kafka/lag_before": sum(plan.lag_before.values()),
            "kafka/lag_after": result.lag_after,
            "kafka/held_back_offsets": sum(plan.held_back.values()),
            "kafka/lost_offsets": result.lost_offsets,
            WATERMARK: moment(result.watermark),
            "kafka/low_watermark": moment(low),
            "kafka/paused_offsets": None if low is None else sum(plan.paused.values()),
            "kafka/discovered": first_few(plan.discovered, _NAMED_PARTITIONS) or None,
            "kafka/removed": first_few(plan.removed, _NAMED_PARTITIONS) or None,
            "kafka/dead_letters": None if result.dead_letter_table is None else result.dead_letters,
            "kafka/dead_letter_table": result.dead_letter_table,
            "kafka/group_commit_failures": result.group_commit_failures or None,
            "kafka/start_overridden": result.overrides_start or None,
            **({} if merged is None else {f"delta/rows_{name}": number for name, number in vars(merged).items()}),
            "delta/version": result.known.table_version,
            ROWS: result.known.table_rows,
            UNREPORTED_COMMITS: before and before.commits,
            "delta/unreported_rows": before and before.rows,
            "delta/unreported_versions": before and f"{before.from_version} to {before.to_version}",
            "delta/unreported_runs": (before and ", ".join(before.runs)) or None,
            "spark/started": result.started_spark,
            "seconds/end_to_end_delay": None if (time := result.watermark) is None else (now_ms() - time) / 1000,
            **_of_results([result], result.fields, result.all_incidents),
            CHECKPOINT: result.known.to_json(),
        }
    )


def windows_facts(results: Sequence[WindowsResult]) -> dict[str, Any]:
    return known(
        {
            **_of_commits(
                results,
                rejected=rejected_records(results),
                unknown=unknown(results),
                planning=sum(result.plan_seconds for result in results),
                starting=sum(result.spark_seconds for result in results),
            ),
            "kafka/stragglers": stragglers(results),
            "delta/version": max((each.committed.version for each in results if each.committed), default=None),
            **_of_results(results, fields(results), incidents(results)),
        }
    )


def moment(milliseconds: int | None) -> datetime | str | None:
    """A time; as text if out of range, as from a producer that writes microseconds."""
    return None if milliseconds is None else utc_time(milliseconds) or instant(milliseconds)


def incidents(results: Sequence[WindowsResult]) -> tuple[Incident, ...]:
    return tuple({incident.message: incident for result in results for incident in result.plan.incidents}.values())


def stragglers(results: Sequence[WindowsResult]) -> int | None:
    """Number of records in no window, because they were too late or have no timestamp; None if unknown."""
    return total(result.stragglers for result in results)


def rejected_records(results: Sequence[WindowsResult]) -> int | None:
    return total(result.observed.rejected for result in results)


def fields(results: Sequence[WindowsResult]) -> FieldsSeen | None:
    return merge_fields(result.observed.fields for result in results if result.plan.splits)


def unknown(results: Sequence[WindowsResult]) -> str | None:
    """Reason why a value is unknown, from the first commit with one; None if all are known."""
    return next((why for result in results if (why := result.observed.unknown) is not None), None)


def known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


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
    confirming = sum(commit.confirm_seconds for commit in commits)
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
        "kafka/records_per_second": round(records / writing, 3) if records and writing > 0 else None,
    }


def _of_results(
    results: Sequence[IngestResult | WindowsResult], seen: FieldsSeen | None, met: Sequence[Incident]
) -> dict[str, Any]:
    changes = dict.fromkeys(change for result in results for change in result.column_changes)
    left_out = dict.fromkeys(name for result in results for name in result.columns_not_written)
    return {
        "kafka/fields_never_seen": (seen and ", ".join(seen.never)) or None,
        "kafka/undeclared_fields": (seen and ", ".join(seen.undeclared)) or None,
        # The schema versions, by subject, that records were read with.
        **{f"kafka/{side}_schema": schema for side, schema in results[-1].reader_schemas.items()},
        "delta/column_changes": ", ".join(changes) or None,
        "delta/columns_not_written": ", ".join(left_out) or None,
        SPARK_UI: results[-1].spark_ui,
        "kafka/incidents": [incident.to_json() for incident in met],
    }
