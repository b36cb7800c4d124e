"""WindowEnumerator: finds the offsets of windows' records before anything is read.

Kafka returns the first entry at or after a timestamp (KIP-79), not the last one before it. A window starts there: none
of its records is before that offset. It stops at the first *record* at or after its end plus `max_lateness`: a later
record of the window exceeds the lateness. Both offsets depend only on the log and on this window, so a window has the
same rows regardless of the other windows in the run. See section 8 of docs/architecture.md.
"""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    RecordsFromFutureError,
    TimestampTypeChangedError,
    TopicRecreatedError,
    WindowBeyondRetentionError,
    WindowNotCompleteError,
)
from dagster_kafka_flip.source.identity import (
    check_cluster,
    check_same_logs,
    found_topics,
    is_same_log,
    recreated_topics,
    topic_ids_of,
)
from dagster_kafka_flip.source.incident import found, incident_of
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.look_ups import LookUps
from dagster_kafka_flip.source.sample import LOOKED_THROUGH
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.tiles import recorded_bounds, tile_bounds, unread_before
from dagster_kafka_flip.source.window_plan import PlannedWindow, WindowPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.log import Cluster, TopicSettings
    from dagster_kafka_flip.source.read_settings import ReadSettings
    from dagster_kafka_flip.source.sample import TimestampedOffset
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.subscription import TopicMetadata
    from dagster_kafka_flip.source.tiles import Bounds, RecordedWindow
    from dagster_kafka_flip.source.window import Window, Windows

_logger = logging.getLogger(__name__)

# The clock of a new leader, and so its timestamps, may be behind the previous leader's.
_BROKER_CLOCKS = timedelta(seconds=10) // timedelta(milliseconds=1)
# Tolerated clock difference before a record counts as being in the future.
_CLOCK_SKEW = timedelta(minutes=5) // timedelta(milliseconds=1)


def now_milliseconds() -> int:
    """The current time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class WindowEnumerator:
    """Turns windows into offsets.

    Args:
        source: The source; its starting and stopping offsets are not used.
        cluster: The Kafka cluster.
        windows: The rules that assign records to windows.
        context: Context of the run.
        now: Returns the current time in milliseconds since the epoch. Default: this machine's clock.
    """

    def __init__(
        self,
        source: ReadSettings,
        cluster: Cluster,
        windows: Windows,
        context: SplitEnumeratorContext,
        now: Callable[[], int] | None = None,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._windows = windows
        self._context = context
        self._now = now or now_milliseconds

    def discover(self) -> None:
        """Checks that the topics exist.

        Raises:
            TopicNotFoundError: A topic is missing.
            ClusterUnreachableError: No broker answered.
        """
        found_topics(self._source.subscription, self._cluster, self._context.tolerated)

    def plan(
        self,
        windows: Sequence[Window],
        *,
        known: EnumeratorState | None = None,
        cut_at: Position | None = None,
        recorded: Iterable[RecordedWindow] = (),
    ) -> WindowPlan:
        """Plans the ranges of each window.

        Args:
            windows: Consecutive windows in time order.
            known: Cluster, topics and read offsets of the table's rows; None if there are none yet.
            cut_at: Position of a stream that writes to the same table: nothing is read from there on, nor from topic
                partitions that it does not have, because the stream will read them itself.
            recorded: In offset mode, windows that were written before.

        Raises (unless the context tolerates the error):
            TopicNotFoundError: A topic is missing.
            ClusterChangedError: The table's rows belong to another cluster.
            TopicRecreatedError: The table's rows belong to an earlier topic with the same name.
            EndBeforePositionError: The log ends before the offsets that were read for the table.
            WindowNotCompleteError: A window is not over, or an open transaction may hold back its records.
            WindowBeyondRetentionError: The log may no longer have all records of a window.
            RecordsFromFutureError: A record has a timestamp in the future, so later records seem late.
            ClusterUnreachableError: No broker answered.
        """
        planning = _Planning(self._source, self._cluster, self._windows, self._context, self._now())
        return planning.plan(windows, known, cut_at, tuple(recorded))

    def close(self) -> None:
        """Closes the client's threads and connections."""
        self._cluster.close()

    def check_same_logs(self, plan: WindowPlan) -> None:
        """See `identity.check_same_logs`. Also checks topic partitions without any range to read.

        An empty range also removes rows.
        """
        check_same_logs(self._cluster, plan.state, plan.stops)

    def assign(self, plan: WindowPlan) -> SplitAssignment:
        """Assigns a plan to tasks."""
        return self._context.assignment(plan.read_plan())


