"""Dagster's record of an asset's position, and how moving the position invalidates it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster import AssetObservation, AssetRecordsFilter

from dagster_kafka_flip.assets.metadata import POSITION_SET, known_position, position_in, shown
from dagster_kafka_flip.ingestion.facts import CHECKPOINT, POSITION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import AssetKey, AssetMaterialization, DagsterInstance, EventLogRecord

    from dagster_kafka_flip.ingestion.result import IngestResult
    from dagster_kafka_flip.table.known_position import KnownPosition
    from dagster_kafka_flip.table.target import DeltaTarget

_PAGE = 100

# Maximum number of materializations to search for a position: those that only replaced a range have none.
MOST_MATERIALIZATIONS = 1000


@dataclass(frozen=True)
class Record:
    """Dagster's record of a stream's asset.

    Attributes:
        materialization: The newest materialization; None if there is none.
        storage_id: Dagster's storage id of the newest report; 0 if there is none.
        position: The newest recorded position, even if invalidated; None if there is none.
        run_id: The run that recorded the position; None if it was set manually.
        is_newest: Whether the newest report has the position.
        moved: The position that was set manually since; None if not moved or unknown.
        is_void: Whether the position was moved manually since.
    """

    materialization: AssetMaterialization | None = None
    storage_id: int = 0
    position: KnownPosition | None = None
    run_id: str | None = None
    is_newest: bool = True
    moved: KnownPosition | None = None
    is_void: bool = False

    @property
    def known(self) -> KnownPosition | None:
        """The position that a run can trust; None if there is none."""
        return self.position if self.is_newest and not self.is_void else None

    def reported(self, target: DeltaTarget) -> int:
        """The table's version up to which runs have reported their commits; -1 if none has."""
        position = self.position
        if position is None or not position.is_of(target):
            return -1
        return position.table_version

    def has_all_of(self, result: IngestResult) -> bool:
        """Whether a run found nothing that a materialization has not reported before."""
        known = self.position
        is_known = self.materialization is not None and known is not None and known.state == result.state
        return is_known and not self.is_void and result.is_idle and result.unreported is None

    def noted_in(self, result: IngestResult) -> IngestResult:
        """Adds the time of the lookup to a run's result."""
        if result.known.known_since is not None:
            return result
        return replace(result, known=replace(result.known, known_since=self.storage_id))


def void_record(
    instance: DagsterInstance, key: AssetKey, reason: str, version: int, moved: KnownPosition | None = None
) -> None:
    """Records that an asset's position was moved, which invalidates the previous record.

    Uses an observation, because nothing was materialized and downstream assets are not affected.
    """
    metadata: dict[str, Any] = {POSITION_SET: reason, "delta/version": version}
    if moved is not None:
        metadata |= shown({CHECKPOINT: moved.to_json()})
    instance.report_runless_asset_event(AssetObservation(key, description="The position was set.", metadata=metadata))


def read_record(instance: DagsterInstance, key: AssetKey) -> Record:
    """Reads Dagster's record of an asset: its newest materialization and its newest position."""
    newest = materialization = position = found = None
    for record in newest_reports(instance, key):
        newest = newest or record
        materialization = materialization or record.asset_materialization
        if position is None and (position := known_position(reported(record))) is not None:
            found = record
        if position is not None and materialization is not None:
            break
    if newest is None:
        return _with_move(instance, key, Record(), since=0)
    about = Record(materialization=materialization, storage_id=newest.storage_id, is_newest=found is newest)
    if position is None or found is None:
        return _with_move(instance, key, about, since=newest.storage_id)
    since = found.storage_id if position.known_since is None else min(position.known_since, found.storage_id)
    position = replace(position, known_since=since)
    return _with_move(instance, key, replace(about, position=position, run_id=found.run_id), since=since)


def last_known_position(instance: DagsterInstance, key: AssetKey) -> KnownPosition | None:
    """Reads the asset's last recorded position, even if its latest materializations only replaced windows.

    None if none is recorded, or if it was moved since.
    """
    record = read_record(instance, key)
    return None if record.is_void else record.position


def newest_reports(instance: DagsterInstance, key: AssetKey) -> Iterator[EventLogRecord]:
    """Yields what runs have reported, newest first: all materializations, and before them the newest idle run."""
    materializations = newest_materializations(instance, key)
    newest = next(materializations, None)
    since = 0 if newest is None else newest.storage_id
    idle = next((each for each, values in _observations(instance, key, since) if _is_idle_run(values)), None)
    yield from (each for each in (idle, newest) if each is not None)
    yield from materializations


def reported(record: EventLogRecord) -> AssetMaterialization | AssetObservation | None:
    """What a run has reported."""
    return record.asset_materialization or record.asset_observation


def newest_materializations(instance: DagsterInstance, key: AssetKey) -> Iterator[EventLogRecord]:
    """Yields the latest materializations of an asset, newest first: up to 1,000, fetched as needed."""
    cursor, limit, left = None, 1, MOST_MATERIALIZATIONS
    while left > 0:
        page = instance.fetch_materializations(key, limit=min(limit, left), cursor=cursor)
        yield from page.records
        if not page.has_more or not page.records:
            return
        cursor, left, limit = page.cursor, left - len(page.records), _PAGE


def _with_move(instance: DagsterInstance, key: AssetKey, record: Record, *, since: int) -> Record:
    """The record, invalidated if the position was moved and no run has read the table since."""
    position = record.position
    for observation, metadata in _observations(instance, key, since):
        if POSITION_SET not in metadata:
            continue
        version = metadata.get("delta/version")
        # A run that began before the move may have ended after it. The table's version that it saw decides.
        if (
            position is not None
            and observation.storage_id < record.storage_id
            and isinstance(version, int)
            and version <= position.table_version
        ):
            return record
        return replace(record, is_void=True, moved=position_in(metadata))
    return record


def _is_idle_run(metadata: Mapping[str, Any]) -> bool:
    return POSITION in metadata and POSITION_SET not in metadata


def _observations(
    instance: DagsterInstance, key: AssetKey, since: int
) -> Iterator[tuple[EventLogRecord, Mapping[str, Any]]]:
    """Observations, newest first; in storage order, because clocks differ between machines."""
    cursor = None
    while True:
        page = instance.fetch_observations(
            AssetRecordsFilter(asset_key=key, after_storage_id=since), limit=_PAGE, cursor=cursor
        )
        for record in page.records:
            if (observation := record.asset_observation) is not None:
                yield record, {name: value.value for name, value in observation.metadata.items()}
        if not page.has_more or not page.records:
            return
        cursor = page.cursor
