"""The extra of an asset's event, and what the next run finds in it: a stream's position, or a sink's progress."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.context import InletEventsAccessors

from dagster_kafka_flip.errors import SinkProgressError
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.table.known_position import KnownPosition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.sdk import Asset
    from airflow.sdk.execution_time.comms import AssetEventResult
    from airflow.sdk.execution_time.context import InletEventsAccessor

    from dagster_kafka_flip.ingestion.result import IngestResult, WindowsResult
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.result import PublishResult
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

POSITION = "kafka/position"
SINK = "kafka/sink"
PROGRESS = "kafka/sink_progress"

EVENTS_RETURN = (
    "Airflow 3.2.0 to 3.3.2 can't return events while a run that one of them started is queued: wait for the queued or "
    "cleared runs of the DAGs that this asset starts, or delete them"
)
"""When Airflow can return an asset's events again."""

# An asset may have events of several streams or sinks, and of other DAGs.
_EVENTS_AT_ONCE = 100


def stream_extra(result: IngestResult) -> dict[str, Any]:
    """The extra for a run of a stream, with keys of docs/metadata.md. Unknown values are left out."""
    before = result.unreported
    values: dict[str, Any] = {
        "kafka/idle": result.is_idle,
        "kafka/records_read": result.records,
        "kafka/bytes_read": result.bytes,
        "kafka/rejected_records": result.rejected_records,
        "kafka/unknown": result.unknown,
        "kafka/lag_before": sum(result.plan.lag_before.values()),
        "kafka/lag_after": result.lag_after,
        "kafka/held_back_offsets": sum(result.plan.held_back.values()),
        "kafka/watermark": None if result.watermark is None else instant(result.watermark),
        "kafka/lost_offsets": result.lost_offsets,
        "kafka/incidents": [incident.to_json() for incident in result.all_incidents] or None,
        "kafka/dead_letters": None if result.dead_letter_table is None else result.dead_letters,
        "kafka/dead_letter_table": result.dead_letter_table,
        "delta/rows_written": result.rows,
        "delta/commits": len(result.batches),
        "delta/version": result.known.table_version,
        "delta/rows": result.known.table_rows,
        "delta/unreported_commits": None if before is None else before.commits,
        "delta/unreported_rows": None if before is None else before.rows,
        "spark/started": result.started_spark,
        POSITION: result.known.to_json(),
    }
    return {name: value for name, value in values.items() if value is not None}


def windows_extra(results: Sequence[WindowsResult]) -> dict[str, Any]:
    """The extra for a run that landed windows, likewise."""
    values: dict[str, Any] = {
        "kafka/records_read": total(result.observed.records for result in results),
        "kafka/stragglers": total(result.stragglers for result in results),
        "delta/rows_written": total(
            None if result.rows is None else result.rows_of(window)
            for result in results
            for window in result.plan.windows
        ),
        "delta/commits": sum(result.committed is not None for result in results),
        "delta/version": max((each.committed.version for each in results if each.committed is not None), default=None),
        "kafka/windows": [str(window.window) for result in results for window in result.plan.windows],
    }
    return {name: value for name, value in values.items() if value is not None}


class LastKnown(NamedTuple):
    """What the newest events of a table tell about a stream.

    Attributes:
        position: The stream's position; None if none of them has it.
        reported: The table's version up to which events have the stream's commits; -1 for none, None if unknown.
        problem: Why the events can't be read; None if they were.
    """

    position: KnownPosition | None = None
    reported: int | None = None
    problem: str | None = None


def last_known(asset: Asset, target: DeltaTarget) -> LastKnown:
    """Reads the newest events of a stream's table."""
    try:
        extras = list(itertools.islice(_extras(asset), _EVENTS_AT_ONCE))
    except AirflowRuntimeError as error:
        problem = f"Airflow can't return the events of the asset {asset.name}: {error}"
        _logger.warning("%s. What earlier runs have reported is unknown", problem)
        return LastKnown(problem=problem)
    positions = [KnownPosition.from_json(extra.get(POSITION)) for extra in extras]
    found = next((position for position in positions if position is not None and position.is_of(target)), None)
    if found is not None:
        return LastKnown(found, found.table_version)
    return LastKnown(reported=-1 if len(extras) < _EVENTS_AT_ONCE else None)


def sink_extra(result: PublishResult, sink: KafkaSink) -> dict[str, Any]:
    """The extra for a run of a sink, with keys of docs/metadata.md."""
    return {
        **result.metadata,
        SINK: sink.transactional_id_prefix,
        "kafka/progress_topic": sink.progress_name,
        PROGRESS: result.known_json,
    }


def last_progress(asset: Asset, prefix: str) -> dict[int, tuple[int, int]]:
    """What the newest run of a sink reached, by lane, in the events of its topic; empty if there is none."""
    try:
        for extra in _extras(asset):
            if extra.get(SINK) == prefix and (progress := _progress(extra.get(PROGRESS))):
                return progress
    except AirflowRuntimeError as error:
        raise SinkProgressError(
            f"Airflow can't return the events of the asset {asset.name}, which hold the progress of the last run of "
            f"the sink {prefix}: {error}. Without them, a lost progress topic would not be noticed",
            f"Run it again. {EVENTS_RETURN}",
            outcome="Nothing was published",
        ) from error
    return {}


def _progress(value: Any) -> dict[int, tuple[int, int]]:
    try:
        return {int(lane): (int(progress["version"]), int(progress["rows"])) for lane, progress in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        # Somebody else's event, with the same name.
        return {}


def _extras(asset: Asset) -> Iterator[Mapping[str, Any]]:
    """The extras of an asset's events, the newest first; those of one time may come several times."""
    # Not through the task's inlets: then the DAG would look like a reader of its own table.
    events = InletEventsAccessors([asset])[asset].ascending(ascending=False)
    limit = _EVENTS_AT_ONCE
    while page := _page(events.limit(limit)):
        yield from (event.extra or {} for event in page)
        if len(page) < limit:
            return
        if page[0].timestamp == page[-1].timestamp:
            # Airflow pages by time alone: what follows is only in a larger page.
            limit *= 2
        else:
            # Including those of this time.
            events = events.before(page[-1].timestamp.isoformat())


def _page(events: InletEventsAccessor) -> list[AssetEventResult]:
    """Asks for the events; there are none of an asset that Airflow does not know yet."""
    try:
        return list(events)
    except AirflowRuntimeError as error:
        if error.error.error is not ErrorType.ASSET_NOT_FOUND:
            raise
        return []
