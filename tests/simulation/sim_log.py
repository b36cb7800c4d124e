"""SimLog: topics in memory, with all that Kafka does to them, and the port to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dagster_kafka_flip.errors import ClusterUnreachableError, TopicNotFoundError
from dagster_kafka_flip.source.split import (
    READ_COMMITTED,
    KafkaPartitionSplit,
    LogEnd,
    Position,
    RecordSearch,
    TimestampedOffset,
    TopicMetadata,
    TopicPartition,
    TopicSettings,
)

if TYPE_CHECKING:
    from tests.simulation.scheduler import Scheduler

T = TypeVar("T")

RECORD, MARKER, ABORTED, OPEN, COMPACTED = "record", "marker", "aborted", "open", "compacted"


# So many keys has each log; those of records are told by their numbers.
KEYS = 3


class Entry(NamedTuple):
    """What is at one offset. A record has a number that no other record of the world has."""

    number: int
    time_ms: int
    kind: str


@dataclass
class Partition:
    """The log of one topic partition.

    Attributes:
        home: The topic's id, and the partition's number.
        entries: The entries from the log start offset, `begin`, on.
        past: The entries that retention took, up to there.
        was_cut: Whether an unclean election took entries.
        epochs: The leaders' epochs with the offsets at which they began.
    """

    home: tuple[str, int]
    begin: int = 0
    leader: int = 0
    entries: list[Entry] = field(default_factory=list[Entry])
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    past: list[Entry] = field(default_factory=list[Entry])
    was_cut: bool = False
    was_compacted: bool = False

    @property
    def end(self) -> int:
        return self.begin + len(self.entries)

    @property
    def stable_end(self) -> int:
        opened = (self.begin + index for index, entry in enumerate(self.entries) if entry.kind == OPEN)
        return next(opened, self.end)

    def log_end(self, isolation_level: str) -> LogEnd:
        return LogEnd(self.stable_end if isolation_level == READ_COMMITTED else self.end, self.leader)

    def visible(self, start: int, stop: int) -> Iterator[tuple[int, Entry]]:
        """The committed records between two offsets."""
        for offset in range(max(start, self.begin), min(stop, self.end)):
            entry = self.entries[offset - self.begin]
            if entry.kind == RECORD:
                yield offset, entry

    def history(self) -> Iterator[tuple[int, Entry]]:
        """All committed records that there ever were, but those that an unclean election took."""
        first = self.begin - len(self.past)
        return (
            (offset, entry) for offset, entry in enumerate([*self.past, *self.entries], first) if entry.kind == RECORD
        )

    def compact(self) -> None:
        """Of each key, compaction leaves the last record alone."""
        self.was_compacted, later = True, set[int]()
        for index in reversed(range(self.stable_end - self.begin)):
            entry = self.entries[index]
            if entry.kind == RECORD and entry.number % KEYS in later:
                self.entries[index] = entry._replace(kind=COMPACTED)
            later |= {entry.number % KEYS} if entry.kind == RECORD else set()

    def cut_off(self, epoch: int, offset: int) -> int | None:
        """Where the log was cut off before an end that it had under a leader's epoch; None if it was not."""
        end = next((begun for later, begun in self.epochs if later > epoch), self.end)
        return end if end < offset else None


