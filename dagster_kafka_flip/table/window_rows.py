"""Which rows of a table are those of windows: by conditions, and by the cluster and topics that they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.errors import DocumentVersionError, StreamOverlapError, TopicRecreatedError
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS, instant, utc_time
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.history import why_elsewhere
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.table.commit import Commit

# LandedLogs: the cluster and topics of the rows in a table of windows, stored in table properties.
#
# Commits contain this too, but Delta removes old commits, and then a recreated or removed topic would go unnoticed.
# Properties stay. Each topic has its own property, so two concurrent runs can both add topics.
CLUSTER_PROPERTY = "dagster-kafka-flip.windows.cluster"
TOPIC_PROPERTY = "dagster-kafka-flip.windows.topic."


@dataclass(frozen=True)
class LandedTopic:
    """A topic that a table of windows has, or may have, rows of.

    Windows that begin before `made_again_ms` may have rows of an earlier topic with the same name.
    """

    stream: str
    partitions: frozenset[int]
    topic_id: str | None = None
    made_again_ms: int | None = None

    def to_text(self) -> str:
        return json.dumps(
            {
                "stream": self.stream,
                "partitions": sorted(self.partitions),
                **({} if self.topic_id is None else {"id": self.topic_id}),
                **({} if self.made_again_ms is None else {"made_again": self.made_again_ms}),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, topic: str, text: str) -> LandedTopic:
        try:
            found: dict[str, Any] = json.loads(text)
            return cls(
                found["stream"], frozenset(map(int, found["partitions"])), found.get("id"), found.get("made_again")
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DocumentVersionError(
                f"the table property {TOPIC_PROPERTY}{topic} can't be read ({type(error).__name__}: {error}): it was "
                "edited manually, or written by a newer dagster-kafka-flip",
                "Upgrade dagster-kafka-flip, or set the property back (DESCRIBE HISTORY shows who changed it)",
            ) from error


@dataclass(frozen=True)
class LandedLogs:
    """The logs of the rows in a table of windows."""

    cluster_id: str | None = None
    topics: Mapping[str, LandedTopic] = field(default_factory=dict[str, LandedTopic])

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LandedLogs:
        topics = {
            topic: LandedTopic.from_text(topic, text)
            for key, text in properties.items()
            if (topic := key.removeprefix(TOPIC_PROPERTY)) != key
        }
        return cls(properties.get(CLUSTER_PROPERTY), topics)

    def properties(self) -> dict[str, str]:
        cluster = {} if self.cluster_id is None else {CLUSTER_PROPERTY: self.cluster_id}
        return cluster | {f"{TOPIC_PROPERTY}{name}": topic.to_text() for name, topic in self.topics.items()}

    @property
    def topic_ids(self) -> dict[str, str]:
        return {name: topic.topic_id for name, topic in self.topics.items() if topic.topic_id is not None}

    def partitions(self, topics: Sequence[str] | None = None) -> set[TopicPartition]:
        return {
            TopicPartition(name, partition)
            for name, topic in self.topics.items()
            if topics is None or name in topics
            for partition in topic.partitions
        }

    def check_stream(self, stream: str, topics: Collection[str], table: str) -> None:
        """Checks that no asset with another `stream` writes windows of the same topics to the table."""
        for name in sorted(topics):
            known = self.topics.get(name)
            if known is not None and known.stream != stream:
                raise StreamOverlapError(
                    f"the stream {known.stream!r} writes windows of the topic {name} to {table}, and this run has the "
                    f"stream {stream!r}: each would replace the other's rows",
                    "Write to another table; or, if this stream takes the other's place, set its id to "
                    f"{known.stream!r}",
                )

    def made_again(self, windows: Sequence[Window], topics: Collection[str]) -> TopicRecreatedError | None:
        """Whether windows may have rows of an earlier topic, which can't be read again."""
        first = min(windows, key=lambda window: window.start_ms)
        for name in sorted(topics):
            known = self.topics.get(name)
            if known is not None and known.made_again_ms is not None and first.start_ms < known.made_again_ms:
                return TopicRecreatedError(
                    f"the topic {name} was deleted and recreated after windows up to {instant(known.made_again_ms)} "
                    f"were written: the table may have rows of the window {first} from the earlier topic, which can't "
                    "be read again",
                    "Choose windows that begin later; to replace these rows with the topic's current records, tolerate "
                    "TopicRecreatedError",
                )
        return None

    def landing(
        self,
        state: EnumeratorState,
        partitions: Collection[TopicPartition],
        stream: str,
        until_ms: int,
        made_again: Collection[str] = (),
    ) -> LandedLogs:
        """The logs including what is about to be written; ids that are unknown now stay."""
        is_other_cluster = None not in {self.cluster_id, state.cluster_id} and self.cluster_id != state.cluster_id
        topics = dict(self.topics)
        if is_other_cluster:
            topics = {name: replace(topic, made_again_ms=until_ms) for name, topic in topics.items()}
        for name in sorted({tp.topic for tp in partitions}):
            read = frozenset(tp.partition for tp in partitions if tp.topic == name)
            topic_id = state.topic_ids.get(name)
            known = topics.get(name)
            if known is None:
                topics[name] = LandedTopic(stream, read, topic_id)
                continue
            is_other = name in made_again or (None not in {known.topic_id, topic_id} and known.topic_id != topic_id)
            topics[name] = LandedTopic(
                stream,
                known.partitions | read,
                topic_id or known.topic_id,
                until_ms if is_other else known.made_again_ms,
            )
        return LandedLogs(state.cluster_id or self.cluster_id, topics)


