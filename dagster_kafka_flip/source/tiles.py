"""Tiles: windows that lie between offsets, so that each record is in exactly one, however the log grows meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.identity import is_same_log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window


@dataclass(frozen=True)
class RecordedWindow:
    """A window that was landed before.

    Attributes:
        window: The window.
        starts: Where it began.
        stops: Where it ended.
        is_complete: Whether it was over; else its end may be moved.
        logs: Cluster and topics that the offsets are of; the position counts for nothing.
        topics: The topics that were landed for it; None for all that the source reads.
    """

    window: Window
    starts: Position
    stops: Position
    is_complete: bool
    logs: EnumeratorState
    topics: Collection[str] | None = None


Bounds = dict[int, dict["TopicPartition", int]]
"""Offsets of topic partitions by the time of the window's end that they stand for."""


def recorded_bounds(recorded: Iterable[RecordedWindow], logs: EnumeratorState) -> Bounds:
    """Where windows that were landed before begin and end. What was recorded last counts; a beginning before an end.

    Args:
        recorded: The windows, what was recorded last first.
        logs: Cluster and topics as they are now: offsets of others mean nothing in them.
    """
    bounds: Bounds = {}
    recorded = tuple(recorded)
    ends = ((window.window.stop_ms, window.stops, window) for window in recorded if window.is_complete)
    for time, position, window in (*((one.window.start_ms, one.starts, one) for one in recorded), *ends):
        known = bounds.setdefault(time, {})
        known.update({tp: at for tp, at in position.items() if tp not in known and is_same_log(tp, window.logs, logs)})
    return bounds


def unread_before(
    time: int,
    partitions: Iterable[TopicPartition],
    recorded: Iterable[RecordedWindow],
    bounds: Bounds,
) -> set[TopicPartition]:
    """Topic partitions that were not there when the window before was landed.

    Their records from before that window's end were landed with no window, and would be in none. So the next window
    begins with them: where they begin themselves, or where an earlier window left off.

    Args:
        time: When the next window begins.
        partitions: The topic partitions.
        recorded: What was landed before.
        bounds: Its bounds in the logs as they are now.
    """
    landed = [window for window in recorded if window.is_complete and window.window.stop_ms == time]
    known = bounds.get(time, {})
    return {
        tp
        for tp in partitions
        if tp not in known and any(window.topics is None or tp.topic in window.topics for window in landed)
    }


def tile_bounds(
    times: Sequence[int],
    partitions: Sequence[TopicPartition],
    recorded: Bounds,
    look_up: Callable[[TopicPartition, int], int],
) -> list[dict[TopicPartition, int]]:
    """The offsets between which windows lie.

    What is recorded stays. What is looked up may contradict it, because the log has grown since: it is moved to lie
    between what was recorded for an earlier and for a later time.

    Args:
        times: The windows' ends, in order.
        partitions: The topic partitions.
        recorded: What is recorded, for any time.
        look_up: Tells the offset of a topic partition at a time.
    """
    floor: dict[TopicPartition, int] = {}
    found: Bounds = {}
    every = sorted({*times, *recorded})
    wanted = frozenset(times)
    for time in every:
        known = recorded.get(time, {})
        if time in wanted:
            found[time] = {
                tp: known[tp] if tp in known else max(look_up(tp, time), floor.get(tp, 0)) for tp in partitions
            }
        floor |= _each(max, known, floor)
    ceiling: dict[TopicPartition, int] = {}
    for time in reversed(every):
        if time in wanted:
            found[time] = {tp: min(offset, ceiling.get(tp, offset)) for tp, offset in found[time].items()}
        ceiling |= _each(min, {**recorded.get(time, {}), **found.get(time, {})}, ceiling)
    return [found[time] for time in times]


def _each(
    choose: Callable[[int, int], int], position: Mapping[TopicPartition, int], known: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {tp: choose(offset, known.get(tp, offset)) for tp, offset in position.items()}
