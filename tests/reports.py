"""What a run reports of its assets: a materialization, or an observation if it found nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster import AssetKey, ExecuteInProcessResult


def reports(result: ExecuteInProcessResult) -> dict[AssetKey, dict[str, Any]]:
    """The metadata of each asset's report."""
    found = {
        event.asset_key: event.asset_observation_data.asset_observation
        for event in result.get_asset_observation_events()
    }
    found |= {event.asset_key: event.materialization for event in result.get_asset_materialization_events()}
    return {
        key: {name: value.value for name, value in event.metadata.items()}
        for key, event in found.items()
        if key is not None
    }


def report(result: ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the only asset's report."""
    (only,) = reports(result).values()
    return only
