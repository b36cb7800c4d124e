"""Progress: what one lane of a sink has published, the topic with it, its checks, and the plan of what is left."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import TypeAdapter

from dagster_kafka_flip.errors import SinkProgressError, SinkProgressUnknownError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.split import READ_COMMITTED, READ_UNCOMMITTED, KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.source.cluster import KafkaCluster, LogEnd
    from dagster_kafka_flip.telemetry.repeatedly import Log

_MARK = "dagster-kafka-flip-sink"
_VERSION = 1

SchemaIds: TypeAlias = "tuple[int | None, int | None]"
"""Ids of the registered schemas of key and value; None without a registry."""


@dataclass(frozen=True)
class Origin:
    """Where a sink started: behind a version, or with all rows of one."""

    version: int
    snapshot: bool

    @property
    def before(self) -> int:
        """The version that counts as published before the first record."""
        return self.version - 1 if self.snapshot else self.version


@dataclass(frozen=True)
class Progress:
    """What one lane has published.

    Attributes:
        table: The table, for messages.
        version: All of the lane's rows up to this table version are published.
        rows: Number of rows published of the next version, in the sink's order.
        types: The table's columns that the last rows were serialized with, as Spark's JSON; empty before the first row.
        settings: The sink's settings that decide lane and order of a row.
        digest: A checksum of the rows' keys and values: another run must find the same rows.
        schema_ids: Ids of the registered schemas that the last rows were serialized with.
        topic_partitions: The number of the topic's topic partitions; None if it does not matter.
        left_out: Number of rows that were left out since the sink began.
        commit: What tells the commit of `version` from another one of this number; None if unknown.
    """

    lane: int
    lanes: int
    topic: str
    topic_id: str | None
    table: str
    table_id: str
    origin: Origin
    version: int
    rows: int
    types: str
    settings: str
    digest: int = 0
    schema_ids: SchemaIds = (None, None)
    topic_partitions: int | None = None
    left_out: int = 0
    commit: str | None = None

    @property
    def at(self) -> tuple[int, int]:
        """The version, and the rows of the next."""
        return self.version, self.rows

    @property
    def reached(self) -> int:
        """The last version of which rows are published, perhaps only some."""
        return self.version + (self.rows > 0)

    def to_bytes(self) -> bytes:
        return json.dumps({_MARK: _VERSION, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, record: bytes, where: str) -> Progress:
        try:
            document: dict[str, Any] = json.loads(record)
            if document[_MARK] != _VERSION:
                raise SinkProgressError(
                    f"{where}: the progress has version {document[_MARK]}, but this package reads version {_VERSION}",
                    "Update dagster-kafka-flip",
                )
            return _PROGRESS.validate_python(document)
        except (ValueError, KeyError, TypeError) as error:
            raise SinkProgressError(
                f"{where}: the record is not a sink's progress",
                f"The progress topic must belong to one sink alone. {NOT_YET}",
            ) from error


_PROGRESS = TypeAdapter(Progress)

NOT_YET = "If the sink has not published yet, you can also set another progress_topic; else it would begin anew"
ANOTHER = "another transactional_id_prefix (and another progress_topic, if you have set one)"
# A snapshot has no deletes: rows that were deleted meanwhile would stay in a topic that has them.
ANEW = (
    f'publish the table under {ANOTHER} with start="snapshot", to an empty topic: a snapshot has no tombstones of rows '
    "that were deleted earlier"
)


def told(progress: Progress | None) -> str:
    """How far a lane is, for messages."""
    if progress is None:
        return "no progress"
    if progress.at == (progress.origin.before, 0):
        return "nothing yet"
    return f"version {progress.version} and {counted(progress.rows, 'row')} of the next"


def check_sink(found: Mapping[int, Progress], prefix: str, lanes: int, topic: str, topic_id: str | None) -> None:
    """Checks that a sink still has the lanes that it had, and publishes to the topic that it published to."""
    # The lane that is least far first: its version is the one up to which all rows are there.
    for progress in sorted(found.values(), key=lambda progress: progress.version):
        if progress.lanes != lanes:
            raise SinkProgressError(
                f"the sink {prefix} has published with {progress.lanes} lanes up to table version {progress.version}, "
                f"but lanes is {lanes} now: keys would change lanes, and rows would be lost or doubled",
                f"Set lanes={progress.lanes}; or publish under {ANOTHER}, with a DeltaSource that starts where this "
                "sink ends",
            )
        if progress.topic != topic:
            raise SinkProgressError(
                f"the sink {prefix} has published {progress.table} up to version {progress.version} to the topic "
                f"{progress.topic}, but its topic is {topic} now, which would get only later changes",
                f"Give the sink of {topic} its own transactional_id_prefix"
                f"{_starting_behind(progress, f'to continue where {progress.topic} ends,')}",
            )
        if None not in (progress.topic_id, topic_id) and progress.topic_id != topic_id:
            raise SinkProgressError(
                f"the topic {topic} was recreated: its id is {topic_id}, but the sink {prefix} has published "
                f"{progress.table} up to version {progress.version} to the topic with the id {progress.topic_id}. The "
                "new topic would get only later changes",
                f"To publish all rows to it, {ANEW}; if later changes are enough, set {ANOTHER}"
                f"{_starting_behind(progress, 'and')}",
            )


def _starting_behind(progress: Progress, when: str) -> str:
    """Advice to continue behind a progress; none in a snapshot, whose rest is more than a version's changes."""
    if progress.origin.snapshot and progress.version < progress.origin.version:
        return ""
    return f"; {when} set start={progress.version + 1} in its DeltaSource"


