"""Dagster's record of an asset's position, and how it becomes void when an operator moves the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import AssetObservation, AssetRecordsFilter

from dagster_kafka_flip.metadata import POSITION_SET, known_position

if TYPE_CHECKING:
    from dagster import AssetKey, DagsterInstance, EventLogEntry

    from dagster_kafka_flip.result import KnownPosition

# Other observations of the asset may be among those since its last materialization.
_LOOK_BACK = 100


def void_record(instance: DagsterInstance, key: AssetKey, reason: str, version: int) -> None:
    """Notes that the position of an asset was moved, so that no run believes the record from before.

    An observation, because nothing was materialized: nobody downstream has to do anything.

    Args:
        instance: Where the record is.
        key: The asset.
        reason: Why it was moved.
        version: The table's version that moved it.
    """
    metadata = {POSITION_SET: reason, "delta/version": version}
    instance.report_runless_asset_event(AssetObservation(key, description="The position was set.", metadata=metadata))


def last_record(instance: DagsterInstance, key: AssetKey) -> tuple[EventLogEntry | None, KnownPosition | None]:
    """The last materialization event of an asset, and the position that it records.

    None for what is not there, or is void.

    Args:
        instance: Where the record is.
        key: The asset.
    """
    event = instance.get_latest_materialization_event(key)
    if event is None or _was_moved_since(instance, key, event):
        return event, None
    return event, known_position(event.asset_materialization)


def _was_moved_since(instance: DagsterInstance, key: AssetKey, event: EventLogEntry) -> bool:
    records = AssetRecordsFilter(asset_key=key, after_timestamp=event.timestamp)
    observed = instance.fetch_observations(records, limit=_LOOK_BACK).records
    return any(POSITION_SET in record.asset_observation.metadata for record in observed if record.asset_observation)
