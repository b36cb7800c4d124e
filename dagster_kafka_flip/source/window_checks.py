"""Checks on the records of windows: that none is from the future, and that none was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import RecordsFromFutureError, WindowBeyondRetentionError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.instants import instant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.source.window_logs import WindowLogs


def check_future(stop_times: Sequence[Mapping[TopicPartition, int]], logs: WindowLogs, tolerance: Tolerance) -> None:
    """Checks that no window ends at a record with a timestamp in the future.

    Args:
        stop_times: The timestamps that end windows.
        logs: The logs.
        tolerance: Collects tolerated errors.

    Raises (unless the error is tolerated):
        RecordsFromFutureError: A window ends at such a record.
    """
    # In a repair, the stream's position is the end, regardless of later records.
    if logs.rules.repair:
        return
    dated = {
        tp: record
        for times in stop_times
        for tp, ms in times.items()
        if (record := logs.look.record(tp, ms)) is not None and logs.is_from_future(record)
    }
    if not dated:
        return
    tp, found = min(dated.items())
    msg = (
        f"{tp}: the record at offset {found.offset} has the timestamp {instant(found.timestamp_ms)}, but the time "
        f"is {instant(logs.now)}{also_affects(dated, 'topic partition')}. All later records seem late, and the record "
        "is in no window that is over. Nothing was written. Correct the producer's clock. To read such logs to "
        "their end, tolerate RecordsFromFutureError"
    )
    tolerance.meet(RecordsFromFutureError(msg), "The run read the log to its end.", lost_offsets=0)


def check_retention(
    windows: Sequence[Window],
    starts: Sequence[Mapping[TopicPartition, int]],
    logs: WindowLogs,
    tolerance: Tolerance,
) -> None:
    """Checks that no record of a window was deleted.

    A deleted record was before the log's first record. Records are at most `max_lateness` late, so if the first
    record is older than the window by more than this, no deleted record was in the window.

    Args:
        windows: The windows, in time order.
        starts: For each window, the timestamp that the log's first record must be older than, by topic partition.
        logs: The logs.
        tolerance: Collects tolerated errors.

    Raises (unless the error is tolerated):
        WindowBeyondRetentionError: A record may be gone.
    """
    trimmed = [tp for tp in logs.look.partitions if logs.beginning[tp] > 0]
    logs.look.prefetch([], [dict.fromkeys(trimmed, 0)])
    affected: dict[TopicPartition, list[Window]] = {}
    for window, times in zip(windows, starts, strict=True):
        trimmed = [tp for tp in trimmed if logs.may_be_gone(tp, times[tp])]
        if not trimmed:
            break
        for tp in trimmed:
            affected.setdefault(tp, []).append(window)
    if not affected:
        return
    tp, lost = min(affected.items())
    first = logs.look.record(tp, 0)
    left = (
        "the log holds no records"
        if first is None
        else f"the earliest remaining record has the timestamp {instant(first.timestamp_ms)}"
    )
    later = f" and of {len(lost) - 1} later windows, up to {lost[-1]}," if len(lost) > 1 else ""
    msg = (
        f"{tp}: records of the window {lost[0]}{later} may be gone: the log begins at offset "
        f"{logs.beginning[tp]}, and {left}{also_affects(affected, 'topic partition')}. Nothing was written, and the "
        "table's rows of it are unchanged. Choose a later window; to replace these rows with the remaining "
        "records, tolerate WindowBeyondRetentionError"
    )
    tolerance.meet(WindowBeyondRetentionError(msg), "The run wrote the remaining records.")


def also_affects(met: Collection[object], what: str) -> str:
    """Returns how many others a message is about that names the first; nothing if there are none.

    Args:
        met: All of them.
        what: What one of them is.
    """
    return f" (also affects {counted(len(met) - 1, f'more {what}')})" if len(met) > 1 else ""