def check_table(found: Mapping[int, Progress], prefix: str, table: str, table_id: str) -> None:
    for progress in sorted(found.values(), key=lambda progress: progress.version):
        if progress.table_id != table_id:
            raise SinkProgressError(
                f"the sink {prefix} has published the table {progress.table} (id {progress.table_id}) up to version "
                f"{progress.version}, but {table} has the id {table_id}: it is another table, or was recreated",
                f"Correct the table, or {ANEW}"
                f"{_starting_behind(progress, 'if CREATE OR REPLACE TABLE made it, whose versions continue, instead')}",
            )


def check_same_history(
    found: Mapping[int, Progress], prefix: str, newest: int, mark_of: Callable[[int], str | None]
) -> None:
    """Checks that the versions that a sink has published are still those of the table."""
    for progress in sorted(found.values(), key=lambda progress: progress.version):
        if progress.reached > newest:
            now = f"its newest version is {newest}"
        elif progress.commit is None or mark_of(progress.version) in {None, progress.commit}:
            continue
        else:
            now = f"version {progress.version} is another commit now"
        raise SinkProgressError(
            f"the sink {prefix} has published {progress.table} up to version {progress.reached}, but {now}: the table "
            "was replaced with an older copy",
            f"To go on, {ANEW}",
        )


def check_known(
    found: Mapping[int, Progress], prefix: str, progress_topic: str, known: Mapping[int, tuple[int, int]]
) -> None:
    """Checks that no progress was lost since an earlier run."""
    for lane in lanes_behind(found, known):
        version, rows = known[lane]
        start = min(version for version, _ in known.values()) + 1
        is_part = any(each > (start - 1, 0) for each in known.values())
        doubled = f" (rows of version {start} and later that are in the topic will be published twice)" * is_part
        raise SinkProgressError(
            f"an earlier run of the sink {prefix} reached table version {version} and {counted(rows, 'row')} of the "
            f"next (lane {lane}), but the progress topic {progress_topic} has {told(found.get(lane))}: it was deleted, "
            "lost records, is on another cluster, or is not the one of that run. This run would publish rows twice",
            f"Set progress_topic back, if it changed. Else set {ANOTHER}; to continue after the earlier run, unless it "
            f"ended within a snapshot, also set start={start} in the DeltaSource{doubled}; to publish all rows again, "
            'start="snapshot"',
        )


def check_all_there(found: Mapping[int, Progress], prefix: str, lanes: int, progress_topic: str) -> None:
    """Checks that no lane lost its progress: a sink writes that of all lanes before the first row of any."""
    furthest = max(found.values(), key=lambda progress: progress.at, default=None)
    missing = [lane for lane in range(lanes) if lane not in found]
    if not missing or furthest is None or furthest.at == (furthest.origin.before, 0):
        return
    raise SinkProgressError(
        f"the progress topic {progress_topic} has no progress of lane {missing[0]} of the sink {prefix}, but lane "
        f"{furthest.lane} reached table version {furthest.version}: records of the topic were deleted. This run would "
        "publish rows twice",
        f"Set {ANOTHER}"
        f"{_starting_behind(furthest, f'if the topic has all rows up to version {furthest.version}, also')}",
    )


