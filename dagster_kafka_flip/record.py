"""Dagster's record of an asset's position, and how it becomes void when an operator moves the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import AssetObservation, AssetRecordsFilter

from dagster_kafka_flip.metadata import POSITION_SET, known_position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster import AssetKey, DagsterInstance, EventLogEntry, EventLogRecord

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


def last_known_position(instance: DagsterInstance, key: AssetKey) -> KnownPosition | None:
    """The position that Dagster knows of an asset, also where its last materializations only replaced windows.

    None if none is recorded, or if it was moved since.

    Args:
        instance: Where the record is.
        key: The asset.
    """
    for record in newest_materializations(instance, key):
        known = known_position(record.asset_materialization)
        if known is not None:
            return None if _was_moved_since(instance, key, record.event_log_entry) else known
    return None


def newest_materializations(instance: DagsterInstance, key: AssetKey) -> Iterator[EventLogRecord]:
    """The last materializations of an asset, newest first: a hundred, and no more are fetched than are needed.

    Args:
        instance: Where they are.
        key: The asset.
    """
    newest = instance.fetch_materializations(key, limit=1)
    yield from newest.records
    if newest.has_more:
        yield from instance.fetch_materializations(key, limit=_LOOK_BACK - 1, cursor=newest.cursor).records


def _was_moved_since(instance: DagsterInstance, key: AssetKey, event: EventLogEntry) -> bool:
    records = AssetRecordsFilter(asset_key=key, after_timestamp=event.timestamp)
    observed = instance.fetch_observations(records, limit=_LOOK_BACK).records
    return any(POSITION_SET in record.asset_observation.metadata for record in observed if record.asset_observation)
