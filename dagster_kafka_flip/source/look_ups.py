"""LookUps: entries and records of logs at points in time, each asked for once, and all of a plan at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.source.sample import RecordSearch, TimestampedOffset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.source.log import Cluster
    from dagster_kafka_flip.source.split import Position, TopicPartition

Times = dict["TopicPartition", int]


class LookUps:
    """Look-ups by time in the logs of one plan.

    Kafka finds the first *entry* at or after a time: a record, a transaction's marker, or a record that was aborted.
    No record before it is as late. So a start may be an entry. A stop may not: behind a marker there may be any number
    of older records. Whether an entry is a record only reading tells.

    Args:
        cluster: Where the logs are.
        isolation_level: Under `read_committed` nothing from the last stable offset on is found.
        beginning: Where each log begins.
        end: Where each ends. Nothing is found from there on.
        looked_through: How many offsets from an entry on are looked through for a record at most. A number of offsets
            and not of seconds, so that what is found depends on the log alone. None for no limit.
    """

    def __init__(
        self,
        cluster: Cluster,
        isolation_level: str,
        beginning: Position,
        end: Position,
        looked_through: int | None,
    ) -> None:
        self.partitions = tuple(end)
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._beginning = beginning
        self._end = end
        self._looked_through = looked_through
        self._entries: dict[tuple[TopicPartition, int], int | None] = {}
        self._records: dict[tuple[TopicPartition, int], TimestampedOffset | None] = {}

    def prefetch(self, entries: Iterable[Mapping[TopicPartition, int]], records: Iterable[Times] = ()) -> None:
        """Asks for what is at some times.

        Args:
            entries: Times whose entries are wanted.
            records: Times whose records are wanted.
        """
        records = tuple(records)
        self._ask_for_entries([*entries, *records])
        self._search({(tp, _time(ms)) for times in records for tp, ms in times.items()} - self._records.keys())

    def entry(self, tp: TopicPartition, ms: int) -> int:
        """The first entry at or after a time: all records before it are older. The end if there is none."""
        key = (tp, _time(ms))
        if key not in self._entries:
            self.prefetch([{tp: ms}])
        found = self._entries[key]
        return self._end[tp] if found is None else min(found, self._end[tp])

    def record(self, tp: TopicPartition, ms: int) -> TimestampedOffset | None:
        """The first record at or after a time that a consumer gets to see.

        None if there is none before the end, or none among the offsets that are looked through.
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
            # Where the head of a segment was deleted and times are out of order, a broker may answer that there is
            # nothing at or after a time although later segments have something.
            highest = self._cluster.max_timestamps({tp for tp, _ in missed})
            self._entries.update(
                {(tp, ms): self._beginning[tp] for tp, ms in missed if tp in highest and highest[tp].timestamp_ms >= ms}
            )

    def _search(self, wanted: Iterable[tuple[TopicPartition, int]]) -> None:
        searches: dict[tuple[TopicPartition, int], RecordSearch] = {}
        for tp, ms in wanted:
            start, end = self.entry(tp, ms), self._end[tp]
            stop = end if self._looked_through is None else min(end, start + self._looked_through)
            self._records[tp, ms] = None
            if start < stop:
                searches[tp, ms] = RecordSearch(tp, start, stop, ms)
        if searches:
            found = self._cluster.search_records(set(searches.values()), self._isolation_level)
            self._records.update({key: found[search] for key, search in searches.items()})


def _time(ms: int) -> int:
    return max(0, ms)
