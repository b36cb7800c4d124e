"""LookUps: the records at points in time, each asked for once, and all of a plan at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.log import Cluster
    from dagster_kafka_flip.source.sample import TimestampedOffset
    from dagster_kafka_flip.source.split import TopicPartition


class LookUps:
    """Look-ups by time in the logs of one plan.

    Args:
        cluster: Where the logs are.
        isolation_level: Under `read_committed` nothing from the last stable offset on is found.
        partitions: The topic partitions.
    """

    def __init__(self, cluster: Cluster, isolation_level: str, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = partitions
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._found: dict[tuple[TopicPartition, int], TimestampedOffset | None] = {}

    def prefetch(self, wanted: Iterable[Mapping[TopicPartition, int]]) -> None:
        """Asks for some times of each topic partition."""
        asked: list[dict[TopicPartition, int]] = []
        known = set(self._found)
        for times in wanted:
            new = {tp: max(0, ms) for tp, ms in times.items() if (tp, max(0, ms)) not in known}
            if new:
                asked.append(new)
                known.update(new.items())
        for times, found in zip(asked, self._cluster.records_at(asked, self._isolation_level), strict=True):
            self._found.update({(tp, ms): found.get(tp) for tp, ms in times.items()})

    def found(self, tp: TopicPartition, ms: int) -> TimestampedOffset | None:
        """The first record at or after a time; None if there is none."""
        key = (tp, max(0, ms))
        if key not in self._found:
            self.prefetch([{tp: ms}])
        return self._found[key]

    def offset(self, tp: TopicPartition, ms: int, end: int) -> int:
        """Its offset; the end that was read before, where there is none or it came after that."""
        found = self.found(tp, ms)
        return end if found is None else min(found.offset, end)
