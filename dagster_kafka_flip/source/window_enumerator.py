"""WindowEnumerator: finds where in the logs the records of windows are, before anything is read.

Kafka finds the first record at or after a time (KIP-79), not the last before one. So the start of a window is exact:
no record of it stands before that offset. Its stop is not: a record of the window may stand behind one of a later
time. How far behind is what `max_lateness` says; see section 8 of docs/architecture.md.
"""

from __future__ import annotations

import itertools
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    RecordsFromFutureError,
    TimestampTypeChangedError,
    WindowBeyondRetentionError,
    WindowNotCompleteError,
)
from dagster_kafka_flip.source.api import SplitAssignment
from dagster_kafka_flip.source.identity import (
    check_cluster,
    found_topics,
    is_same_log,
    recreated_topics,
    topic_ids_of,
)
from dagster_kafka_flip.source.incident import incident_of
from dagster_kafka_flip.source.isolation import READ_COMMITTED, READ_UNCOMMITTED
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.look_ups import LookUps
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.tasks import plan_tasks
from dagster_kafka_flip.source.tiles import recorded_bounds, tile_bounds
from dagster_kafka_flip.source.window import instant
from dagster_kafka_flip.source.window_plan import PlannedWindow, WindowPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.log import Cluster, TopicSettings
    from dagster_kafka_flip.source.sample import TimestampedOffset
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.tiles import Bounds, RecordedWindow
    from dagster_kafka_flip.source.window import Window, Windows

_logger = logging.getLogger(__name__)

# A new leader's clock may be behind that of the one before it, and then so are the times that it sets.
_BROKER_CLOCKS = timedelta(seconds=10) // timedelta(milliseconds=1)
# What clocks may differ by without anybody's record being from the future.
_CLOCK_SKEW = timedelta(minutes=5) // timedelta(milliseconds=1)
# Between two records of a topic there may be hours without one; a transaction's marker tells itself by more than that.
_SUSPICIOUS_GAP = timedelta(hours=1) // timedelta(milliseconds=1)


