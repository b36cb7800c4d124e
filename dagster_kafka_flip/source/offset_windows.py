"""Offset windows: windows between fixed offsets, so each record is in exactly one as the log grows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.tiles import tile_bounds
from dagster_kafka_flip.source.window_checks import check_future, refuse_lost
from dagster_kafka_flip.source.window_plan import PlannedWindow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.tiles import Bounds
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.source.window_logs import WindowLogs


def offset_windows(
    windows: Sequence[Window],
    logs: WindowLogs,
    recorded: Bounds,
    unread: Collection[TopicPartition],
    tolerance: Tolerance,
) -> list[PlannedWindow]:
    """Plans windows between fixed offsets.

    Args:
        windows: Consecutive windows in time order.
        logs: The logs.
        recorded: The bounds of windows that were written before.
        unread: Topic partitions that did not exist when the previous window was written.
        tolerance: Collects tolerated errors.

    Raises (unless the error is tolerated):
        WindowBeyondRetentionError: A log may no longer have all records of a window.
        RecordsFromFutureError: A record has a timestamp in the future.
    """
    times = [windows[0].start_ms, *(window.stop_ms for window in windows)]
    wanted = [{tp: time for tp in logs.look.partitions if tp not in recorded.get(time, {})} for time in times]
    logs.look.prefetch([dict.fromkeys(logs.look.partitions, 0)], wanted)
    check_future([{tp: ms for tp, ms in wanted[0].items() if tp not in unread}, *wanted[1:]], logs, tolerance)

    def look_up(tp: TopicPartition, time: int) -> int:
        if tp in unread and time == times[0]:
            return logs.beginning[tp]
        bound = logs.bound(tp, time)
        if logs.look.entry(tp, 0) == logs.beginning[tp]:
            return bound
        # Records without a timestamp are in the window of the next record with one, or else in the run's first
        # window.
        first = logs.look.record(tp, 0)
        is_first = time == times[0] if first is None else bound == first.offset
        return logs.beginning[tp] if is_first else bound

    offsets = tile_bounds(times, logs.look.partitions, recorded, look_up)
    _check_tiles(windows, wanted, offsets, logs, tolerance)
    offsets = [{tp: max(offset, logs.beginning[tp]) for tp, offset in each.items()} for each in offsets]
    return [
        PlannedWindow(window, starts, stops, ends=stops)
        for window, (starts, stops) in zip(windows, itertools.pairwise(offsets), strict=True)
    ]


def _check_tiles(
    windows: Sequence[Window],
    looked_up: Sequence[Mapping[TopicPartition, int]],
    offsets: Sequence[Position],
    logs: WindowLogs,
    tolerance: Tolerance,
) -> None:
    beginning = logs.beginning
    affected: dict[TopicPartition, list[Window]] = {}
    for window, times, starts, stops in zip(windows, looked_up, offsets, offsets[1:], strict=False):
        for tp, start in starts.items():
            is_gone = start < beginning[tp] and start < stops[tp]
            if is_gone or (tp in times and beginning[tp] > 0 and logs.may_be_gone(tp, times[tp])):
                affected.setdefault(tp, []).append(window)
    if affected:
        refuse_lost(affected, logs, tolerance)