class SimLog:
    """A Kafka cluster.

    Attributes:
        gone: Numbers of records that consumers could see until retention or a deletion took them, in this order.
        homes: Topic id and partition of each number.
        places: Topic, partition, offset and time of each number.
        before: The record before each number that has the same key, in a log as it was then.
        partitions: All partitions that there ever were, by topic id and number.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.arrivals: dict[int, int] = {}
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, str] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.gone: list[int] = []
        self.homes: dict[int, tuple[str, int]] = {}
        self.places: dict[int, tuple[str, int, int, int]] = {}
        self.before: dict[int, int] = {}
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._numbers = 0

    def create(self, topic: str, partitions: int) -> None:
        self._numbers += 1
        self.topics[topic] = []
        self.ids[topic] = f"{topic}-id-{self._numbers}"
        self.add_partitions(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        there = self.topics[topic]
        for _ in range(partitions):
            there.append(Partition((self.ids[topic], len(there))))
            self.partitions[there[-1].home] = there[-1]

    def delete(self, topic: str) -> None:
        for partition in self.topics.pop(topic):
            self._lose(partition.entries)
        del self.ids[topic]

    def partition(self, tp: TopicPartition) -> Partition:
        """The log of a topic partition.

        Raises:
            TopicNotFoundError: There is none.
        """
        partitions = self.topics.get(tp.topic, ())
        if tp.partition >= len(partitions):
            msg = f"the topic partition {tp} does not exist. Create it, or correct the source, and run again"
            raise TopicNotFoundError(msg)
        return partitions[tp.partition]

    def append(self, partition: Partition, times: Iterable[int], kind: str = RECORD) -> None:
        for time_ms in times:
            self._numbers += 1
            self.before[self._numbers] = self._before(partition, kind)
            self.homes[self._numbers] = partition.home
            self.arrivals[self._numbers] = self._now_ms()
            topic = partition.home[0].partition("-id-")[0]
            self.places[self._numbers] = (topic, partition.home[1], partition.end, time_ms)
            partition.entries.append(Entry(self._numbers, time_ms, kind))

    def _before(self, partition: Partition, kind: str) -> int:
        """The record before the next one that has its key; 0 if there is none."""
        for entry in reversed(partition.entries):
            if (entry.number - self._numbers) % KEYS == 0 and entry.kind in {RECORD, OPEN}:
                # Of another producer's transaction, nobody knows how it will end.
                return entry.number if entry.kind in {RECORD, kind} else 0
        return 0

    def place(self, number: int | None) -> tuple[Any, ...]:
        """Topic, partition, offset and time of a record; Nones of what is no record."""
        return self.places.get(number or 0, (None,) * 4)

    def offset(self, number: int) -> int:
        """A record's offset, or -1, before all."""
        return -1 if number < 0 else self.places[number][2]

    def end_transaction(self, partition: Partition, now_ms: int, kind: str) -> None:
        """Commits (`RECORD`) or aborts (`ABORTED`) the open records, and adds the marker."""
        partition.entries = [each._replace(kind=kind) if each.kind == OPEN else each for each in partition.entries]
        self.append(partition, [now_ms], MARKER)

    def retain(self, partition: Partition, begin: int) -> None:
        """Retention deletes what is before an offset."""
        self._lose(partition.entries[: begin - partition.begin])
        partition.past += partition.entries[: begin - partition.begin]
        del partition.entries[: begin - partition.begin]
        partition.begin = begin

    def elect(self, partition: Partition, end: int) -> None:
        """Elects another leader, whose log ends earlier if the election is unclean."""
        partition.was_cut = partition.was_cut or end < partition.end
        del partition.entries[end - partition.begin :]
        partition.epochs = [(epoch, begun) for epoch, begun in partition.epochs if begun <= end]
        partition.leader += 1
        partition.epochs.append((partition.leader, partition.end))

    def _lose(self, entries: Iterable[Entry]) -> None:
        self.gone.extend(entry.number for entry in entries if entry.kind == RECORD)

    def read(self, split: KafkaPartitionSplit) -> list[int]:
        """The numbers of the records of a split, as Spark reads them: by the topic's name.

        Raises:
            LookupError: The log does not have these offsets.
        """
        partitions = self.topics.get(split.topic_partition.topic, ())
        if split.topic_partition.partition >= len(partitions):
            msg = f"UnknownTopicOrPartitionException: {split.topic_partition}"
            raise LookupError(msg)
        partition = partitions[split.topic_partition.partition]
        if split.starting_offset < partition.begin or split.stopping_offset > partition.end:
            msg = f"Some data may have been lost: {split} is not in [{partition.begin}, {partition.end})"
            raise LookupError(msg)
        return [entry.number for _, entry in partition.visible(split.starting_offset, split.stopping_offset)]