def now_milliseconds() -> int:
    """The time now, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class WindowEnumerator:
    """Turns windows into offsets.

    Args:
        source: What to read; its starts and stops count for nothing.
        cluster: Where from.
        windows: How records are put into windows.
        context: What is known of the run.
        now: Tells the time in milliseconds since the epoch. Default: this machine's clock.
    """

    def __init__(
        self,
        source: KafkaSource,
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
        self._incidents: list[Incident] = []
        self._settings: Mapping[str, TopicSettings] = {}
        self._trusted_logs: Collection[TopicPartition] = frozenset()
        self._recorded: Bounds = {}

    def discover(self) -> None:
        """Looks whether the topics are there.

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
        """Fixes what is read for each window.

        Args:
            windows: In order of time, without gaps between them.
            known: Cluster and topics that the table's rows are of, and how far they were read; None if there are none
                yet.
            cut_at: Where a stream stands that feeds the same table: nothing is read from there on, nor of topic
                partitions that it does not know, because it will read them itself.
            recorded: In offset mode, windows that were landed before.

        Raises (but for what the context says is tolerated):
            TopicNotFoundError: A topic is missing.
            ClusterChangedError: The table's rows are of another cluster.
            TopicRecreatedError: The table's rows are of an earlier topic with the same name.
            EndBeforePositionError: The log ends before what was read of it for the table.
            WindowNotCompleteError: A window is not over, or an open transaction may hold records of it back.
            WindowBeyondRetentionError: The log may no longer hold all records of a window.
            RecordsFromFutureError: A record is dated in the future, so that what comes behind it seems late.
            ClusterUnreachableError: No broker answered.
        """
        self._incidents = []
        cluster_id = self._cluster.cluster_id()
        topics, missing = found_topics(self._source.subscription, self._cluster, self._context.tolerated)
        self._incidents += missing
        topic_ids = topic_ids_of(topics)
        if known is not None:
            self._check_identity(known, cluster_id, topic_ids)
        partitions = [tp for topic in topics.values() for tp in topic.partitions]
        if cut_at is not None:
            partitions = _fed(partitions, cut_at)
        log = Log(self._source, self._cluster, partitions)
        if known is not None:
            self._check_end(known, EnumeratorState({}, cluster_id, topic_ids), log)
        look = LookUps(self._cluster, self._source.isolation_level, partitions)
        self._settings = self._cluster.topic_settings(topics)
        set_by_broker = self._set_by_broker(topics)
        if self._windows.mode == "offset":
            bounds = recorded_bounds(recorded, EnumeratorState({}, cluster_id, topic_ids))
            planned, stragglers_from = self._tiles(windows, log, look, bounds), {}
        else:
            planned, stragglers_from = self._exact(windows, log, look, set_by_broker)
        # In a repair, what is not over yet or held back the stream has not landed, and will.
        if not self._windows.repair:
            planned = self._completed(planned, log, partitions, set_by_broker)
        if cut_at is not None:
            planned = [_cut(window, cut_at) for window in planned]
        return WindowPlan(
            windows=tuple(planned),
            state=EnumeratorState(planned[-1].stops, cluster_id, topic_ids),
            beginning_offsets=log.beginning_offsets(partitions),
            end_offsets=log.end_offsets(partitions),
            high_watermarks=log.high_watermarks,
            stragglers_from=stragglers_from,
            set_by_broker=set_by_broker,
            incidents=tuple(self._incidents),
            compacted=frozenset(topic for topic, settings in self._settings.items() if settings.is_compacted),
        )

    def assign(self, plan: WindowPlan) -> SplitAssignment:
        """A plan, dealt out to tasks."""
        batch = plan.read_plan()
        return SplitAssignment(batch, plan_tasks(batch.splits, self._context.current_parallelism))

    def _check_identity(self, known: EnumeratorState, cluster_id: str | None, topic_ids: Mapping[str, str]) -> None:
        went_on = "The run went on with the log that answers now; rows of the windows are replaced by what it holds."
        try:
            check_cluster(known, cluster_id)
        except ClusterChangedError as error:
            self._met(error, went_on)
            return
        for error in recreated_topics(known, topic_ids).values():
            self._met(error, went_on)

    def _check_end(self, known: EnumeratorState, now: EnumeratorState, log: Log) -> None:
        """Where topics have no ids, a topic that was made again shows only by its offsets."""
        beyond = {
            tp: offset
            for tp, offset in sorted(known.position.items())
            if tp in log and offset > log.high_watermarks[tp] and is_same_log(tp, known, now)
        }
        if beyond:
            tp, offset = next(iter(beyond.items()))
            msg = (
                f"{tp}: the log ends at offset {log.high_watermarks[tp]}, and the table holds windows that were read "
                f"up to {offset}{_more(beyond, 'topic partitions')}: it was truncated, or it is another topic. Nothing "
                "was written, and the rows that the table has stay. Find out which; to put what the log holds now in "
                "their place, tolerate EndBeforePositionError"
            )
            self._met(EndBeforePositionError(msg), "The run landed what the log holds now.")

    def _met(self, error: KafkaFlipError, went_on: str, *, lost_offsets: int | None = None) -> None:
        if type(error) not in self._context.tolerated:
            raise error
        self._incidents.append(incident_of(error, went_on, lost_offsets=lost_offsets))

    def _set_by_broker(self, topics: Collection[str]) -> frozenset[str]:
        """Topics whose records can't be late, because the broker gives them their times as they come."""
        if self._windows.mode == "offset" or self._windows.event_time is not None or self._windows.repair:
            return frozenset()
        if TimestampTypeChangedError in self._context.tolerated:
            return frozenset()
        unknown = sorted(topic for topic in topics if topic not in self._settings)
        if unknown:
            _logger.info("who sets the times of %s is not told; read as if the producers did", ", ".join(unknown))
        return frozenset(topic for topic, settings in self._settings.items() if settings.is_set_by_broker)

    def _lateness(self, tp: TopicPartition, set_by_broker: frozenset[str]) -> int | None:
        lateness = self._windows.lateness_ms
        if tp.topic not in set_by_broker:
            return lateness
        return _BROKER_CLOCKS if lateness is None else min(lateness, _BROKER_CLOCKS)

    def _exact(
        self, windows: Sequence[Window], log: Log, look: LookUps, set_by_broker: frozenset[str]
    ) -> tuple[list[PlannedWindow], Position]:
        lateness = {tp: self._lateness(tp, set_by_broker) for tp in look.partitions}
        early = {tp: (late or 0) if self._windows.event_time is not None else 0 for tp, late in lateness.items()}
        bounds = [windows[0].start_ms, *(window.stop_ms for window in windows)]
        limited = [tp for tp, late in lateness.items() if late is not None]
        # Where the value tells the time and there is no limit, a record of the window may stand anywhere.
        limited_starts = limited if self._windows.event_time is not None else look.partitions
        look.prefetch(
            [dict.fromkeys(look.partitions, bound) for bound in bounds]
            + [{tp: bound - early[tp] for tp in limited_starts} for bound in bounds[:-1]]
            + [{tp: bound + (lateness[tp] or 0) for tp in limited} for bound in bounds]
        )
        end, beginning = log.end_offsets(look.partitions), log.beginning_offsets(look.partitions)
        oldest = [{tp: window.start_ms - (lateness[tp] or 0) for tp in look.partitions} for window in windows]
        self._check_retention(windows, oldest, beginning, look)
        trusted = self._trusted([{tp: bound + (lateness[tp] or 0) for tp in limited} for bound in bounds], look)

        def stop(tp: TopicPartition, bound: int) -> int:
            late = lateness[tp]
            return end[tp] if late is None or tp not in trusted else look.offset(tp, bound + late, end[tp])

        def start(tp: TopicPartition, bound: int) -> int:
            if self._windows.event_time is not None and lateness[tp] is None:
                return beginning[tp]
            return look.offset(tp, bound - early[tp], end[tp])

        planned = [
            PlannedWindow(
                window,
                starts={tp: start(tp, window.start_ms) for tp in look.partitions},
                stops={tp: max(start(tp, window.start_ms), stop(tp, window.stop_ms)) for tp in look.partitions},
                ends={tp: look.offset(tp, window.stop_ms, end[tp]) for tp in look.partitions},
            )
            for window in windows
        ]
        return planned, {tp: stop(tp, bounds[0]) for tp in look.partitions}

    def _trusted(self, stops: Sequence[Mapping[TopicPartition, int]], look: LookUps) -> set[TopicPartition]:
        """Topic partitions whose look-ups of stops found records of their time, and not what only looks like one.

        The marker of a transaction is found by its time as a record is, and a broker dates it by its own clock. Where
        old records were written in transactions, everything behind a marker would seem late.
        """
        suspicious: dict[TopicPartition, set[int]] = {}
        for times in stops:
            for tp, wanted in times.items():
                found = look.found(tp, wanted)
                if found is not None and found.timestamp_ms - wanted > _SUSPICIOUS_GAP:
                    suspicious.setdefault(tp, set()).add(found.offset)
        records = self._cluster.records_standing_at(suspicious, self._source.isolation_level) if suspicious else {}
        not_records = {tp: sorted(offsets.difference(records.get(tp, ()))) for tp, offsets in suspicious.items()}
        markers = {tp: offsets[0] for tp, offsets in not_records.items() if offsets}
        for tp, offset in sorted(markers.items()):
            _logger.info(
                "%s: what stands at offset %d is no record that can be read, but what a transaction left; the log is "
                "read to its end",
                tp,
                offset,
            )
        from_future = self._from_future([tp for tp in look.partitions if tp not in markers], stops, look)
        self._trusted_logs = {tp for times in stops for tp in times} - set(markers) - set(from_future)
        return self._trusted_logs

    def _from_future(
        self, partitions: Collection[TopicPartition], stops: Sequence[Mapping[TopicPartition, int]], look: LookUps
    ) -> dict[TopicPartition, TimestampedOffset]:
        """Topic partitions where what is found is dated later than now, if that is tolerated, and what it is."""
        now = self._now()
        asked = frozenset(partitions)
        dated = {
            tp: found
            for times in stops
            for tp, wanted in times.items()
            if tp in asked and (found := look.found(tp, wanted)) is not None and found.timestamp_ms > now + _CLOCK_SKEW
        }
        # In a repair, the stream's position is the end whatever the records behind it say.
        if not dated or self._windows.repair:
            return dated
        tp, found = min(dated.items())
        msg = (
            f"{tp}: the record at offset {found.offset} is dated {instant(found.timestamp_ms)}, and now it is "
            f"{instant(now)}{_more(dated, 'topic partitions')}. Every record behind it seems to be late, and it is in "
            "no window that is over. Nothing was written. Correct the producer's clock. To read such logs to their "
            "end, tolerate RecordsFromFutureError"
        )
        self._met(RecordsFromFutureError(msg), "The run read the log to its end.", lost_offsets=0)
        return dated

    def _check_retention(
        self,
        windows: Sequence[Window],
        starts: Sequence[Mapping[TopicPartition, int]],
        beginning: Position,
        look: LookUps,
    ) -> None:
        """Makes sure that no record of a window is gone.

        A record that is gone stood before the log's first one. It came before that, at most so much later than its
        own time as records may be late: where the first one is older than the window by more, it is not of the window.

        Args:
            windows: The windows, in order of time.
            starts: Of each, the time that the log's first record has to be older than, by topic partition.
            beginning: Where the logs begin.
            look: To look up times with.
        """
        trimmed = [tp for tp in look.partitions if beginning[tp] > 0]
        look.prefetch([dict.fromkeys(trimmed, 0), {tp: starts[0][tp] for tp in trimmed}])
        affected: dict[TopicPartition, list[Window]] = {}
        for window, times in zip(windows, starts, strict=True):
            trimmed = [tp for tp in trimmed if self._may_be_gone(tp, times[tp], look)]
            if not trimmed:
                break
            for tp in trimmed:
                affected.setdefault(tp, []).append(window)
        if affected:
            self._refuse_lost(affected, beginning, look)

    def _may_be_gone(self, tp: TopicPartition, ms: int, look: LookUps) -> bool:
        first = look.found(tp, 0)
        if first is not None:
            found = look.found(tp, ms)
            return found is not None and found.offset <= first.offset
        # Nothing is left to compare with; only the topic's retention tells whether it can have been there.
        settings = self._settings.get(tp.topic)
        return settings is None or not settings.keeps(ms, self._now())

    def _refuse_lost(
        self, affected: Mapping[TopicPartition, Sequence[Window]], beginning: Position, look: LookUps
    ) -> None:
        tp, lost = min(affected.items())
        first = look.found(tp, 0)
        left = (
            "the log holds no record any longer"
            if first is None
            else f"the earliest record that is left is dated {instant(first.timestamp_ms)}"
        )
        later = f" and of {len(lost) - 1} later windows, up to {lost[-1]}," if len(lost) > 1 else ""
        msg = (
            f"{tp}: records of the window {lost[0]}{later} may be gone: the log begins at offset {beginning[tp]}, and "
            f"{left}{_more(affected, 'topic partitions')}. Nothing was written, and the rows that the table has of it "
            "stay. Choose a later window; to put what is left in the place of these rows, tolerate "
            "WindowBeyondRetentionError"
        )
        self._met(WindowBeyondRetentionError(msg), "The run landed what is left.")

    def _completed(
        self,
        planned: list[PlannedWindow],
        log: Log,
        partitions: Sequence[TopicPartition],
        set_by_broker: frozenset[str],
    ) -> list[PlannedWindow]:
        """The windows, with those marked that may still grow."""
        now = self._now()
        is_offset = self._windows.mode == "offset"
        lateness = {tp: 0 if is_offset else (self._lateness(tp, set_by_broker) or 0) for tp in partitions}
        longest = max(lateness.values(), default=0)
        complete = {window.window.key: now >= window.window.stop_ms + longest for window in planned}
        open_windows = [window.window for window in planned if not complete[window.window.key]]
        if open_windows:
            slack = "" if not longest else f", and records of it may come for {timedelta(milliseconds=longest)} more"
            msg = (
                f"the window {open_windows[0]} is not over: now it is {instant(now)}{slack}"
                f"{_more(open_windows, 'windows')}. Nothing was written. Run it later; to land what is there so far, "
                "tolerate WindowNotCompleteError"
            )
            self._met(WindowNotCompleteError(msg), "The run landed what was there so far.", lost_offsets=0)
        waiting = self._waiting(planned, log, partitions, lateness)
        for window in waiting.values():
            complete[window.window.key] = False
        if waiting:
            (tp, _), window = next(iter(waiting.items()))
            end = log.end_offsets([tp])[tp]
            msg = (
                f"{tp}: an open transaction holds back {log.high_watermarks[tp] - end} offsets from {end} on, among "
                f"which may be records of the window {window.window}{_more(waiting, 'windows and topic partitions')}. "
                "Nothing was written. Run it again when the transaction has ended; to land what is there so far, "
                "tolerate WindowNotCompleteError"
            )
            self._met(WindowNotCompleteError(msg), "The run landed what was there so far.", lost_offsets=0)
        return [
            PlannedWindow(window.window, window.starts, window.stops, window.ends, complete[window.window.key])
            for window in planned
        ]

    def _waiting(
        self,
        planned: Sequence[PlannedWindow],
        log: Log,
        partitions: Sequence[TopicPartition],
        lateness: Mapping[TopicPartition, int],
    ) -> dict[tuple[TopicPartition, str], PlannedWindow]:
        """The windows of topic partitions that reach into an open transaction."""
        if self._source.isolation_level != READ_COMMITTED:
            return {}
        ends = log.end_offsets(partitions)
        held_back = [tp for tp in partitions if log.high_watermarks[tp] > ends[tp]]
        is_exact = self._windows.mode == "exact"
        look = LookUps(self._cluster, READ_UNCOMMITTED, held_back)
        look.prefetch([{tp: window.window.stop_ms + lateness[tp] for tp in held_back} for window in planned])

        def is_held_back(tp: TopicPartition, window: PlannedWindow) -> bool:
            # Where a log has to be read to its end, the window may go on behind it.
            if is_exact and tp not in self._trusted_logs:
                return True
            if not is_exact and tp in self._recorded.get(window.window.stop_ms, {}):
                return False
            return look.offset(tp, window.window.stop_ms + lateness[tp], log.high_watermarks[tp]) > ends[tp]

        return {(tp, window.window.key): window for tp in held_back for window in planned if is_held_back(tp, window)}

    def _tiles(self, windows: Sequence[Window], log: Log, look: LookUps, recorded: Bounds) -> list[PlannedWindow]:
        self._recorded = recorded
        times = [windows[0].start_ms, *(window.stop_ms for window in windows)]
        wanted = [{tp: time for tp in look.partitions if tp not in recorded.get(time, {})} for time in times]
        look.prefetch(wanted)
        end, beginning = log.end_offsets(look.partitions), log.beginning_offsets(look.partitions)
        from_future = self._from_future(look.partitions, wanted, look)

        def look_up(tp: TopicPartition, time: int) -> int:
            found = look.found(tp, time)
            is_from_future = found is not None and found == from_future.get(tp)
            return end[tp] if is_from_future else look.offset(tp, time, end[tp])

        offsets = tile_bounds(times, look.partitions, recorded, look_up)
        self._check_tiles(windows, wanted, offsets, beginning, look)
        offsets = [{tp: max(offset, beginning[tp]) for tp, offset in each.items()} for each in offsets]
        return [
            PlannedWindow(window, starts, stops, ends=stops)
            for window, (starts, stops) in zip(windows, itertools.pairwise(offsets), strict=True)
        ]

    def _check_tiles(
        self,
        windows: Sequence[Window],
        looked_up: Sequence[Mapping[TopicPartition, int]],
        offsets: Sequence[Position],
        beginning: Position,
        look: LookUps,
    ) -> None:
        affected: dict[TopicPartition, list[Window]] = {}
        for window, times, starts, stops in zip(windows, looked_up, offsets, offsets[1:], strict=False):
            for tp, start in starts.items():
                is_gone = start < beginning[tp] and start < stops[tp]
                if is_gone or (tp in times and beginning[tp] > 0 and self._may_be_gone(tp, times[tp], look)):
                    affected.setdefault(tp, []).append(window)
        if affected:
            self._refuse_lost(affected, beginning, look)


def _more(met: Collection[object], what: str) -> str:
    return f" (and the like of {len(met) - 1} more {what})" if len(met) > 1 else ""


def _fed(partitions: Sequence[TopicPartition], cut_at: Position) -> list[TopicPartition]:
    """The topic partitions that the table's stream has read; it will read the others from their beginning."""
    topics = {tp.topic for tp in cut_at}
    foreign = sorted({tp.topic for tp in partitions if tp.topic not in topics})
    if foreign:
        msg = (
            f"the topic {foreign[0]} is not among those that the table's stream has read "
            f"({', '.join(sorted(topics))}), so that it can't be told which of its records the stream will land "
            "itself; take it out of the source"
        )
        raise ConfigurationError(msg)
    return [tp for tp in partitions if tp in cut_at]


def _cut(window: PlannedWindow, cut_at: Position) -> PlannedWindow:
    """The same window without what the stream has not landed yet."""
    starts, stops, ends = (
        {tp: min(offset, cut_at[tp]) for tp, offset in position.items()}
        for position in (window.starts, window.stops, window.ends)
    )
    return PlannedWindow(window.window, starts, stops, ends, window.is_complete)
