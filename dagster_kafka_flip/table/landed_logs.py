"""LandedLogs: which cluster and topics the rows of a table of windows are of, kept in the table's properties.

Commits tell it too, but Delta forgets commits, and then a topic that was made again or left out of the source would go
unnoticed. A property stays. Each topic has one of its own, so that two runs that add topics at once both keep theirs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import DocumentVersionError, StreamOverlapError, TopicRecreatedError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import instant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Window

CLUSTER_PROPERTY = "dagster-kafka-flip.windows.cluster"
TOPIC_PROPERTY = "dagster-kafka-flip.windows.topic."


@dataclass(frozen=True)
class LandedTopic:
    """A topic that a table of windows has rows of, or may have.

    Attributes:
        stream: The `stream` of the asset that lands it.
        partitions: Numbers of its topic partitions that were read.
        topic_id: Its id; None if the cluster never told it.
        made_again_ms: Windows that begin before this time may hold rows of an earlier topic of the same name. None if
            there was none.
    """

    stream: str
    partitions: frozenset[int]
    topic_id: str | None = None
    made_again_ms: int | None = None

    def to_text(self) -> str:
        """As it is kept in a property."""
        return json.dumps(
            {
                "stream": self.stream,
                "partitions": _to_runs(self.partitions),
                **({} if self.topic_id is None else {"id": self.topic_id}),
                **({} if self.made_again_ms is None else {"made_again": self.made_again_ms}),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, topic: str, text: str) -> LandedTopic:
        """Reads what `to_text` wrote.

        Raises:
            DocumentVersionError: It is something else.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            partitions = frozenset(first + index for first, count in found["partitions"] for index in range(count))
            return cls(found["stream"], partitions, found.get("id"), found.get("made_again"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = (
                f"the table property {TOPIC_PROPERTY}{topic} can't be read ({type(error).__name__}: {error}): it was "
                "changed by hand, or a newer dagster-kafka-flip wrote it. Nothing was written. Upgrade this one, or "
                "set the property back (DESCRIBE HISTORY shows who changed it)"
            )
            raise DocumentVersionError(msg) from error


@dataclass(frozen=True)
class LandedLogs:
    """The logs that a table of windows has rows of.

    Attributes:
        cluster_id: The cluster; None if none has told its id yet.
        topics: The topics by name.
    """

    cluster_id: str | None = None
    topics: Mapping[str, LandedTopic] = field(default_factory=dict[str, LandedTopic])

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LandedLogs:
        """Reads a table's properties.

        Raises:
            DocumentVersionError: One of them can't be read.
        """
        topics = {
            topic: LandedTopic.from_text(topic, text)
            for key, text in properties.items()
            if (topic := key.removeprefix(TOPIC_PROPERTY)) != key
        }
        return cls(properties.get(CLUSTER_PROPERTY), topics)

    def properties(self) -> dict[str, str]:
        """As table properties."""
        cluster = {} if self.cluster_id is None else {CLUSTER_PROPERTY: self.cluster_id}
        return cluster | {f"{TOPIC_PROPERTY}{name}": topic.to_text() for name, topic in self.topics.items()}

    @property
    def topic_ids(self) -> dict[str, str]:
        """The topics' ids, as far as they are known."""
        return {name: topic.topic_id for name, topic in self.topics.items() if topic.topic_id is not None}

    def partitions(self, topics: Sequence[str] | None = None) -> set[TopicPartition]:
        """The topic partitions.

        Args:
            topics: Of these topics only; None for all.
        """
        return {
            TopicPartition(name, partition)
            for name, topic in self.topics.items()
            if topics is None or name in topics
            for partition in topic.partitions
        }

    def check_stream(self, stream: str, topics: Collection[str], table: str) -> None:
        """Makes sure that no asset with another `stream` lands windows of the same topics in the same table.

        Raises:
            StreamOverlapError: One does.
        """
        for name in sorted(topics):
            known = self.topics.get(name)
            if known is not None and known.stream != stream:
                msg = (
                    f"windows of the topic {name} in {table} are landed by an asset whose stream is {known.stream!r}, "
                    f"and this one's is {stream!r}: each would replace the other's rows. Nothing was written. Give "
                    f"this asset another table; or, if it has taken the place of the other one, set its stream to "
                    f"{known.stream!r}"
                )
                raise StreamOverlapError(msg)

    def made_again(self, windows: Sequence[Window], topics: Collection[str]) -> TopicRecreatedError | None:
        """Whether the table may have rows of windows that are of an earlier topic, which can't be read again.

        Args:
            windows: The windows to be replaced.
            topics: The topics to be read.
        """
        first = min(windows, key=lambda window: window.start_ms)
        for name in sorted(topics):
            known = self.topics.get(name)
            if known is not None and known.made_again_ms is not None and first.start_ms < known.made_again_ms:
                return TopicRecreatedError(
                    f"the topic {name} was deleted and made again after windows up to "
                    f"{instant(known.made_again_ms)} had been landed: the table may have rows of the window {first} "
                    "that are of the earlier topic and can't be read again. Nothing was written, and these rows stay. "
                    "Land windows that begin later; to put what the topic holds now in the place of these rows, "
                    "tolerate TopicRecreatedError"
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
        """The same with what is about to be landed.

        An id that isn't told now stays as it was.

        Args:
            state: Cluster and topics as they are now.
            partitions: The topic partitions that are read.
            stream: The asset's stream.
            until_ms: No window that ends later was landed before.
            made_again: Topics that are others than those that were landed before, whatever ids tell.
        """
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
    """Which of a window's rows are replaced.

    Attributes:
        topics: The topics, each with its topic partitions, or with None for all of its rows. None: all rows of the
            window, whatever they are of.
        kept: Topic partitions that the table has windows of and that are not read now: their rows stay.
    """

    topics: Mapping[str, frozenset[int] | None] | None
    kept: frozenset[TopicPartition] = frozenset()

    @classmethod
    def of(cls, landed: LandedLogs, read: Collection[TopicPartition], topics: Sequence[str] | None) -> Scope:
        """What may be replaced: never a row of a log that is not read.

        Args:
            landed: What the table has windows of.
            read: The topic partitions that are read.
            topics: The topics whose rows are asked to be replaced; None for all.
        """
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
        """Whether rows have to be told apart by their topic partition as well."""
        return any(partitions is not None for partitions in (self.topics or {}).values())


def _to_runs(numbers: Collection[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return runs
