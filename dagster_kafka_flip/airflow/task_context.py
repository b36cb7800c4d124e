"""Reads a task's context, and adds results to the events of its assets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Asset, Context

_BY_HAND = frozenset({"manual", "asset_materialization"})


def part(context: Context, name: Literal["dag_run", "outlet_events", "ti"]) -> Any:
    """Returns a part of the context that each task has; its type says that it may be missing."""
    return context.get(name)


def run_name(context: Context) -> str:
    """Returns a name of the task's run, for the commit's document."""
    task = part(context, "ti")
    return f"{task.dag_id}/{task.run_id}/{task.task_id}"


def is_by_hand(context: Context) -> bool:
    """Whether somebody started the run, also from an asset's page, or the task runs again: failed, or cleared."""
    return (part(context, "ti").try_number or 1) > 1 or part(context, "dag_run").run_type in _BY_HAND


def is_mapped(context: Context) -> bool:
    """Whether the task is one of several instances in its run, by `expand`."""
    return part(context, "ti").map_index not in (None, -1)


def add_to_events(context: Context, assets: Iterable[Asset], extra: Mapping[str, Any]) -> None:
    """Adds a run's results to the events of its assets."""
    for asset in assets:
        part(context, "outlet_events")[asset].extra.update(extra)