class SimCluster:
    """The port to a SimLog."""

    def __init__(self, log: SimLog, scheduler: Scheduler) -> None:
        self._log = log
        self._scheduler = scheduler

    def _ask(self, what: str, answer: Callable[[], T]) -> T:
        return self._scheduler.call(f"asks Kafka for {what}", answer, _unreachable)

    def cluster_id(self) -> str | None:
        return self._ask("its id", lambda: "simulated")

    def broker_addresses(self) -> tuple[str, ...]:
        return self._ask("the brokers", lambda: ("simulated:9092",))

    def describe_topics(self, topics: Collection[str], *, skip_missing: bool = False) -> dict[str, TopicMetadata]:
        def answer() -> dict[str, TopicMetadata]:
            found: dict[str, TopicMetadata] = {}
            for topic in topics:
                if topic in self._log.topics:
                    partitions = tuple(TopicPartition(topic, each.home[1]) for each in self._log.topics[topic])
                    found[topic] = TopicMetadata(topic, self._log.ids[topic], partitions, replicas=1)
                elif not skip_missing:
                    self._log.partition(TopicPartition(topic, 0))
            return found

        return self._ask("the topics", answer)

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ask("the beginnings", lambda: {tp: self._log.partition(tp).begin for tp in partitions})

    def end_offsets(self, partitions: Collection[TopicPartition], isolation_level: str) -> dict[TopicPartition, int]:
        return {tp: end.offset for tp, end in self.log_ends(partitions, isolation_level).items()}

    def log_ends(self, partitions: Collection[TopicPartition], isolation_level: str) -> dict[TopicPartition, LogEnd]:
        return self._ask(
            "the ends", lambda: {tp: self._log.partition(tp).log_end(isolation_level) for tp in partitions}
        )

    def cut_offsets(self, ends: Mapping[TopicPartition, LogEnd]) -> dict[TopicPartition, int | None]:
        def answer() -> dict[TopicPartition, int | None]:
            found: dict[TopicPartition, int | None] = {}
            for tp, end in ends.items():
                log = self._log.partition(tp)
                if (at := log.cut_off(end.leader_epoch or 0, end.offset)) is not None:
                    # Kafka forgets epochs together with the records.
                    found[tp] = None if at < log.begin else at
            return found

        return self._ask("the epochs", answer)

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], isolation_level: str
    ) -> dict[TopicPartition, int]:
        return {tp: found.offset for tp, found in self.records_at([timestamps_ms], isolation_level)[0].items()}

    def records_at(
        self, times: Sequence[Mapping[TopicPartition, int]], isolation_level: str
    ) -> list[dict[TopicPartition, TimestampedOffset]]:
        def first(tp: TopicPartition, time_ms: int) -> TimestampedOffset | None:
            log = self._log.partition(tp)
            # A look-up finds markers and records of aborted transactions, too.
            for offset in range(log.begin, log.log_end(isolation_level).offset):
                entry = log.entries[offset - log.begin]
                if entry.time_ms >= time_ms and entry.kind != COMPACTED:
                    return TimestampedOffset(offset, entry.time_ms)
            return None

        def answer() -> list[dict[TopicPartition, TimestampedOffset]]:
            asked = [{tp: first(tp, time_ms) for tp, time_ms in each.items()} for each in times]
            return [{tp: found for tp, found in each.items() if found is not None} for each in asked]

        return self._ask("records by their times", answer)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, TimestampedOffset]:
        def answer() -> dict[TopicPartition, TimestampedOffset]:
            logs = {tp: self._log.partition(tp) for tp in partitions}
            times = {
                tp: max((entry.time_ms, -log.begin - index) for index, entry in enumerate(log.entries))
                for tp, log in logs.items()
                if log.entries
            }
            return {tp: TimestampedOffset(-offset, time_ms) for tp, (time_ms, offset) in times.items()}

        return self._ask("the highest times", answer)

    def search_records(
        self, searches: Collection[RecordSearch], _: str
    ) -> dict[RecordSearch, TimestampedOffset | None]:
        def first(search: RecordSearch) -> TimestampedOffset | None:
            for offset, entry in self._log.partition(search.topic_partition).visible(search.start, search.stop):
                if entry.time_ms >= search.timestamp_ms:
                    return TimestampedOffset(offset, entry.time_ms)
            return None

        return self._ask("single records", lambda: {search: first(search) for search in searches})

    def topic_settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        def settings(topic: str) -> TopicSettings:
            is_compacted = any(partition.was_compacted for partition in self._log.topics.get(topic, ()))
            return TopicSettings("CreateTime", None, is_limited_by_size=False, is_compacted=is_compacted)

        return self._ask("the settings", lambda: {topic: settings(topic) for topic in topics})

    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> dict[TopicPartition, int]:
        group = self._log.groups.setdefault(group_id, {})
        return self._ask("the group's offsets", lambda: {tp: group[tp] for tp in partitions if tp in group})

    def commit_offsets(self, position: Position, group_id: str) -> None:
        group = self._log.groups.setdefault(group_id, {})
        self._ask("a commit of the group's offsets", lambda: group.update(position))

    def close(self) -> None:
        """Nothing to close."""


def _unreachable() -> Exception:
    return ClusterUnreachableError("Kafka at simulated:9092 does not answer. Nothing was written. Run again")
