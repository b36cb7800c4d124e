"""The logs in which windows are looked for, as of one plan, and its batched lookups by timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.sample import LOOKED_THROUGH, RecordSearch, TimestampedOffset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.source.log import Cluster, TopicSettings
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.window import Windows

Times = dict["TopicPartition", int]


class LookUps:
    """Lookups by timestamp in the logs of one plan.

    Kafka returns the first *entry* at or after a timestamp: a record, a transaction marker or an aborted record. All
    records before it are older, so an entry is a valid start. It is not a valid stop: older records may follow a
    marker. Only reading shows whether an entry is a record.

    Args:
        cluster: The cluster.
        isolation_level: With `read_committed`, results are before the last stable offset.
        beginning: Start offset of each log.
        end: End offset of each log. Results are before it.
    """

    def __init__(
        self,
        cluster: Cluster,
        isolation_level: str,
        beginning: Position,
        end: Position,
    ) -> None:
        self.partitions = tuple(end)
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._beginning = beginning
        self._end = end
        self._entries: dict[tuple[TopicPartition, int], int | None] = {}
        self._records: dict[tuple[TopicPartition, int], TimestampedOffset | None] = {}

    def prefetch(self, entries: Iterable[Mapping[TopicPartition, int]], records: Iterable[Times] = ()) -> None:
        """Adds lookups for some timestamps."""
        records = tuple(records)
        self._ask_for_entries([*entries, *records])
        self._search({(tp, _time(ms)) for times in records for tp, ms in times.items()} - self._records.keys())

    def entry(self, tp: TopicPartition, ms: int) -> int:
        """The first entry at or after a timestamp: all earlier records are older. The end offset if there is none."""
        key = (tp, _time(ms))
        if key not in self._entries:
            self.prefetch([{tp: ms}])
        found = self._entries[key]
        return self._end[tp] if found is None else min(found, self._end[tp])

    def record(self, tp: TopicPartition, ms: int) -> TimestampedOffset | None:
        """The first consumer-visible record at or after a timestamp.

        None if there is none before the end offset or within the search limit.
        """
        key = (tp, _time(ms))
        if key not in self._records:
            self.prefetch([], [{tp: ms}])
        return self._records[key]

    def _ask_for_entries(self, wanted: Iterable[Mapping[TopicPartition, int]]) -> None:
        asked: list[Times] = []
        known = set(self._entries)
        for times in wanted:
            new = {tp: _time(ms) for tp, ms in times.items() if (tp, _time(ms)) not in known}
            if new:
                asked.append(new)
                known.update(new.items())
        missed: list[tuple[TopicPartition, int]] = []
        for times, found in zip(asked, self._cluster.records_at(asked, self._isolation_level), strict=True):
            self._entries.update({(tp, ms): found[tp].offset if tp in found else None for tp, ms in times.items()})
            missed += [
                (tp, ms) for tp, ms in times.items() if tp not in found and 0 < self._beginning[tp] < self._end[tp]
            ]
        if missed:
            # If the head of a segment was deleted and timestamps are out of order, a broker may return no result for a
            # timestamp although later segments have one.
            highest = self._cluster.max_timestamps({tp for tp, _ in missed})
            self._entries.update(
                {(tp, ms): self._beginning[tp] for tp, ms in missed if tp in highest and highest[tp].timestamp_ms >= ms}
            )

    def _search(self, wanted: Iterable[tuple[TopicPartition, int]]) -> None:
        searches: dict[tuple[TopicPartition, int], RecordSearch] = {}
        for tp, ms in wanted:
            start, end = self.entry(tp, ms), self._end[tp]
            # A number of offsets, not seconds, so that the result depends only on the log.
            stop = min(end, start + LOOKED_THROUGH)
            self._records[tp, ms] = None
            if start < stop:
                searches[tp, ms] = RecordSearch(tp, start, stop, ms)
        if searches:
            found = self._cluster.search_records(set(searches.values()), self._isolation_level)
            self._records.update({key: found[search] for key, search in searches.items()})


def _time(ms: int) -> int:
    return max(0, ms)


# The clock of a new leader, and so its timestamps, may be behind the previous leader's.
_BROKER_CLOCKS = timedelta(seconds=10) // timedelta(milliseconds=1)
# Tolerated clock difference before a record counts as being in the future.
_CLOCK_SKEW = timedelta(minutes=5) // timedelta(milliseconds=1)


@dataclass(frozen=True)
class WindowLogs:
    """The logs of one plan.

    Attributes:
        rules: The rules that assign records to windows.
        now: The current time, in milliseconds since the epoch.
        look: The lookups by timestamp.
        beginning: Start offset of each log.
        end: End offset of each for the source's isolation level.
        high_watermarks: High watermark of each.
        settings: Settings of the topics that this client may see.
        set_by_broker: Topics whose records can't be late, because brokers set their timestamps on arrival.
    """

    rules: Windows
    now: int
    look: LookUps
    beginning: Position
    end: Position
    high_watermarks: Mapping[TopicPartition, int]
    settings: Mapping[str, TopicSettings]
    set_by_broker: frozenset[str]

    def lateness(self, tp: TopicPartition) -> int | None:
        """How late a record may be, in milliseconds; None if unlimited."""
        lateness = self.rules.lateness_ms
        if tp.topic not in self.set_by_broker:
            return lateness
        return _BROKER_CLOCKS if lateness is None else min(lateness, _BROKER_CLOCKS)

    def stop_time(self, tp: TopicPartition, bound: int) -> int | None:
        """The timestamp whose first record is the stop of a window with the given end; None for the end of the log."""
        lateness = self.lateness(tp)
        return None if lateness is None else bound + lateness

    def is_from_future(self, record: TimestampedOffset) -> bool:
        """Whether a record's timestamp is later than now."""
        return record.timestamp_ms > self.now + _CLOCK_SKEW

    def bound(self, tp: TopicPartition, ms: int | None) -> int:
        """The first record at or after a timestamp; the end offset if there is none, or if it is unreliable."""
        record = None if ms is None else self.look.record(tp, ms)
        return self.end[tp] if record is None or self.is_from_future(record) else record.offset

    def may_be_gone(self, tp: TopicPartition, ms: int) -> bool:
        """Whether a log may have had records at or after a timestamp that were deleted."""
        first = self.look.record(tp, 0)
        if first is not None:
            return first.timestamp_ms >= ms
        # The log has no records to compare with; only the topic's retention shows whether it may have had one.
        settings = self.settings.get(tp.topic)
        return settings is None or not settings.keeps(ms, self.now)
