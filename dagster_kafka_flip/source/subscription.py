"""Which topic partitions a source reads: a list of topics, a pattern, or a set of topic partitions.

Flink's three KafkaSubscribers. Each looks at the cluster anew for every plan.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import TypeAlias

    from dagster_kafka_flip.source.split import TopicPartition

# Kafka's own rule for a topic's name, from org.apache.kafka.common.internals.Topic.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class TopicMetadata:
    """What the cluster says about one topic.

    Attributes:
        name: The topic's name.
        topic_id: Its id (KIP-516), or None where the cluster does not tell.
        partitions: Its topic partitions, sorted.
        is_internal: Whether it is one of Kafka's own topics, such as `__consumer_offsets`.
    """

    name: str
    topic_id: str | None
    partitions: tuple[TopicPartition, ...]
    is_internal: bool = False


class TopicDirectory(Protocol):
    """What a subscription may ask the cluster."""

    def list_topics(self) -> Collection[str]:
        """Names of all topics that this client may describe."""
        ...

    def describe_topics(self, topics: Collection[str], *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """Ids and partitions of topics; a missing one is an error, unless they are to be skipped."""
        ...


@dataclass(frozen=True)
class TopicListSubscription:
    """All partitions of some topics.

    Attributes:
        topics: The topics' names, sorted and each once.
    """

    topics: tuple[str, ...]

    def describe(self, directory: TopicDirectory, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """The topics as they are now.

        Args:
            directory: The cluster.
            skip_missing: Leave out what does not exist, instead of an error.

        Raises:
            TopicNotFoundError: A topic is missing.
        """
        return directory.describe_topics(self.topics, skip_missing=skip_missing)

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        """What is named and not there."""
        return tuple(topic for topic in self.topics if topic not in found)

    def may_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the topic partition would be read, if it exists."""
        return topic_partition.topic in self.topics

    def __str__(self) -> str:
        return ", ".join(self.topics)


@dataclass(frozen=True)
class TopicPatternSubscription:
    """All partitions of the topics whose whole name matches a pattern, but for Kafka's internal ones.

    Attributes:
        pattern: A regular expression in Python's syntax.
    """

    pattern: str

    def describe(self, directory: TopicDirectory, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """The topics that match now.

        Args:
            directory: The cluster.
            skip_missing: Makes no difference: a pattern names no topic.

        Raises:
            TopicNotFoundError: None matches: more likely a slip in the pattern than what was meant.
        """
        del skip_missing
        names = [name for name in directory.list_topics() if re.fullmatch(self.pattern, name)]
        # A topic may be deleted between the list and the description.
        found = directory.describe_topics(names, skip_missing=True) if names else {}
        matching = {name: topic for name, topic in found.items() if not topic.is_internal}
        if not matching:
            msg = (
                f"no topic matches the pattern {self.pattern!r} (the whole name has to match, and internal topics are "
                "left out, and so are topics that this client may not describe); correct the pattern, create a topic "
                "that it matches, or grant DESCRIBE on such topics"
            )
            raise TopicNotFoundError(msg)
        return matching

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        """Nothing: a pattern names no topic."""
        del found
        return ()

    def may_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the topic partition would be read, if it exists."""
        return re.fullmatch(self.pattern, topic_partition.topic) is not None

    def __str__(self) -> str:
        return f"topics matching {self.pattern}"


@dataclass(frozen=True)
class PartitionSetSubscription:
    """Some topic partitions, and none that are added to their topics later.

    Attributes:
        partitions: The topic partitions, sorted and each once.
    """

    partitions: tuple[TopicPartition, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that they are of, sorted and each once."""
        return tuple(sorted({tp.topic for tp in self.partitions}))

    def describe(self, directory: TopicDirectory, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """The topics as they are now, reduced to the topic partitions asked for.

        Args:
            directory: The cluster.
            skip_missing: Leave out what does not exist, instead of an error.

        Raises:
            TopicNotFoundError: A topic or a topic partition is missing.
        """
        found = directory.describe_topics(self.topics, skip_missing=skip_missing)
        wanted = set(self.partitions)
        for tp in self.partitions:
            if not skip_missing and tp not in found[tp.topic].partitions:
                msg = (
                    f"{tp}: the source asks for it, and the topic {tp.topic} has {len(found[tp.topic].partitions)} "
                    "partitions, numbered from 0; correct the number, or add partitions to the topic"
                )
                raise TopicNotFoundError(msg)
        return {
            name: replace(topic, partitions=tuple(tp for tp in topic.partitions if tp in wanted))
            for name, topic in found.items()
        }

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        """What is named and not there."""
        there = {tp for topic in found.values() for tp in topic.partitions}
        return tuple(str(tp) for tp in self.partitions if tp not in there)

    def may_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the topic partition would be read, if it exists."""
        return topic_partition in self.partitions

    def __str__(self) -> str:
        return ", ".join(map(str, self.partitions))


Subscription: TypeAlias = "TopicListSubscription | TopicPatternSubscription | PartitionSetSubscription"
"""What a source reads: exactly one of the three."""


def check_topic_name(topic: str) -> None:
    """Refuses a name that no topic can have.

    Raises:
        ValueError: Kafka would not allow it.
    """
    if not _LEGAL_NAME.fullmatch(topic) or topic in {".", ".."}:
        msg = f"{topic!r} can't be a topic's name: Kafka allows 1 to 249 letters, digits, '.', '_' and '-'"
        raise ValueError(msg)


def check_topic_pattern(pattern: str) -> None:
    """Refuses what is no regular expression.

    Raises:
        ValueError: It can't be compiled.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        msg = f"the topic pattern {pattern!r} is no regular expression: {error}"
        raise ValueError(msg) from None