def lanes_behind(found: Mapping[int, Progress], known: Mapping[int, tuple[int, int]]) -> list[int]:
    """The lanes whose progress seems to be lost since an earlier run; it may only not be visible yet."""
    return [lane for lane, reached in sorted(known.items()) if lane not in found or found[lane].at < reached]


def check_settings(found: Sequence[Progress], prefix: str, settings: str) -> None:
    """Checks, in the middle of a version, that the rest would be published in the same order and lanes."""
    ended = min(progress.version for progress in found)
    for progress in found:
        # A lane that has not begun the version still has the settings of an earlier one.
        if progress.at > (ended, 0) and progress.settings != settings:
            there = counted(progress.rows, "row") if progress.version == ended else "all of it"
            raise SinkProgressError(
                f"the sink {prefix} has published table version {ended + 1} in part (lane {progress.lane}: {there}) "
                "with other settings of key, value, headers, timestamp, topic, partition, deletes or content: the rest "
                "would not follow in the same order",
                f"Set them back, and run with stop={ended + 1} until it is finished; then change them. If a row of it "
                "can't be published with them, leave it out: tolerate its error, or set a dead_letter_topic",
            )


def are_even(found: Sequence[Progress]) -> bool:
    """Whether all lanes are at the end of the same version."""
    return len({progress.version for progress in found}) == 1 and not any(progress.rows for progress in found)


@dataclass(frozen=True)
class Segment:
    """Table versions that one query reads: their changes, or all rows of one version.

    Attributes:
        types: As of Progress, of a version that was published in part; None for the columns of the last version.
        schema_ids: Likewise; None for those that are registered now.
    """

    first: int
    last: int
    is_snapshot: bool = False
    types: str | None = None
    schema_ids: SchemaIds = (None, None)

    def __str__(self) -> str:
        if self.is_snapshot:
            return f"the snapshot of version {self.last}"
        return f"version {self.last}" if self.first == self.last else f"versions {self.first} to {self.last}"


def plan_segments(found: Sequence[Progress], origin: Origin, last: int) -> list[Segment]:
    """What to read until all lanes are at the same version.

    Lanes that are not at the same version, or in the middle of one, first follow the path of the furthest lane: with
    its columns and schemas, because without a key the lane and the order of a row depend on them.
    """
    start = min(progress.version for progress in found) + 1
    segments: list[Segment] = []
    furthest = max(found, key=lambda progress: progress.at)
    as_before: tuple[str | None, SchemaIds] = (furthest.types, furthest.schema_ids)
    if are_even(found):
        as_before = (None, (None, None))
    if origin.snapshot and start <= origin.version <= last:
        segments.append(Segment(origin.version, origin.version, True, *as_before))
        start = origin.version + 1
    reached = min(last, furthest.reached)
    if start <= reached and not are_even(found):
        segments.append(Segment(start, reached, False, *as_before))
        start = reached + 1
    if start <= last:
        segments.append(Segment(start, last))
    return segments


# Compacted soon, because each run reads it: closed segments of a day, and a hundredth of stale records.
_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "86400000", "min.cleanable.dirty.ratio": "0.01"}

# A lane's last record is near the end: behind it are only markers, and what runs aborted.
_NEAR_THE_END = 20

_MARKER_SECONDS = 5.0
_LOOK_SECONDS = 0.02


