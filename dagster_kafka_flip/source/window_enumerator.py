"""WindowEnumerator: finds the offsets of windows' records before anything is read.

The offsets depend only on the log and on the window, so a window has the same rows regardless of the other windows in
the run. See "Windows of time" in docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.enumerator import Enumerator
from dagster_kafka_flip.source.identity import check_topics, found_topics, topic_ids_of
from dagster_kafka_flip.source.incident import Tolerance
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import PlannedWindow, WindowPlan
from dagster_kafka_flip.source.window_checks import (
    WindowLogs,
    check_ends,
    check_future,
    check_identity,
    check_retention,
    with_completeness,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.enumerator import ReadSettings
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.window import Window, Windows


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
        self,
        windows: Sequence[Window],
        *,
        known: EnumeratorState | None = None,
        cut_at: Position | None = None,
    ) -> WindowPlan:
        """Plans the ranges of consecutive windows, of which the table's rows may be `known`.

        `cut_at` is the position of a stream that writes to the same table: nothing is read from there on, nor from
        topic partitions that it does not have, because the stream will read them itself.
        """
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

    def assign(self, plan: WindowPlan) -> SplitAssignment:
        """Assigns a plan to tasks."""
        return self._context.assignment(plan.read_plan())


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
