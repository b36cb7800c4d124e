"""Checks of windows: their logs are those of the table, and no record is gone, from the future or still to come."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    EndBeforePositionError,
    RecordsFromFutureError,
    TopicRecreatedError,
    WindowBeyondRetentionError,
    WindowNotCompleteError,
)
from dagster_kafka_flip.source.broken_logs import others_affected
from dagster_kafka_flip.source.identity import check_cluster, is_same_log, recreated_topics
from dagster_kafka_flip.source.incident import found
from dagster_kafka_flip.source.instants import instant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.log import Log
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription, TopicMetadata
    from dagster_kafka_flip.source.window import Window, Windows
    from dagster_kafka_flip.source.window_logs import WindowLogs
    from dagster_kafka_flip.source.window_plan import PlannedWindow


def check_future(stop_times: Sequence[Mapping[TopicPartition, int]], logs: WindowLogs, tolerance: Tolerance) -> None:
    """Checks that no window ends at a record with a timestamp in the future."""
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
        f"is {instant(logs.now)}{others_affected(dated)}. All later records seem late, and the record "
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
        f"{logs.beginning[tp]}, and {left}{others_affected(affected)}. Nothing was written, and the "
        "table's rows of it are unchanged. Choose a later window; to replace these rows with the remaining "
        "records, tolerate WindowBeyondRetentionError"
    )
    tolerance.meet(WindowBeyondRetentionError(msg), "The run wrote the remaining records.")


def with_completeness(planned: Sequence[PlannedWindow], logs: WindowLogs, tolerance: Tolerance) -> list[PlannedWindow]:
    """Returns the windows, with those marked that may still get records."""
    longest = max((logs.lateness(tp) or 0 for tp in logs.look.partitions), default=0)
    complete = {window.window.key: logs.now >= window.window.stop_ms + longest for window in planned}
    open_windows = [window.window for window in planned if not complete[window.window.key]]
    if open_windows:
        slack = "" if not longest else (f", and late records may arrive for another {timedelta(milliseconds=longest)}")
        msg = (
            f"the window {open_windows[0]} is not over: the time is {instant(logs.now)}{slack}"
            f"{others_affected(open_windows, 'window')}. Nothing was written. Run it later; to write the records so "
            "far, tolerate WindowNotCompleteError"
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
            f"include records of the window {window.window}{others_affected(windows, 'window')}. "
            "Nothing was written. Run it again when the transaction has ended; to write the records so far, "
            "tolerate WindowNotCompleteError"
        )
        tolerance.meet(WindowNotCompleteError(msg), "The run wrote the records so far.", lost_offsets=0)
    return [replace(window, is_complete=complete[window.window.key]) for window in planned]


def _waiting(planned: Sequence[PlannedWindow], logs: WindowLogs) -> dict[tuple[TopicPartition, str], PlannedWindow]:
    """The windows of topic partitions whose range reaches into an open transaction: it has no end before that."""
    # A record of the transaction can't end a window: if that is aborted, later records may be in the window.
    held_back = [tp for tp, end in logs.end.items() if logs.high_watermarks[tp] > end]

    def is_held_back(tp: TopicPartition, window: PlannedWindow) -> bool:
        ms = logs.stop_time(tp, window.window.stop_ms)
        record = None if ms is None else logs.look.record(tp, ms)
        # A record from the future ends no window: the log is read to its end, and continues after it.
        return record is None or logs.is_from_future(record)

    return {(tp, window.window.key): window for tp in held_back for window in planned if is_held_back(tp, window)}


_WENT_ON = "The run wrote the log's current records."


def check_identity(
    known: EnumeratorState,
    cluster_id: str | None,
    topics: Mapping[str, TopicMetadata],
    subscription: Subscription,
    rules: Windows,
    tolerance: Tolerance,
) -> frozenset[str]:
    """Checks that the table's rows come from the current cluster and topics.

    Args:
        known: Cluster and topics of the rows.
        cluster_id: Id of the current cluster; None if unknown.
        topics: The current topics.
        subscription: The source's topics.
        rules: The rules of the windows.
        tolerance: Collects tolerated errors.

    Returns:
        The topics that were recreated since; this is tolerated.
    """
    continuation = "The run read the current log and replaced the rows of the windows with its records."
    stay = "Nothing was read, and the table's rows are unchanged."
    instead = "To replace the rows of these windows with its current records"
    try:
        check_cluster(known, cluster_id)
    except ClusterChangedError as error:
        if not rules.repair:
            ways_on = f"{stay} Correct bootstrap_servers, or use another table. {instead}, tolerate ClusterChangedError"
            error = ClusterChangedError(f"{found(error)} {ways_on}")
        tolerance.meet(error, continuation)
        return frozenset()
    made_again = recreated_topics(known, topics, subscription)
    for topic, error in made_again.items():
        if rules.repair:
            tolerance.meet(error, continuation)
            continue
        ways_on = f"{stay} Write the new topic to another table. {instead}, tolerate TopicRecreatedError"
        tolerance.meet(TopicRecreatedError(f"{found(error)} {ways_on}", (topic,)), continuation)
    return frozenset(made_again)


def check_ends(known: EnumeratorState, now: EnumeratorState, log: Log, rules: Windows, tolerance: Tolerance) -> None:
    """Checks that the logs still have the offsets that the table's rows were read up to.

    Without topic ids, a recreated topic only shows in its offsets.

    Args:
        known: Cluster, topics and offsets of the rows.
        now: The current cluster and topics.
        log: The current logs.
        rules: The rules of the windows.
        tolerance: Collects tolerated errors.
    """
    stay = "Nothing was written, and the table's rows are unchanged."
    way_out = (
        "Run the stream, do what its message says, and repair the range then"
        if rules.repair
        else "To replace them with the log's current records, tolerate EndBeforePositionError"
    )
    beyond = {
        tp: offset
        for tp, offset in sorted(known.position.items())
        if tp in log and offset > log.high_watermarks[tp] and is_same_log(tp, known, now)
    }
    if beyond:
        tp, offset = next(iter(beyond.items()))
        msg = (
            f"{tp}: the log ends at offset {log.high_watermarks[tp]}, but the table's windows were read up to "
            f"offset {offset}{others_affected(beyond)}: the log was truncated, or the topic is a "
            f"different one. {stay} Find out which. {way_out}"
        )
        tolerance.meet(EndBeforePositionError(msg), _WENT_ON)
    same = {
        tp: at for tp, at in known.position.items() if tp in log and tp not in beyond and is_same_log(tp, known, now)
    }
    cut = log.cut_offsets(same, known.leader_epochs)
    if cut:
        tp, offset = min(cut.items())
        where = "" if offset is None else f" at offset {offset}"
        msg = (
            f"{tp}: the log was truncated{where} and written again, as after an unclean leader election, but the "
            f"table's windows were read up to offset {known.position[tp]}{others_affected(cut)}. {stay} {way_out}"
        )
        tolerance.meet(EndBeforePositionError(msg), _WENT_ON)
