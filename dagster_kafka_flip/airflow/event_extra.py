"""The extra of an asset's event, and what the next run finds in it: a stream's position, or a sink's progress."""

from __future__ import annotations

import itertools
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.context import InletEventsAccessors

from dagster_kafka_flip.errors import SinkProgressUnknownError
from dagster_kafka_flip.ingestion.facts import CHECKPOINT, POSITION
from dagster_kafka_flip.sink.result import SINK, SINK_PROGRESS, known_of
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.table.known_position import KnownPosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow.sdk import Asset
    from airflow.sdk.execution_time.comms import AssetEventResult
    from airflow.sdk.execution_time.context import InletEventsAccessor

    from dagster_kafka_flip.sink.progress import Progress
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

EVENTS_RETURN = (
    "Airflow 3.2.0 to 3.3.2 can't return events while a run that one of them started is queued: wait for the queued or "
    "cleared runs of the DAGs that this asset starts, or delete them"
)
"""When Airflow can return an asset's events again."""

# An asset may have events of several streams or sinks, and of other DAGs.
_EVENTS_AT_ONCE = 100


def as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Gives facts of a run the types of JSON."""
    return {
        name: instant(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value
        for name, value in facts.items()
    }


class LastKnown(NamedTuple):
    """What the newest events tell of a stream: position, version with all its commits (-1: none), or why neither."""

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
    positions = [KnownPosition.from_json(extra.get(CHECKPOINT, extra.get(POSITION))) for extra in extras]
    found = next((position for position in positions if position is not None and position.is_of(target)), None)
    if found is not None:
        return LastKnown(found, found.table_version)
    return LastKnown(reported=-1 if len(extras) < _EVENTS_AT_ONCE else None)


def last_progress(asset: Asset, prefix: str) -> dict[int, tuple[int, int]]:
    """What the newest run of a sink reached, by lane, in the events of its topic; empty if there is none."""
    try:
        for extra in _extras(asset):
            if extra.get(SINK) == prefix and (progress := known_of(extra.get(SINK_PROGRESS))):
                return progress
    except AirflowRuntimeError as error:
        raise SinkProgressUnknownError(
            f"Airflow can't return the events of the asset {asset.name}, which hold the progress of the last run of "
            f"the sink {prefix}: {error}. Without them, a lost progress topic would not be noticed",
            f"Run it again. {EVENTS_RETURN}",
            outcome="Nothing was published",
        ) from error
    return {}


def is_reported(progress: Iterable[Progress], known: Mapping[int, tuple[int, int]]) -> bool:
    """Whether the newest run that has an event reached the progress: a try that died after its commit has none."""
    return all(lane.at <= known.get(lane.lane, (lane.origin.before, 0)) for lane in progress)


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
