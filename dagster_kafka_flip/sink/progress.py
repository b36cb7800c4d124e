"""Progress: what one lane of a sink has published, as its progress topic has it; and the plan of what is left."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import TypeAdapter

from dagster_kafka_flip.errors import SinkProgressError
from dagster_kafka_flip.settings.names import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MARK = "dagster-kafka-flip-sink"
_VERSION = 1

SchemaIds: TypeAlias = "tuple[int | None, int | None]"
"""Ids of the registered schemas of key and value; None without a registry."""


@dataclass(frozen=True)
class Origin:
    """Where a sink started.

    Attributes:
        version: The last table version that is not published, or the version of the snapshot.
        snapshot: Whether all rows of this version are published, before the changes of later ones.
    """

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
        lane: Its number.
        topic_id: The topic's id (KIP-516); None if unknown.
        table: The table, for messages.
        version: All of the lane's rows up to this table version are published.
        rows: Number of rows published of the next version, in the sink's order.
        digest: A checksum of their keys and values: another run must find the same rows.
        columns: The table's columns that the last rows were serialized with.
        settings: The sink's settings that decide lane and order of a row.
        schema_ids: Ids of the registered schemas that the last rows were serialized with.
        topic_partitions: The number of the topic's topic partitions; None if unknown.
        types: The types of `columns`, as Spark's JSON; None if unknown.
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
    columns: tuple[str, ...]
    settings: str
    digest: int = 0
    schema_ids: SchemaIds = (None, None)
    topic_partitions: int | None = None
    types: str | None = None
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
        """Serializes the progress for the progress topic."""
        return json.dumps({_MARK: _VERSION, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, record: bytes, where: str) -> Progress:
        """Reads the result of `to_bytes`."""
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
    """Checks that a sink still publishes the table that it published."""
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
        progress, (version, rows) = found.get(lane), known[lane]
        has = (
            "no progress"
            if progress is None
            else f"version {progress.version} and {counted(progress.rows, 'row')} of the next"
        )
        start = min(version for version, _ in known.values()) + 1
        is_part = any(each > (start - 1, 0) for each in known.values())
        doubled = f" (rows of version {start} and later that are in the topic will be published twice)" * is_part
        raise SinkProgressError(
            f"an earlier run of the sink {prefix} reached table version {version} and {counted(rows, 'row')} of the "
            f"next (lane {lane}), but the progress topic {progress_topic} has {has}: it was deleted, lost records, "
            "is on another cluster, or is not the one of that run. This run would publish rows twice",
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
        "Set another transactional_id_prefix"
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
    """Table versions that one query reads.

    Attributes:
        is_snapshot: Whether to read all rows of the version, not its changes.
        columns: The table's columns; None for those of the last version.
        schema_ids: Ids of the registered schemas of key and value; None for those that are registered now.
        types: The types of `columns`, as Spark's JSON; None for those of the last version.
    """

    first: int
    last: int
    is_snapshot: bool = False
    columns: tuple[str, ...] | None = None
    schema_ids: SchemaIds = (None, None)
    types: str | None = None

    def __str__(self) -> str:
        if self.is_snapshot:
            return f"the snapshot of version {self.last}"
        return f"version {self.last}" if self.first == self.last else f"versions {self.first} to {self.last}"


def plan_segments(found: Sequence[Progress], origin: Origin, last: int) -> list[Segment]:
    """Returns what to read until all lanes are at the same version.

    Lanes that are not at the same version, or in the middle of one, first follow the path of the furthest lane: with
    its columns and schemas, because without a key the lane and the order of a row depend on them.
    """
    start = min(progress.version for progress in found) + 1
    segments: list[Segment] = []
    furthest = max(found, key=lambda progress: progress.at)
    as_before: dict[str, Any] = {}
    if not are_even(found):
        as_before = {"columns": furthest.columns, "schema_ids": furthest.schema_ids, "types": furthest.types}
    if origin.snapshot and start <= origin.version <= last:
        segments.append(Segment(origin.version, origin.version, is_snapshot=True, **as_before))
        start = origin.version + 1
    reached = min(last, furthest.reached)
    if as_before and start <= reached:
        segments.append(Segment(start, reached, **as_before))
        start = reached + 1
    if start <= last:
        segments.append(Segment(start, last))
    return segments