@dataclass(frozen=True)
class Scope:
    """The rows of a window that are replaced.

    Attributes:
        topics: The topics, each with its topic partitions, or None for all of its rows. None: all rows of the window.
        kept: Topic partitions in the table that are not read now: their rows stay.
    """

    topics: Mapping[str, frozenset[int] | None] | None
    kept: frozenset[TopicPartition] = frozenset()

    @classmethod
    def of(cls, landed: LandedLogs, read: Collection[TopicPartition], topics: Sequence[str] | None) -> Scope:
        """Determines the replaceable rows: never rows of a log that is not read."""
        kept = frozenset(landed.partitions(topics) - set(read))
        if topics is None and not kept:
            return cls(None)
        names = {tp.topic for tp in read}
        narrowed = {tp.topic for tp in kept}
        return cls(
            {
                name: frozenset(tp.partition for tp in read if tp.topic == name) if name in narrowed else None
                for name in sorted(names)
            },
            kept,
        )

    @property
    def needs_partitions(self) -> bool:
        return any(partitions is not None for partitions in (self.topics or {}).values())


def windows_predicate(
    windows: Iterable[Window],
    column: str,
    scope: Scope | None = None,
    topic_column: str = "",
    partition_column: str = "",
) -> str:
    keys = f"{quoted(column)} IN ({', '.join(literal(window.key) for window in windows)})"
    if scope is None or scope.topics is None:
        return keys
    topic = quoted(topic_column)
    if not scope.needs_partitions:
        return f"{keys} AND {topic} IN ({', '.join(map(literal, scope.topics))})"
    whole = [name for name, partitions in scope.topics.items() if partitions is None]
    logs = [f"{topic} IN ({', '.join(map(literal, whole))})"] if whole else []
    logs += [
        f"({topic} = {literal(name)} AND {quoted(partition_column)} IN ({', '.join(map(str, sorted(partitions)))}))"
        for name, partitions in scope.topics.items()
        if partitions is not None
    ]
    return f"{keys} AND ({' OR '.join(logs)})"


def time_predicate(windows: Sequence[Window], column: str) -> str:
    time = quoted(column)
    start, stop = windows[0].start_ms, windows[-1].stop_ms
    # No column has a timestamp beyond Spark's maximum.
    after_start = f"{time} >= {_timestamp(start)}" if start <= LAST_SPARK_TIMESTAMP_MS else "false"
    before_stop = f"{time} < {_timestamp(stop)}" if stop <= LAST_SPARK_TIMESTAMP_MS else f"{time} IS NOT NULL"
    return f"({after_start} AND {before_stop})"


