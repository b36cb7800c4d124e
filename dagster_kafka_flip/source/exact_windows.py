"""Exact windows: all records with a timestamp in the window, within the maximum lateness.

A window starts at the first entry at or after its start (KIP-79): no earlier record is in it. It stops at the first
*record* at or after its end plus `max_lateness`: a later record of the window exceeds the lateness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.source.window_checks import check_future, check_retention
from dagster_kafka_flip.source.window_plan import PlannedWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.source.window_logs import WindowLogs


def exact_windows(
    windows: Sequence[Window], logs: WindowLogs, tolerance: Tolerance
) -> tuple[list[PlannedWindow], Position]:
    """Plans windows that hold all records with a timestamp in them.

    Args:
        windows: Consecutive windows in time order.
        logs: The logs.
        tolerance: Collects tolerated errors.

    Returns:
        The planned windows; and the offsets from which on a record from before the first window is later than the
        maximum lateness.

    Raises (unless the error is tolerated):
        WindowBeyondRetentionError: A log may no longer have all records of a window.
        RecordsFromFutureError: A record has a timestamp in the future, so later records seem late.
    """
    is_by_value = logs.rules.event_time is not None
    lateness = {tp: logs.lateness(tp) for tp in logs.look.partitions}
    early = {tp: (late or 0) if is_by_value else 0 for tp, late in lateness.items()}
    bounds = [windows[0].start_ms, *(window.stop_ms for window in windows)]
    stop_times = [
        {tp: ms for tp in logs.look.partitions if (ms := logs.stop_time(tp, bound)) is not None} for bound in bounds
    ]
    # If the value has the timestamp and lateness is unlimited, a record of the window may be anywhere.
    limited_starts = [tp for tp, late in lateness.items() if late is not None or not is_by_value]
    logs.look.prefetch(
        [
            dict.fromkeys(limited_starts, 0),
            *({tp: w.start_ms - early[tp] for tp in limited_starts} for w in windows),
        ],
        [*stop_times, *(dict.fromkeys(logs.look.partitions, window.stop_ms) for window in windows)],
    )
    oldest = [{tp: window.start_ms - (lateness[tp] or 0) for tp in logs.look.partitions} for window in windows]
    check_retention(windows, oldest, logs, tolerance)
    check_future(stop_times, logs, tolerance)

    def start(tp: TopicPartition, bound: int) -> int:
        if is_by_value and lateness[tp] is None:
            return logs.beginning[tp]
        entry = logs.look.entry(tp, bound - early[tp])
        # Lookups by timestamp skip records without a timestamp. Those before the first record with one may be in
        # any window up to that record's, so they are read and counted.
        return logs.beginning[tp] if entry == logs.look.entry(tp, 0) else entry

    def stop(tp: TopicPartition, bound: int) -> int:
        return logs.bound(tp, logs.stop_time(tp, bound))

    planned = [
        PlannedWindow(
            window,
            starts={tp: start(tp, window.start_ms) for tp in logs.look.partitions},
            stops={tp: max(start(tp, window.start_ms), stop(tp, window.stop_ms)) for tp in logs.look.partitions},
            ends={tp: logs.bound(tp, window.stop_ms) for tp in logs.look.partitions},
        )
        for window in windows
    ]
    return planned, {tp: stop(tp, bounds[0]) for tp in logs.look.partitions}
