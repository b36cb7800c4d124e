"""WindowEnumerator: finds the offsets of windows' records before anything is read.

The offsets depend only on the log and on the window, so a window has the same rows regardless of the other windows in
the run. See "Windows of time" in docs/architecture.md. It checks that the logs are those of the table, and that no
record is gone, from the future or still to come.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    RecordsFromFutureError,
    WindowBeyondRetentionError,
    WindowNotCompleteError,
)
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.enumerator import Enumerator
from dagster_kafka_flip.source.identity import (
    broken_logs,
    check_cluster,
    check_topics,
    found_topics,
    is_same_log,
    others_affected,
    recreated_topics,
    topic_ids_of,
)
from dagster_kafka_flip.source.incident import Tolerance
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.split import LOOKED_THROUGH, RecordSearch, TimestampedOffset
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import PlannedWindow, WindowPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.enumerator import ReadSettings
    from dagster_kafka_flip.source.split import Position, TopicMetadata, TopicPartition, TopicSettings
    from dagster_kafka_flip.source.subscription import Subscription
    from dagster_kafka_flip.source.window import Window, Windows


def _time(ms: int) -> int:
    return max(0, ms)


# Tolerated clock difference before a record counts as being in the future.
_CLOCK_SKEW = timedelta(minutes=5) // timedelta(milliseconds=1)


class WindowLogs:
    """The logs of one plan as they are now, with lookups by timestamp.

    Kafka returns the first *entry* at or after a timestamp: a record, a transaction marker or an aborted record. All
    records before it are older, so an entry is a valid start. It is not a valid stop: older records may follow a
    marker. Only reading shows whether an entry is a record.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        log: Log,
        partitions: Sequence[TopicPartition],
        rules: Windows,
        now: int,
        settings: Mapping[str, TopicSettings],
    ) -> None:
        self.partitions, self.rules, self.now = tuple(partitions), rules, now
        self.beginning, self.end = log.beginning_offsets(partitions), log.end_offsets(partitions)
        self.high_watermarks = log.high_watermarks
        # Of the topics whose settings this client may see.
        self._settings = settings
        self._cluster, self._isolation_level = cluster, log.isolation_level
        self._entries: dict[tuple[TopicPartition, int], int | None] = {}
        self._records: dict[tuple[TopicPartition, int], TimestampedOffset | None] = {}

    def prefetch(self, entries: Iterable[int], records: Iterable[int]) -> None:
        records = tuple(records)
        self._ask_for_entries([dict.fromkeys(self.partitions, ms) for ms in (*entries, *records)])
        self._search((tp, ms) for ms in records for tp in self.partitions)

    def find_first(self, partitions: Sequence[TopicPartition]) -> None:
        self._ask_for_entries([dict.fromkeys(partitions, 0)])
        self._search((tp, 0) for tp in partitions)

    def entry(self, tp: TopicPartition, ms: int) -> int:
        """The first entry at or after a timestamp: all earlier records are older. The end offset if there is none."""
        key = (tp, _time(ms))
        if key not in self._entries:
            self._ask_for_entries([{tp: ms}])
        found = self._entries[key]
        return self.end[tp] if found is None else min(found, self.end[tp])

    def record(self, tp: TopicPartition, ms: int) -> TimestampedOffset | None:
        """The first visible record at or after a timestamp; None if none is before the end or the search limit."""
        key = (tp, _time(ms))
        if key not in self._records:
            self._ask_for_entries([{tp: ms}])
            self._search([(tp, ms)])
        return self._records[key]

    def _ask_for_entries(self, wanted: Iterable[Position]) -> None:
        asked: list[Position] = []
        known = set(self._entries)
        for times in wanted:
            new = {tp: _time(ms) for tp, ms in times.items() if (tp, _time(ms)) not in known}
            if new:
                asked.append(new)
                known.update(new.items())
        missed: list[tuple[TopicPartition, int]] = []
        for times, first in zip(asked, self._cluster.records_at(asked, self._isolation_level), strict=True):
            self._entries.update({(tp, ms): first[tp].offset if tp in first else None for tp, ms in times.items()})
            missed += [
                (tp, ms) for tp, ms in times.items() if tp not in first and 0 < self.beginning[tp] < self.end[tp]
            ]
        if missed:
            # If the head of a segment was deleted and timestamps are out of order, a broker may return no result for a
            # timestamp although later segments have one.
            highest = self._cluster.max_timestamps({tp for tp, _ in missed})
            self._entries.update(
                {(tp, ms): self.beginning[tp] for tp, ms in missed if tp in highest and highest[tp].timestamp_ms >= ms}
            )

    def _search(self, wanted: Iterable[tuple[TopicPartition, int]]) -> None:
        # A number of offsets, not seconds, so that the result depends only on the log.
        new = {(tp, _time(ms)) for tp, ms in wanted} - self._records.keys()
        starts = {(tp, ms): self.entry(tp, ms) for tp, ms in new}
        searches = {
            (tp, ms): RecordSearch(tp, start, stop, ms)
            for (tp, ms), start in starts.items()
            if start < (stop := min(self.end[tp], start + LOOKED_THROUGH))
        }
        self._records |= dict.fromkeys(starts)
        if searches:
            found = self._cluster.search_records(set(searches.values()), self._isolation_level)
            self._records |= {key: found[search] for key, search in searches.items()}

    def stop_time(self, bound: int) -> int | None:
        """The timestamp whose first record is the stop of a window with the given end; None for the end of the log."""
        lateness = self.rules.lateness_ms
        return None if lateness is None else bound + lateness

    def is_from_future(self, record: TimestampedOffset) -> bool:
        return record.timestamp_ms > self.now + _CLOCK_SKEW

    def bound(self, tp: TopicPartition, ms: int | None) -> int:
        """The first record at or after a timestamp; the end offset if there is none, or if it is unreliable."""
        record = None if ms is None else self.record(tp, ms)
        return self.end[tp] if record is None or self.is_from_future(record) else record.offset

    def may_be_gone(self, partitions: Sequence[TopicPartition], ms: int) -> list[TopicPartition]:
        """The logs that may have had records at or after a timestamp that were deleted."""
        expired = {
            tp: ms
            for tp in partitions
            if (settings := self._settings.get(tp.topic)) is None or not settings.keeps(ms, self.now)
        }
        if expired:
            self._ask_for_entries([expired])
        return [tp for tp in partitions if self._is_doubtful(tp, ms, is_expired=tp in expired)]

    def _is_doubtful(self, tp: TopicPartition, ms: int, *, is_expired: bool) -> bool:
        first = self.record(tp, 0)
        if first is None:
            # The log has no records to compare with; only the topic's retention shows whether it may have had one.
            # Where nothing limits it, somebody deleted them by hand, or changed it meanwhile.
            settings = self._settings.get(tp.topic)
            return is_expired or settings is None or settings.is_unlimited
        if first.timestamp_ms >= ms:
            return True
        # A few older ones may be stragglers, which came after deleted records.
        few = max(1, (self.end[tp] - self.beginning[tp]) // 100)
        return is_expired and self.entry(tp, ms) - self.beginning[tp] <= few


def check_future(stop_times: Sequence[int], logs: WindowLogs, tolerance: Tolerance) -> None:
    """Checks that no window ends at a record with a timestamp in the future."""
    # In a repair, the stream's position is the end, regardless of later records.
    if logs.rules.repair:
        return
    dated = {
        tp: record
        for ms in stop_times
        for tp in logs.partitions
        if (record := logs.record(tp, ms)) is not None and logs.is_from_future(record)
    }
    if not dated:
        return
    tp, found = min(dated.items())
    error = RecordsFromFutureError(
        f"{tp}: the record at offset {found.offset} has the timestamp {instant(found.timestamp_ms)}, but the time "
        f"is {instant(logs.now)}{others_affected(dated)}. All later records seem late, and the record is in no window "
        "that is over",
        "Correct the producer's clock. To read such logs to their end, tolerate RecordsFromFutureError",
    )
    tolerance.meet(error, "The run read the log to its end.", lost_offsets=0)


def check_retention(windows: Sequence[Window], logs: WindowLogs, tolerance: Tolerance) -> None:
    """Checks that no record of a window was deleted: that each log's first record is older than the window's time.

    A deleted record was before the log's first record. Records are at most `max_lateness` late, so if the first
    record is older than the window by more than this, no deleted record was in the window. If retention may have
    reached the window, one such record is not enough, nor the first hundredth of the log.
    """
    trimmed = [tp for tp in logs.partitions if logs.beginning[tp] > 0]
    logs.find_first(trimmed)
    affected: dict[TopicPartition, list[Window]] = {}
    for window in windows:
        oldest = window.start_ms - (logs.rules.lateness_ms or 0)
        trimmed = logs.may_be_gone(trimmed, oldest)
        if not trimmed:
            break
        for tp in trimmed:
            affected.setdefault(tp, []).append(window)
    if not affected:
        return
    tp, lost = min(affected.items())
    first = logs.record(tp, 0)
    left = (
        "the log holds no records"
        if first is None
        else f"the earliest remaining record has the timestamp {instant(first.timestamp_ms)}"
    )
    if first is not None and first.timestamp_ms < lost[0].start_ms - (logs.rules.lateness_ms or 0):
        left += ", but it may have come late, and retention may have deleted records as young as the window's"
    later = f" and of {counted(len(lost) - 1, 'later window')}, up to {lost[-1]}," if len(lost) > 1 else ""
    error = WindowBeyondRetentionError(
        f"{tp}: records of the window {lost[0]}{later} may be gone: the log begins at offset "
        f"{logs.beginning[tp]}, and {left}{others_affected(affected)}",
        "Choose a later window; to replace the table's rows of it with the remaining records, tolerate "
        "WindowBeyondRetentionError",
    )
    tolerance.meet(error, "The run wrote the remaining records.")


def with_completeness(planned: Sequence[PlannedWindow], logs: WindowLogs, tolerance: Tolerance) -> list[PlannedWindow]:
    """Returns the windows, with those marked that may still get records."""
    longest = logs.rules.lateness_ms or 0
    complete = {window.window.key: logs.now >= window.window.stop_ms + longest for window in planned}
    open_windows = [window.window for window in planned if not complete[window.window.key]]
    if open_windows:
        slack = "" if not longest else (f", and late records may arrive for another {timedelta(milliseconds=longest)}")
        error = WindowNotCompleteError(
            f"the window {open_windows[0]} is not over: the time is {instant(logs.now)}{slack}"
            f"{others_affected(open_windows, 'window')}",
            "Run it later; to write the records so far, tolerate WindowNotCompleteError",
        )
        tolerance.meet(error, "The run wrote the records so far.", lost_offsets=0)
    if waiting := _waiting(planned, logs):
        complete |= dict.fromkeys((key for _, key in waiting), False)
        (tp, _), window = next(iter(waiting.items()))
        end = logs.end[tp]
        error = WindowNotCompleteError(
            f"{tp}: an open transaction holds back {logs.high_watermarks[tp] - end} offsets from {end}, which may "
            f"include records of the window {window.window}{others_affected({key for _, key in waiting}, 'window')}",
            "Run it again when the transaction has ended; to write the records so far, tolerate WindowNotCompleteError",
        )
        tolerance.meet(error, "The run wrote the records so far.", lost_offsets=0)
    return [replace(window, is_complete=complete[window.window.key]) for window in planned]


def _waiting(planned: Sequence[PlannedWindow], logs: WindowLogs) -> dict[tuple[TopicPartition, str], PlannedWindow]:
    """The windows of topic partitions whose range reaches into an open transaction: it has no end before that."""
    # A record of the transaction can't end a window: if that is aborted, later records may be in the window.
    held_back = [tp for tp, end in logs.end.items() if logs.high_watermarks[tp] > end]

    def is_held_back(tp: TopicPartition, window: PlannedWindow) -> bool:
        ms = logs.stop_time(window.window.stop_ms)
        record = None if ms is None else logs.record(tp, ms)
        # A record from the future ends no window: the log is read to its end, and continues after it.
        return record is None or logs.is_from_future(record)

    return {(tp, window.window.key): window for tp in held_back for window in planned if is_held_back(tp, window)}


_WENT_ON = "The run wrote the log's current records."
_RUN_THE_STREAM = "Run the stream, do what its message says, and repair the range then"


def check_identity(
    known: EnumeratorState,
    cluster_id: str | None,
    topics: Mapping[str, TopicMetadata],
    subscription: Subscription,
    rules: Windows,
    tolerance: Tolerance,
) -> frozenset[str]:
    """Checks that the table's rows come from the current logs; returns the topics whose recreation is tolerated."""
    continuation = "The run read the current log and replaced the rows of the windows with its records."
    instead = "To replace the rows of these windows with its current records"
    try:
        check_cluster(known, cluster_id)
    except ClusterChangedError as error:
        if not rules.repair:
            error.advice = f"Correct bootstrap_servers, or use another table. {instead}, tolerate ClusterChangedError"
        tolerance.meet(error, continuation)
        return frozenset()
    made_again = recreated_topics(known, topics, subscription)
    for error in made_again.values():
        error.advice = (
            _RUN_THE_STREAM
            if rules.repair
            else f"Write the new topic to another table. {instead}, tolerate TopicRecreatedError. If the last run was "
            "killed or could not check the topics, its last commit may hold rows of the new topic: RESTORE the table "
            "to the version before it first"
        )
        tolerance.meet(error, continuation)
    return frozenset(made_again)


def check_ends(known: EnumeratorState, now: EnumeratorState, log: Log, rules: Windows, tolerance: Tolerance) -> None:
    """Checks that the logs still have what was read for the rows: without topic ids, a new topic only shows in that."""
    way_out = (
        _RUN_THE_STREAM
        if rules.repair
        else "To replace them with the log's current records, tolerate EndBeforePositionError"
    )
    at = {tp: offset for tp, offset in known.position.items() if tp in log and is_same_log(tp, known, now)}
    same_topics = {topic for topic, topic_id in now.topic_ids.items() if known.topic_ids.get(topic) == topic_id}
    for each in broken_logs(at, log.cut_offsets(at, known.leader_epochs), same_topics, log):
        if each.error is EndBeforePositionError:
            finding = f"{each.finding}. The table's windows were read up to that position"
            tolerance.meet(EndBeforePositionError(finding, way_out), _WENT_ON)


def exact_windows(
    windows: Sequence[Window], logs: WindowLogs, tolerance: Tolerance
) -> tuple[list[PlannedWindow], Position, Position]:
    """Plans windows that hold all records with a timestamp in them, within the maximum lateness.

    A window starts at the first entry at or after its start (KIP-79): no earlier record is in it. It stops at the first
    *record* at or after its end plus `max_lateness`: a later record of the window exceeds the lateness. With them come
    `stragglers_from` and `stragglers_before` of the WindowPlan.
    """
    is_by_value, late = logs.rules.event_time is not None, logs.rules.lateness_ms
    early = (late or 0) if is_by_value else 0
    # If the value has the timestamp and lateness is unlimited, a record of the window may be anywhere.
    is_anywhere = is_by_value and late is None
    bounds = [windows[0].start_ms, *(window.stop_ms for window in windows)]
    stop_times = [ms for bound in bounds if (ms := logs.stop_time(bound)) is not None]
    # Where the next window would begin matters only where a record may be before it.
    starts = [0, *(bound - early for bound in (bounds if is_by_value else bounds[:-1]))]
    logs.prefetch(() if is_anywhere else starts, [*stop_times, *(window.stop_ms for window in windows)])
    check_retention(windows, logs, tolerance)
    check_future(stop_times, logs, tolerance)

    def start(tp: TopicPartition, bound: int) -> int:
        if is_anywhere:
            return logs.beginning[tp]
        entry = logs.entry(tp, bound - early)
        # Lookups by timestamp skip records without a timestamp. Those before the first record with one may be in
        # any window up to that record's, so they are read and counted.
        return logs.beginning[tp] if entry == logs.entry(tp, 0) else entry

    def stop(tp: TopicPartition, bound: int) -> int:
        return logs.bound(tp, logs.stop_time(bound))

    planned = [
        PlannedWindow(
            window,
            starts={tp: start(tp, window.start_ms) for tp in logs.partitions},
            stops={tp: max(start(tp, window.start_ms), stop(tp, window.stop_ms)) for tp in logs.partitions},
            ends={tp: logs.bound(tp, window.stop_ms) for tp in logs.partitions},
        )
        for window in windows
    ]
    return (
        planned,
        {tp: stop(tp, bounds[0]) for tp in logs.partitions},
        {tp: start(tp, bounds[-1]) if is_by_value else logs.beginning[tp] for tp in logs.partitions},
    )


class WindowEnumerator(Enumerator):
    """Turns windows into offsets."""

    def __init__(
        self,
        source: ReadSettings,
        cluster: KafkaCluster,
        windows: Windows,
        context: SplitEnumeratorContext,
        now: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(source, cluster, context)
        self._windows = windows
        self._now = now or instants.now_ms

    def plan(
        self, windows: Sequence[Window], *, known: EnumeratorState | None = None, cut_at: Position | None = None
    ) -> WindowPlan:
        """Plans consecutive windows. `cut_at` is where the table's stream is, which will read all behind it itself."""
        # Before any offset is asked for: a window that is over by then has all of its records in the logs.
        now = self._now()
        tolerance = Tolerance(self._context.tolerated)
        # What a repair read of other logs, the stream would read again from its beginning there.
        of_logs = Tolerance(()) if self._windows.repair else tolerance
        cluster_id = self._cluster.cluster_id()
        topics = found_topics(self._source.subscription, self._cluster, tolerance)
        logs_now = EnumeratorState({}, cluster_id, topic_ids_of(topics))
        made_again: frozenset[str] = frozenset()
        if known is not None:
            made_again = check_identity(known, cluster_id, topics, self._source.subscription, self._windows, of_logs)
        partitions = [tp for topic in topics.values() for tp in topic.partitions]
        if cut_at is not None:
            partitions = _fed(partitions, cut_at)
        log = Log(self._cluster, partitions, self._source.isolation_level)
        if known is not None:
            check_ends(known, logs_now, log, self._windows, of_logs)
        settings = self._cluster.topic_settings(topics)
        logs = WindowLogs(self._cluster, log, partitions, self._windows, now, settings)
        planned, stragglers_from, stragglers_before = exact_windows(windows, logs, tolerance)
        self._check_still_same(logs_now)
        # In a repair, the stream itself will write records that are still to come or held back.
        if not self._windows.repair:
            planned = with_completeness(planned, logs, tolerance)
        if cut_at is not None:
            planned = [window.before(cut_at) for window in planned]
        return WindowPlan(
            windows=tuple(planned),
            state=replace(logs_now, position=planned[-1].stops, leader_epochs=log.leader_epochs),
            end_offsets=logs.end,
            high_watermarks=log.high_watermarks,
            starting_position=planned[0].starts,
            stragglers_from=stragglers_from,
            stragglers_before=stragglers_before,
            incidents=tuple(tolerance.incidents),
            compacted=frozenset(topic for topic, each in settings.items() if each.is_compacted),
            maybe_compacted=frozenset(topics) - settings.keys(),
            made_again=made_again,
        )

    def _check_still_same(self, planned: EnumeratorState) -> None:
        """Rejects offsets that may be those of a topic that was recreated meanwhile: its rows would replace others."""
        there = self._cluster.describe_topics(sorted(planned.topic_ids), skip_missing=True)
        check_topics(planned, there, "This happened while the run planned. Run again: the next run says how to go on")


def _fed(partitions: Sequence[TopicPartition], cut_at: Position) -> list[TopicPartition]:
    """The topic partitions that the table's stream has read; it will read the others from the beginning."""
    topics = {tp.topic for tp in cut_at}
    foreign = sorted({tp.topic for tp in partitions if tp.topic not in topics})
    if foreign:
        raise ConfigurationError(
            f"the table's stream has not read the topic {foreign[0]} (it reads {', '.join(sorted(topics))}), so it is "
            "unknown which of its records the stream will write itself; remove the topic from the source"
        )
    return [tp for tp in partitions if tp in cut_at]
