"""Completeness of windows: whether a window may still get records."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import WindowNotCompleteError
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.window_checks import also_affects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.window_logs import WindowLogs
    from dagster_kafka_flip.source.window_plan import PlannedWindow


def with_completeness(planned: Sequence[PlannedWindow], logs: WindowLogs, tolerance: Tolerance) -> list[PlannedWindow]:
    """Returns the windows, with those marked that may still get records.

    Args:
        planned: The windows.
        logs: The logs.
        tolerance: Collects tolerated errors.

    Raises (unless the error is tolerated):
        WindowNotCompleteError: A window is not over, or an open transaction may hold back its records.
    """
    longest = max((logs.lateness(tp) or 0 for tp in logs.look.partitions), default=0)
    complete = {window.window.key: logs.now >= window.window.stop_ms + longest for window in planned}
    open_windows = [window.window for window in planned if not complete[window.window.key]]
    if open_windows:
        slack = "" if not longest else (f", and late records may arrive for another {timedelta(milliseconds=longest)}")
        msg = (
            f"the window {open_windows[0]} is not over: the time is {instant(logs.now)}{slack}"
            f"{also_affects(open_windows, 'window')}. Nothing was written. Run it later; to write the records so far, "
            "tolerate WindowNotCompleteError"
        )
        tolerance.meet(WindowNotCompleteError(msg), "The run wrote the records so far.", lost_offsets=0)
    waiting = _waiting(planned, logs)
    for window in waiting.values():
        complete[window.window.key] = False
    if waiting:
        (tp, _), window = next(iter(waiting.items()))
        end = logs.end[tp]
        windows = {each.window.key for each in waiting.values()}
        msg = (
            f"{tp}: an open transaction holds back {logs.high_watermarks[tp] - end} offsets from {end}, which may "
            f"include records of the window {window.window}{also_affects(windows, 'window')}. "
            "Nothing was written. Run it again when the transaction has ended; to write the records so far, "
            "tolerate WindowNotCompleteError"
        )
        tolerance.meet(WindowNotCompleteError(msg), "The run wrote the records so far.", lost_offsets=0)
    return [replace(window, is_complete=complete[window.window.key]) for window in planned]


def _waiting(planned: Sequence[PlannedWindow], logs: WindowLogs) -> dict[tuple[TopicPartition, str], PlannedWindow]:
    """The windows of topic partitions whose range reaches into an open transaction.

    A window that ends at a record before the transaction does not. A record of the transaction can't end a window:
    if the transaction is aborted, the record disappears, and later records may be in the window.
    """
    held_back = [tp for tp, end in logs.end.items() if logs.high_watermarks[tp] > end]

    def is_held_back(tp: TopicPartition, window: PlannedWindow) -> bool:
        ms = logs.stop_time(tp, window.window.stop_ms)
        record = None if ms is None else logs.look.record(tp, ms)
        # A record from the future ends no window: the log is read to its end, and continues after it.
        return record is None or logs.is_from_future(record)

    return {(tp, window.window.key): window for tp in held_back for window in planned if is_held_back(tp, window)}
