"""Offset windows: windows between fixed offsets, so each record is in exactly one as the log grows."""

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
    """A window that was written before.

    Attributes:
        window: The window.
        starts: Its start offsets.
        stops: Its stop offsets.
        is_complete: Whether the window was over; otherwise its end may move.
        logs: Cluster and topics of the offsets; the position is not used.
        topics: The topics that were written for it; None for all topics of the source.
    """

    window: Window
    starts: Position
    stops: Position
    is_complete: bool
    logs: EnumeratorState
    topics: Collection[str] | None = None


Bounds = dict[int, dict["TopicPartition", int]]
"""Offsets of topic partitions by the window end that they represent, in milliseconds since the epoch."""


def recorded_bounds(recorded: Iterable[RecordedWindow], logs: EnumeratorState) -> Bounds:
    """Returns the bounds of windows that were written before.

    The latest record counts; a start takes precedence over an end.

    Args:
        recorded: The windows, latest record first.
        logs: Current cluster and topics: offsets of others do not apply.
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
    """Finds topic partitions that did not exist when the previous window was written.

    Their records from before that window's end are in no window. So the next window begins with them: at their log
    start, or where an earlier window ended.

    Args:
        time: Start of the next window, in milliseconds since the epoch.
        partitions: The topic partitions.
        recorded: The windows that were written before.
        bounds: Their bounds in the current logs.
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
    """Returns the offsets of the windows' bounds.

    Recorded bounds stay. A lookup may contradict them, because the log has grown since: its result is moved between the
    recorded bounds for an earlier and a later time.

    Args:
        times: The windows' ends, in order, in milliseconds since the epoch.
        partitions: The topic partitions.
        recorded: The recorded bounds, for any time.
        look_up: Returns the offset of a topic partition at a timestamp.
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