def _timestamp(milliseconds: int) -> str:
    if utc_time(milliseconds) is None:
        # Timestamp literals have four-digit years.
        return f"timestamp_millis({milliseconds})"
    # With a UTC offset, so that the session's time zone does not matter.
    return f"TIMESTAMP {literal(instant(milliseconds))}"


def records_predicate(splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]) -> str:
    """Condition for the rows of exactly the offsets that a repair reads, whatever their timestamps."""
    named = RecordColumns(*(columns[name] for name in RecordColumns._fields))
    return offsets_predicate(splits, named)


@dataclass(frozen=True)
class EarlierRows:
    """Rows of an earlier topic, or of another cluster, in a stream's table."""

    stop: int
    version: int
    stream: str
    logs: EnumeratorState


def earlier_rows(commits: Iterable[Commit], now: EnumeratorState) -> dict[TopicPartition, EarlierRows]:
    """End offsets of rows of other logs with the same names as the stream's current ones."""
    found: dict[TopicPartition, EarlierRows] = {}
    is_one = True
    for commit in commits:
        if effect_of(commit) is Effect.REPLACES:
            # No earlier rows are left.
            break
        document = commit.document()
        if document is None:
            continue
        for split in document.splits:
            tp, stop, ids = split.topic_partition, split.stopping_offset, document.state.topic_ids
            # A log without an id is only the same as long as no run has begun elsewhere.
            is_same = (is_one or tp.topic in ids.keys() & now.topic_ids.keys()) and is_same_log(tp, document.state, now)
            if tp in now.position and not is_same and (tp not in found or found[tp].stop < stop):
                found[tp] = EarlierRows(stop, commit.version, document.stream, document.state)
        is_one = is_one and why_elsewhere(document) is None
    return found


# A condition with more topic partitions costs Spark more to plan than it saves in files.
_MOST_RANGES = 256


class RecordColumns(NamedTuple):
    """Names of the columns that identify a row's record."""

    topic: str
    partition: str
    offset: str


def offsets_predicate(splits: Iterable[KafkaPartitionSplit], columns: RecordColumns) -> str:
    """The SQL condition for the rows of splits; empty without any."""
    return " OR ".join(
        f"({_of_topic(split.topic_partition.topic, columns)} AND "
        f"{quoted(columns.partition)} = {split.topic_partition.partition} AND "
        f"{_between(split.starting_offset, split.stopping_offset, columns)})"
        for split in splits
    )


def _of_topic(topic: str, columns: RecordColumns) -> str:
    return f"{quoted(columns.topic)} = {literal(topic)}"


def _between(start: int, stop: int, columns: RecordColumns) -> str:
    return f"{quoted(columns.offset)} >= {start} AND {quoted(columns.offset)} < {stop}"


def covering_predicate(splits: Iterable[KafkaPartitionSplit], columns: RecordColumns) -> str:
    """A condition that the rows of splits fulfil; for very many topic partitions, others of their topics do, too."""
    joined = _joined(splits)
    if len(joined) <= _MOST_RANGES:
        return offsets_predicate(joined, columns)
    by_topic: dict[str, list[KafkaPartitionSplit]] = {}
    for split in joined:
        by_topic.setdefault(split.topic_partition.topic, []).append(split)
    return " OR ".join(
        f"({_of_topic(topic, columns)} AND "
        f"{_between(min(one.starting_offset for one in of), max(one.stopping_offset for one in of), columns)})"
        for topic, of in by_topic.items()
    )


def _joined(splits: Iterable[KafkaPartitionSplit]) -> list[KafkaPartitionSplit]:
    result: list[KafkaPartitionSplit] = []
    for each in sorted(splits):
        last = result[-1] if result else None
        if (
            last is not None
            and last.topic_partition == each.topic_partition
            and each.starting_offset <= last.stopping_offset
        ):
            result[-1] = replace(last, stopping_offset=max(last.stopping_offset, each.stopping_offset))
        else:
            result.append(each)
    return result
