"""Stories of windows: what a seed lets happen while windows are landed, and whether each has its records in the end."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from pyspark.sql.types import StructType

from dagster_kafka_flip import errors
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.document import WindowsDocument
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor
from tests.simulation.sim_log import Partition
from tests.simulation.sim_table import WINDOWS_SCHEMA, SimTable
from tests.simulation.story import RESTORE_TO, Story, turns
from tests.simulation.world import CONNECTION, SILENT, SimSource

_TOLERATE = re.compile(r"tolerate (\w+Error)")
# Where one of these is tolerated, rows may go whose records are gone.
_LOSING = frozenset({errors.TopicRecreatedError, errors.WindowBeyondRetentionError, errors.EndBeforePositionError})


@dataclass
class Landing:
    """One asset that lands windows of a table, and what its runs were told."""

    topics: tuple[str, ...] | None
    tolerated: frozenset[type[KafkaFlipError]]
    limits: Limits
    # The attempts whose results were told.
    told: set[str] = field(default_factory=set[str])


@dataclass
class Expected:
    """What a table must have by one version."""

    # By window and topic: the numbers that it must have at least.
    least: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict[tuple[str, str], frozenset[int]])
    # Windows of topics that were landed when they were over, with nothing tolerated.
    complete: frozenset[tuple[str, str]] = frozenset()


class WindowStory(Story):
    """The story of one seed in which windows are landed."""

    table: DeltaTarget

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, left_out)
        # Records that come later than the maximum lateness.
        self._has_stragglers = self.random.random() < 0.4

    def _begin(self) -> None:
        draw, now = self.random, self.world.now_ms()
        # Of long ones, runs land what there is so far, over what others have landed.
        length = draw.choice((60_000, 600_000))
        begin = now - draw.choice((0, 100_000, 400_000))
        self._windows = [
            Window.between(begin + number * length, begin + (number + 1) * length, f"w{number}")
            for number in range(4 if length == 60_000 else 2)
        ]
        for time_ms in sorted(draw.randint(begin - 50_000, now) for _ in range(draw.randint(0, 12))):
            self.world.log.append(self._partition()[1], [time_ms - draw.choice((0, 0, 10_000))])

    def _make_streams(self) -> None:
        draw = self.random
        self.table = DeltaTarget(table="simulated.w")
        table = self.world.table(self.table)
        table.is_partitioned = draw.random() < 0.5
        if draw.random() < 0.5:
            # A transform has dropped the offset: nobody can look which records the rows are of.
            table.windows_schema = StructType([each for each in WINDOWS_SCHEMA if each.name != "kafka_offset"])
        # All of one table have the same rules.
        self._rules = Windows(max_lateness=timedelta(seconds=draw.choice((20, 60, 90))))
        by_topic = len(self._topics) > 1 and draw.random() < 0.5
        self._landings = [
            Landing(
                (topic,) if by_topic else None,
                frozenset(
                    error
                    for error in (
                        errors.WindowNotCompleteError,
                        errors.WindowBeyondRetentionError,
                        errors.TopicRecreatedError,
                    )
                    if draw.random() < (0.6 if error is errors.WindowNotCompleteError else 0.1)
                ),
                Limits(max_records_per_batch=draw.choice((None, None, 2))),
            )
            for topic in (self._topics if by_topic else ("all",))
        ]

    def _actors(self) -> list[Actor]:
        return [
            self._window_actor(landing, f"windows {landing.topics or ''}{' (second process)' if number else ''}")
            for landing in self._landings
            for number in range(self.random.choice((1, 2, 2)))
        ]

    def _window_actor(self, landing: Landing, name: str) -> Actor:
        def run() -> None:
            first = self.random.randrange(len(self._windows))
            self._land(landing, self._windows[first : self.random.randint(first, len(self._windows) - 1) + 1])

        return self._lives(name, self.random.randint(1, 4), run)

    def _land(self, landing: Landing, windows: list[Window]) -> None:
        note, session = self.world.scheduler.note, cast("Any", self.session)
        try:
            with self._running(f"lands {windows[0].key} to {windows[-1].key}"):
                results = rewrite_windows(
                    SimSource(topics=tuple(self._topics), connection=CONNECTION, world=self.world),
                    self.table,
                    windows,
                    spark=lambda: session,
                    rules=self._rules,
                    definition="minutes",
                    topics=landing.topics,
                    limits=landing.limits,
                    tolerate=landing.tolerated,
                    run_id=f"run {self._runs}",
                    logger=SILENT,
                )
                for result in results:
                    if result.committed is not None:
                        commit: Any = self.world.table(self.table).versions[result.committed.version].commit
                        landing.told.add(commit.windows().attempt)
                    note(f"is told {[planned.window.key for planned in result.plan.windows]}")
                    if self.world.table(self.table).has_lock:
                        # Without a lock, a run may still find that it wrote over another one's windows.
                        self._check_told()
        except KafkaFlipError as error:
            note(f"{type(error).__name__}: {str(error)[:250]}")
            raise

    def _times(self) -> list[int]:
        ages = (0, 0, 0, 20_000, 70_000) if self._has_stragglers else (0, 0, 0, 20_000)
        return [self.world.now_ms() - self.random.choice(ages) for _ in range(self.random.randint(1, 3))]

    def _pass_time(self) -> str:
        seconds = self.random.choice((10, 40, 100))
        self.world.now += timedelta(seconds=seconds)
        return f"by {seconds} s"

    def _insert(self, table: SimTable) -> None:
        table.insert((-len(table.versions), self.random.choice(self._windows).key))

    def _events(self) -> list[tuple[str, Callable[[], str | None]]]:
        left_out = {"drops", "history expires", "others empty"}
        if self._has_stragglers:
            # Whether retention took records of a window is told from the maximum lateness.
            left_out.add("retention deletes")
        return [each for each in super()._events() if each[0] not in left_out] + [
            *[("time passes", self._pass_time)] * 2,
            ("creates again", self._recreate),
        ]

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """What runs were told holds. Then all windows are over, and each that was not landed whole has its turn."""
        self._check()
        self.world.now += timedelta(hours=1)
        for landing in self._landings:
            self.world.scheduler.run([Actor("the last turn", lambda landing=landing: self._last_turn(landing))])

    def _last_turn(self, landing: Landing) -> None:
        landing.tolerated -= {errors.WindowNotCompleteError}
        for window in self._windows:
            left = turns(window)
            topics = set(landing.topics or self._topics)
            while any((window.key, topic) not in self._expected().complete for topic in topics):
                next(left)
                before = len(self.world.table(self.table).versions)
                try:
                    self._land(landing, [window])
                except KafkaFlipError as error:
                    self._follow_window(landing, error)
                    continue
                landing.limits = Limits()
                if landing.tolerated & _LOSING or len(self.world.table(self.table).versions) == before:
                    # Landed with what is left of its records, or there was nothing to change.
                    break

    def _follow_window(self, landing: Landing, error: KafkaFlipError) -> None:
        text, table = str(error), self.world.table(self.table)
        if (restore := RESTORE_TO.search(text)) is not None:
            table.restore(int(restore[1]))
            self.world.scheduler.note(f"restores version {restore[1]}")
        elif (tolerate := _TOLERATE.search(text)) is not None:
            landing.tolerated |= {getattr(errors, tolerate[1])}
        else:
            has_way_out = isinstance(
                error, errors.ClusterUnreachableError | errors.CommitUnknownError | errors.WriteFailedError
            )
            assert has_way_out, f"no way out of {type(error).__name__}: {text}"

    def _check(self) -> None:
        table = self.world.table(self.table)
        rows = Counter(row for row in table.rows if row[0] > 0)
        doubled = sorted(row for row, count in rows.items() if count > 1)
        assert not doubled, f"the table has {doubled} more than once"
        by_key = {window.key: window for window in self._windows}
        for number, key in rows:
            time_ms = self.world.log.places[number][3]
            assert by_key[key].start_ms <= time_ms < by_key[key].stop_ms, f"the row {number} is in the window {key}"
        self._check_told()
        for key, topic in self._expected().complete:
            self._check_complete_window(by_key[key], topic, {number for number, window in rows if window == key})

    def _check_told(self) -> None:
        """What runs were told is there."""
        table = self.world.table(self.table)
        for (key, topic), least in self._expected().least.items():
            there = {number for number, window in table.rows if window == key}
            lacking = sorted(number for number in least - there if (number, key) not in table.deleted)
            assert not lacking, f"the window {key} of {topic} lacks {lacking}, which a run has landed"

    def _check_complete_window(self, window: Window, topic: str, there: set[int]) -> None:
        table = self.world.table(self.table)
        for number, partition in enumerate(self.world.log.topics[topic]):
            if partition.was_cut:
                continue
            promised = self._promised(window, partition)
            own = {each for each in there if self.world.log.homes[each] == partition.home}
            deleted = {each for each, key in table.deleted if key == window.key}
            # What comes later than the maximum lateness, when the window was landed, is not missed.
            is_right = own <= promised and all(map(self._is_late, promised - own - deleted))
            assert is_right, (
                f"the window {window.key} has {sorted(own)} of {topic}-{number}, and its records are {sorted(promised)}"
            )

    def _is_late(self, number: int) -> bool:
        return self.world.log.arrivals[number] - self.world.log.places[number][3] > (self._rules.lateness_ms or 0)

    def _promised(self, window: Window, partition: Partition) -> set[int]:
        """The window's records up to the first one that is later than its end by the maximum lateness."""
        until = window.stop_ms + (self._rules.lateness_ms or 0)
        in_time = itertools.takewhile(lambda found: found[1].time_ms < until, partition.history())
        return {entry.number for _, entry in in_time if window.start_ms <= entry.time_ms < window.stop_ms}

    def _expected(self) -> Expected:
        """What the newest version must have, by all commits up to there."""
        table, by_version = self.world.table(self.table), list[Expected]()
        told = set[str]().union(*(landing.told for landing in self._landings))
        for version in table.versions:
            commit = version.commit
            now = by_version[-1] if by_version else Expected()
            document = commit.windows()
            if commit.operation == "RESTORE":
                now = by_version[commit.restored_version or 0]
            elif document is not None:
                now = self._after(now, document, is_told=document.attempt in told)
            by_version.append(now)
        return by_version[-1] if by_version else Expected()

    def _after(self, before: Expected, document: WindowsDocument, *, is_told: bool) -> Expected:
        incidents = {incident.error for incident in document.incidents}
        loses = any(error.__name__ in incidents for error in _LOSING)
        least, complete = dict(before.least), set(before.complete)
        for window in document.windows:
            for topic in document.topics or self._topics:
                place = (window.key, topic)
                if loses:
                    least[place] = frozenset()
                if not is_told:
                    # It may be less than what was told before, or more.
                    complete.discard(place)
                    continue
                least[place] = least.get(place, frozenset()) | self._read(window, topic, document)
                complete.add(place)
                if incidents - {"ForeignRowsError"}:
                    complete.discard(place)
        return Expected(least, frozenset(complete))

    def _read(self, window: Window, topic: str, document: WindowsDocument) -> frozenset[int]:
        """The window's records that a commit has read."""
        found: set[int] = set()
        for split in document.splits:
            topic_id = document.state.topic_ids.get(topic, "")
            partition = self.world.log.partitions.get((topic_id, split.topic_partition.partition))
            if split.topic_partition.topic == topic and partition is not None and not partition.was_cut:
                found |= self._promised(window, partition) & {
                    entry.number
                    for offset, entry in partition.history()
                    if split.starting_offset <= offset < split.stopping_offset
                }
        return frozenset(found)