class _Planning:
    """State of one plan.

    Args:
        source: The source.
        cluster: The Kafka cluster.
        windows: The rules that assign records to windows.
        context: Context of the run.
        now: The current time, in milliseconds since the epoch.
    """

    def __init__(
        self, source: ReadSettings, cluster: Cluster, windows: Windows, context: SplitEnumeratorContext, now: int
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._windows = windows
        self._context = context
        self._now = now
        self._incidents: list[Incident] = []
        self._settings: Mapping[str, TopicSettings] = {}
        self._set_by_broker: frozenset[str] = frozenset()
        self._made_again: frozenset[str] = frozenset()
        self._end: Position = {}
        self._beginning: Position = {}

    def plan(
        self,
        windows: Sequence[Window],
        known: EnumeratorState | None,
        cut_at: Position | None,
        recorded: Sequence[RecordedWindow],
    ) -> WindowPlan:
        """Plans the ranges of each window."""
        cluster_id = self._cluster.cluster_id()
        topics, missing = found_topics(self._source.subscription, self._cluster, self._context.tolerated)
        self._incidents += missing
        topic_ids = topic_ids_of(topics)
        if known is not None:
            self._check_identity(known, cluster_id, topics)
        partitions = [tp for topic in topics.values() for tp in topic.partitions]
        if cut_at is not None:
            partitions = _fed(partitions, cut_at)
        log = Log(self._source, self._cluster, partitions)
        logs = EnumeratorState({}, cluster_id, topic_ids)
        if known is not None:
            self._check_end(known, logs, log)
        self._settings = self._cluster.topic_settings(topics)
        self._set_by_broker = self._topics_set_by_broker(topics)
        self._end, self._beginning = log.end_offsets(partitions), log.beginning_offsets(partitions)
        is_tiled = self._windows.mode == "offset"
        look = LookUps(
            self._cluster,
            self._source.isolation_level,
            self._beginning,
            self._end,
            # The next window depends on where an offset window ends, so the search for the end is unlimited.
            looked_through=None if is_tiled else LOOKED_THROUGH,
        )
        bounds = recorded_bounds(recorded, logs) if is_tiled else {}
        if is_tiled:
            unread = unread_before(windows[0].start_ms, partitions, recorded, bounds)
            planned, stragglers_from = self._tiles(windows, look, bounds, unread), {}
        else:
            planned, stragglers_from = self._exact(windows, look)
        # In a repair, the stream itself will write records that are still to come or held back.
        if not self._windows.repair:
            planned = self._completed(planned, log, look, bounds)
        if cut_at is not None:
            planned = [_cut(window, cut_at) for window in planned]
        return WindowPlan(
            windows=tuple(planned),
            state=EnumeratorState(planned[-1].stops, cluster_id, topic_ids),
            end_offsets=self._end,
            high_watermarks=log.high_watermarks,
            stragglers_from=stragglers_from,
            set_by_broker=self._set_by_broker,
            incidents=tuple(self._incidents),
            compacted=frozenset(topic for topic, settings in self._settings.items() if settings.is_compacted),
            maybe_compacted=frozenset(topics) - self._settings.keys(),
            made_again=self._made_again,
        )

    def _check_identity(
        self, known: EnumeratorState, cluster_id: str | None, topics: Mapping[str, TopicMetadata]
    ) -> None:
        went_on = "The run read the current log and replaced the rows of the windows with its records."
        stay = "Nothing was read, and the table's rows are unchanged."
        instead = "To replace the rows of these windows with its current records"
        try:
            check_cluster(known, cluster_id)
        except ClusterChangedError as error:
            if not self._windows.repair:
                ways_on = (
                    f"{stay} Correct bootstrap_servers, or use another table. {instead}, tolerate ClusterChangedError"
                )
                error = ClusterChangedError(f"{found(error)} {ways_on}")
            self._tolerate(error, went_on)
            return
        made_again = recreated_topics(known, topics, self._source.subscription)
        for topic, error in made_again.items():
            if self._windows.repair:
                self._tolerate(error, went_on)
                continue
            if self._windows.mode == "offset" and None in {known.topic_ids.get(topic), topics[topic].topic_id}:
                msg = (
                    f"{found(error)} {stay} Without topic ids, it is unknown which recorded offsets of offset windows "
                    "belong to the new topic. Use another table, or remove the topic from the source"
                )
                raise TopicRecreatedError(msg, (topic,))
            ways_on = f"{stay} Write the new topic to another table. {instead}, tolerate TopicRecreatedError"
            self._tolerate(TopicRecreatedError(f"{found(error)} {ways_on}", (topic,)), went_on)
        self._made_again = frozenset(made_again)

    def _check_end(self, known: EnumeratorState, now: EnumeratorState, log: Log) -> None:
        """Without topic ids, a recreated topic only shows in its offsets."""
        beyond = {
            tp: offset
            for tp, offset in sorted(known.position.items())
            if tp in log and offset > log.high_watermarks[tp] and is_same_log(tp, known, now)
        }
        if beyond:
            tp, offset = next(iter(beyond.items()))
            msg = (
                f"{tp}: the log ends at offset {log.high_watermarks[tp]}, but the table's windows were read up to "
                f"offset {offset}{_more(beyond, 'topic partitions')}: the log was truncated, or the topic is a "
                "different one. Nothing was written, and the table's rows are unchanged. Find out which. To replace "
                "them with the log's current records, tolerate EndBeforePositionError"
            )
            self._tolerate(EndBeforePositionError(msg), "The run wrote the log's current records.")

    def _tolerate(self, error: KafkaFlipError, went_on: str, *, lost_offsets: int | None = None) -> None:
        if type(error) not in self._context.tolerated:
            raise error
        self._incidents.append(incident_of(error, went_on, lost_offsets=lost_offsets))

    def _topics_set_by_broker(self, topics: Collection[str]) -> frozenset[str]:
        """Topics whose records can't be late, because brokers set their timestamps on arrival."""
        if self._windows.mode == "offset" or self._windows.event_time is not None or self._windows.repair:
            return frozenset()
        if TimestampTypeChangedError in self._context.tolerated:
            return frozenset()
        unknown = sorted(topic for topic in topics if topic not in self._settings)
        if unknown:
            _logger.info("the timestamp type of %s is unknown; assuming CreateTime", ", ".join(unknown))
        return frozenset(topic for topic, settings in self._settings.items() if settings.is_set_by_broker)

    def _lateness(self, tp: TopicPartition) -> int | None:
        lateness = self._windows.lateness_ms
        if tp.topic not in self._set_by_broker:
            return lateness
        return _BROKER_CLOCKS if lateness is None else min(lateness, _BROKER_CLOCKS)

    def _stop_time(self, tp: TopicPartition, bound: int) -> int | None:
        """The timestamp whose first record is the stop of a window with the given end; None for the end of the log."""
        if self._windows.mode == "offset":
            return bound
        lateness = self._lateness(tp)
        return None if lateness is None else bound + lateness

    def _is_from_future(self, record: TimestampedOffset) -> bool:
        return record.timestamp_ms > self._now + _CLOCK_SKEW

    def _bound(self, tp: TopicPartition, ms: int | None, look: LookUps) -> int:
        """The first record at or after a timestamp; the end offset if there is none, or if it is unreliable."""
        record = None if ms is None else look.record(tp, ms)
        return self._end[tp] if record is None or self._is_from_future(record) else record.offset

    def _exact(self, windows: Sequence[Window], look: LookUps) -> tuple[list[PlannedWindow], Position]:
        is_by_value = self._windows.event_time is not None
        lateness = {tp: self._lateness(tp) for tp in look.partitions}
        early = {tp: (late or 0) if is_by_value else 0 for tp, late in lateness.items()}
        bounds = [windows[0].start_ms, *(window.stop_ms for window in windows)]
        stop_times = [
            {tp: ms for tp in look.partitions if (ms := self._stop_time(tp, bound)) is not None} for bound in bounds
        ]
        # If the value has the timestamp and lateness is unlimited, a record of the window may be anywhere.
        limited_starts = [tp for tp, late in lateness.items() if late is not None or not is_by_value]
        look.prefetch(
            [
                dict.fromkeys(limited_starts, 0),
                *({tp: w.start_ms - early[tp] for tp in limited_starts} for w in windows),
            ],
            [*stop_times, *(dict.fromkeys(look.partitions, window.stop_ms) for window in windows)],
        )
        oldest = [{tp: window.start_ms - (lateness[tp] or 0) for tp in look.partitions} for window in windows]
        self._check_retention(windows, oldest, look)
        self._check_future(stop_times, look)

        def start(tp: TopicPartition, bound: int) -> int:
            if is_by_value and lateness[tp] is None:
                return self._beginning[tp]
            entry = look.entry(tp, bound - early[tp])
            # Lookups by timestamp skip records without a timestamp. Those before the first record with one may be in
            # any window up to that record's, so they are read and counted.
            return self._beginning[tp] if entry == look.entry(tp, 0) else entry

        def stop(tp: TopicPartition, bound: int) -> int:
            return self._bound(tp, self._stop_time(tp, bound), look)

        planned = [
            PlannedWindow(
                window,
                starts={tp: start(tp, window.start_ms) for tp in look.partitions},
                stops={tp: max(start(tp, window.start_ms), stop(tp, window.stop_ms)) for tp in look.partitions},
                ends={tp: self._bound(tp, window.stop_ms, look) for tp in look.partitions},
            )
            for window in windows
        ]
        return planned, {tp: stop(tp, bounds[0]) for tp in look.partitions}

    def _check_future(self, stop_times: Sequence[Mapping[TopicPartition, int]], look: LookUps) -> None:
        """Checks that no window ends at a record with a timestamp in the future."""
        # In a repair, the stream's position is the end, regardless of later records.
        if self._windows.repair:
            return
        dated = {
            tp: record
            for times in stop_times
            for tp, ms in times.items()
            if (record := look.record(tp, ms)) is not None and self._is_from_future(record)
        }
        if not dated:
            return
        tp, found = min(dated.items())
        msg = (
            f"{tp}: the record at offset {found.offset} has the timestamp {instant(found.timestamp_ms)}, but the time "
            f"is {instant(self._now)}{_more(dated, 'topic partitions')}. All later records seem late, and the record "
            "is in no window that is over. Nothing was written. Correct the producer's clock. To read such logs to "
            "their end, tolerate RecordsFromFutureError"
        )
        self._tolerate(RecordsFromFutureError(msg), "The run read the log to its end.", lost_offsets=0)

    def _check_retention(
        self,
        windows: Sequence[Window],
        starts: Sequence[Mapping[TopicPartition, int]],
        look: LookUps,
    ) -> None:
        """Checks that no record of a window was deleted.

        A deleted record was before the log's first record. Records are at most `max_lateness` late, so if the first
        record is older than the window by more than this, no deleted record was in the window.

        Args:
            windows: The windows, in time order.
            starts: For each window, the timestamp that the log's first record must be older than, by topic partition.
            look: The lookups by timestamp.
        """
        trimmed = [tp for tp in look.partitions if self._beginning[tp] > 0]
        look.prefetch([], [dict.fromkeys(trimmed, 0)])
        affected: dict[TopicPartition, list[Window]] = {}
        for window, times in zip(windows, starts, strict=True):
            trimmed = [tp for tp in trimmed if self._may_be_gone(tp, times[tp], look)]
            if not trimmed:
                break
            for tp in trimmed:
                affected.setdefault(tp, []).append(window)
        if affected:
            self._refuse_lost(affected, look)

    def _may_be_gone(self, tp: TopicPartition, ms: int, look: LookUps) -> bool:
        first = look.record(tp, 0)
        if first is not None:
            return first.timestamp_ms >= ms
        # The log has no records to compare with; only the topic's retention shows whether it may have had one.
        settings = self._settings.get(tp.topic)
        return settings is None or not settings.keeps(ms, self._now)

    def _refuse_lost(self, affected: Mapping[TopicPartition, Sequence[Window]], look: LookUps) -> None:
        tp, lost = min(affected.items())
        first = look.record(tp, 0)
        left = (
            "the log holds no records"
            if first is None
            else f"the earliest remaining record has the timestamp {instant(first.timestamp_ms)}"
        )
        later = f" and of {len(lost) - 1} later windows, up to {lost[-1]}," if len(lost) > 1 else ""
        msg = (
            f"{tp}: records of the window {lost[0]}{later} may be gone: the log begins at offset "
            f"{self._beginning[tp]}, and {left}{_more(affected, 'topic partitions')}. Nothing was written, and the "
            "table's rows of it are unchanged. Choose a later window; to replace these rows with the remaining "
            "records, tolerate WindowBeyondRetentionError"
        )
        self._tolerate(WindowBeyondRetentionError(msg), "The run wrote the remaining records.")

    def _completed(
        self, planned: list[PlannedWindow], log: Log, look: LookUps, recorded: Bounds
    ) -> list[PlannedWindow]:
        """The windows, with those marked that may still get records."""
        now = self._now
        is_tiled = self._windows.mode == "offset"
        longest = max((0 if is_tiled else (self._lateness(tp) or 0) for tp in look.partitions), default=0)
        complete = {window.window.key: now >= window.window.stop_ms + longest for window in planned}
        open_windows = [window.window for window in planned if not complete[window.window.key]]
        if open_windows:
            slack = (
                "" if not longest else (f", and late records may arrive for another {timedelta(milliseconds=longest)}")
            )
            msg = (
                f"the window {open_windows[0]} is not over: the time is "
                f"{instant(now)}{slack}{_more(open_windows, 'windows')}. Nothing was written. Run it later; to write "
                "the records so far, tolerate WindowNotCompleteError"
            )
            self._tolerate(WindowNotCompleteError(msg), "The run wrote the records so far.", lost_offsets=0)
        waiting = self._waiting(planned, log, look, recorded)
        for window in waiting.values():
            complete[window.window.key] = False
        if waiting:
            (tp, _), window = next(iter(waiting.items()))
            end = self._end[tp]
            msg = (
                f"{tp}: an open transaction holds back {log.high_watermarks[tp] - end} offsets from {end}, which may "
                f"include records of the window {window.window}{_more(waiting, 'windows and topic partitions')}. "
                "Nothing was written. Run it again when the transaction has ended; to write the records so far, "
                "tolerate WindowNotCompleteError"
            )
            self._tolerate(WindowNotCompleteError(msg), "The run wrote the records so far.", lost_offsets=0)
        return [replace(window, is_complete=complete[window.window.key]) for window in planned]

    def _waiting(
        self, planned: Sequence[PlannedWindow], log: Log, look: LookUps, recorded: Bounds
    ) -> dict[tuple[TopicPartition, str], PlannedWindow]:
        """The windows of topic partitions whose range reaches into an open transaction.

        A window that ends at a record before the transaction does not. A record of the transaction can't end a window:
        if the transaction is aborted, the record disappears, and later records may be in the window.
        """
        held_back = [tp for tp, end in self._end.items() if log.high_watermarks[tp] > end]

        def is_held_back(tp: TopicPartition, window: PlannedWindow) -> bool:
            bound = window.window.stop_ms
            if tp in recorded.get(bound, {}):
                return False
            ms = self._stop_time(tp, bound)
            record = None if ms is None else look.record(tp, ms)
            # A record from the future ends no window: the log is read to its end, and continues after it.
            return record is None or self._is_from_future(record)

        return {(tp, window.window.key): window for tp in held_back for window in planned if is_held_back(tp, window)}

    def _tiles(
        self, windows: Sequence[Window], look: LookUps, recorded: Bounds, unread: Collection[TopicPartition]
    ) -> list[PlannedWindow]:
        times = [windows[0].start_ms, *(window.stop_ms for window in windows)]
        wanted = [{tp: time for tp in look.partitions if tp not in recorded.get(time, {})} for time in times]
        look.prefetch([dict.fromkeys(look.partitions, 0)], wanted)
        self._check_future([{tp: ms for tp, ms in wanted[0].items() if tp not in unread}, *wanted[1:]], look)

        def look_up(tp: TopicPartition, time: int) -> int:
            if tp in unread and time == times[0]:
                return self._beginning[tp]
            bound = self._bound(tp, time, look)
            if look.entry(tp, 0) == self._beginning[tp]:
                return bound
            # Records without a timestamp are in the window of the next record with one, or else in the run's first
            # window.
            first = look.record(tp, 0)
            is_first = time == times[0] if first is None else bound == first.offset
            return self._beginning[tp] if is_first else bound

        offsets = tile_bounds(times, look.partitions, recorded, look_up)
        self._check_tiles(windows, wanted, offsets, look)
        offsets = [{tp: max(offset, self._beginning[tp]) for tp, offset in each.items()} for each in offsets]
        return [
            PlannedWindow(window, starts, stops, ends=stops)
            for window, (starts, stops) in zip(windows, itertools.pairwise(offsets), strict=True)
        ]

    def _check_tiles(
        self,
        windows: Sequence[Window],
        looked_up: Sequence[Mapping[TopicPartition, int]],
        offsets: Sequence[Position],
        look: LookUps,
    ) -> None:
        beginning = self._beginning
        affected: dict[TopicPartition, list[Window]] = {}
        for window, times, starts, stops in zip(windows, looked_up, offsets, offsets[1:], strict=False):
            for tp, start in starts.items():
                is_gone = start < beginning[tp] and start < stops[tp]
                if is_gone or (tp in times and beginning[tp] > 0 and self._may_be_gone(tp, times[tp], look)):
                    affected.setdefault(tp, []).append(window)
        if affected:
            self._refuse_lost(affected, look)


def _more(met: Collection[object], what: str) -> str:
    return f" (also affects {len(met) - 1} more {what})" if len(met) > 1 else ""


def _fed(partitions: Sequence[TopicPartition], cut_at: Position) -> list[TopicPartition]:
    """The topic partitions that the table's stream has read; it will read the others from the beginning."""
    topics = {tp.topic for tp in cut_at}
    foreign = sorted({tp.topic for tp in partitions if tp.topic not in topics})
    if foreign:
        msg = (
            f"the table's stream has not read the topic {foreign[0]} (it reads {', '.join(sorted(topics))}), so it is "
            "unknown which of its records the stream will write itself; remove the topic from the source"
        )
        raise ConfigurationError(msg)
    return [tp for tp in partitions if tp in cut_at]


def _cut(window: PlannedWindow, cut_at: Position) -> PlannedWindow:
    """The window without the records that the stream has not written yet."""
    starts, stops, ends = (
        {tp: min(offset, cut_at[tp]) for tp, offset in position.items()}
        for position in (window.starts, window.stops, window.ends)
    )
    return PlannedWindow(window.window, starts, stops, ends, window.is_complete)