class ProgressTopic:
    """The compacted topic that holds a sink's progress, one topic partition for each lane."""

    def __init__(self, cluster: KafkaCluster, sink: KafkaSink) -> None:
        self._cluster, self._sink = cluster, sink
        self.name = sink.progress_name
        self._read_up_to: dict[TopicPartition, LogEnd] = {}
        self._found: dict[int, Progress] = {}

    def prepare(self, replicas: int, log: Log) -> None:
        """Creates the topic if it is missing, and checks it."""
        lanes = self._sink.lanes
        described = self._cluster.describe_topics([self.name], skip_missing=True).get(self.name)
        if described is None:
            # A topic of one replica says nothing about what others are to have.
            self._cluster.create_topic(self.name, lanes, _SETTINGS, replicas if replicas > 1 else -1)
            return
        if described.replicas < replicas:
            log.warning(
                "the progress topic %s has %s, but the topic %s has %d: if their disks are lost, the sink must start "
                "over. Add replicas to the progress topic (kafka-reassign-partitions)",
                self.name,
                counted(described.replicas, "replica"),
                self._sink.topic,
                replicas,
            )
        if len(described.partitions) < lanes:
            raise SinkProgressError(
                f"the progress topic {self.name} has {counted(len(described.partitions), 'topic partition')}, but the "
                f"sink {self._sink.transactional_id_prefix} has {counted(lanes, 'lane')}, and each needs its own",
                f"Set lanes={len(described.partitions)}; or, if the sink has not published yet, add topic partitions "
                f"to {self.name}",
            )
        policy = self._cluster.cleanup_policy(self.name)
        if policy != "compact":
            raise SinkProgressError(
                f"the progress topic {self.name} has cleanup.policy={policy}, so the progress would be deleted, and "
                "rows published again",
                f"Set cleanup.policy=compact on it. {NOT_YET}",
            )

    def read(self, *, settled: bool) -> dict[int, Progress]:
        """Returns the progress of each lane that has some: what is open does not count, or (`settled`) is an error."""
        partitions = [TopicPartition(self.name, lane) for lane in range(self._sink.lanes)]
        log_ends = self._settled_ends(partitions) if settled else self._cluster.log_ends(partitions, READ_COMMITTED)
        if log_ends != self._read_up_to:
            self._found = self._last_records(partitions, {tp: end.offset for tp, end in log_ends.items()})
            self._read_up_to = log_ends
        return dict(self._found)

    def _last_records(
        self, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> dict[int, Progress]:
        beginnings = self._cluster.beginning_offsets(partitions)
        found: dict[int, Progress] = {}
        near = {tp: max(beginnings[tp], ends[tp] - _NEAR_THE_END) for tp in partitions}
        for starts in (near, beginnings):
            missing = [tp for tp in partitions if tp.partition not in found and starts[tp] < ends[tp]]
            found |= self._read([KafkaPartitionSplit(tp, starts[tp], ends[tp]) for tp in missing])
        for tp in partitions:
            # Compaction keeps the first offset: only retention or a person deletes records there.
            if tp.partition not in found and beginnings[tp] > 0:
                raise SinkProgressError(
                    f"{tp} has no progress of the sink {self._sink.transactional_id_prefix}, and begins at offset "
                    f"{beginnings[tp]}: what was before was deleted. This run would publish rows twice",
                    f"Set {ANOTHER}, and start in the DeltaSource if the topic already has rows of the table",
                )
        return found

    def _read(self, ranges: Collection[KafkaPartitionSplit]) -> dict[int, Progress]:
        found: dict[int, Progress] = {}
        if not ranges:
            return found
        for record in self._cluster.records(list(ranges), READ_COMMITTED):
            lane, value = record.partition() or 0, record.value()
            where = f"{self.name}-{lane} offset {record.offset()}"
            if record.key() != self._sink.transactional_id(lane).encode() or not isinstance(value, bytes):
                raise SinkProgressError(
                    f"{where}: the progress topic has a record that does not belong to the sink "
                    f"{self._sink.transactional_id_prefix}",
                    f"Each sink needs its own progress topic: correct transactional_id_prefix. {NOT_YET}",
                )
            found[lane] = Progress.from_bytes(value, where)
        return found

    def _settled_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        deadline = time.monotonic() + _MARKER_SECONDS
        while True:
            stable = self._cluster.log_ends(partitions, READ_COMMITTED)
            ends = self._cluster.end_offsets(partitions, READ_UNCOMMITTED)
            waiting = [tp for tp in partitions if stable[tp].offset < ends[tp]]
            if not waiting:
                return stable
            if time.monotonic() >= deadline:
                tp = waiting[0]
                raise SinkProgressUnknownError(
                    f"{tp}: a transaction of another producer is open at offset {stable[tp].offset} (the log ends at "
                    f"{ends[tp]}), so the progress is unknown",
                    "If another run of this sink has just started, leave it to that run; otherwise find the producer "
                    "that writes to this topic",
                )
            # Brokers may need a moment between the end of a transaction and its marker.
            time.sleep(_LOOK_SECONDS)
