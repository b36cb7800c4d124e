"""Subscriptions: which topic partitions a source reads.

Flink's three KafkaSubscribers: a list of topics, a pattern, or a set of topic partitions. Each queries the cluster for
every plan.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import TypeAlias

    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.split import TopicMetadata, TopicPartition

# Kafka's rule for topic names, from org.apache.kafka.common.internals.Topic.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class TopicListSubscription:
    """All partitions of a list of topics."""

    topics: tuple[str, ...]

    def describe(self, cluster: KafkaCluster, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """Returns the current topics."""
        return cluster.describe_topics(self.topics, skip_missing=skip_missing)

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        """The listed topics that do not exist."""
        return tuple(topic for topic in self.topics if topic not in found)

    def may_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the subscription includes a topic partition, if it exists."""
        return topic_partition.topic in self.topics

    def __str__(self) -> str:
        return ", ".join(self.topics)


@dataclass(frozen=True)
class TopicPatternSubscription:
    """All partitions of the topics whose whole name matches a pattern, except Kafka's internal topics."""

    pattern: str

    def describe(self, cluster: KafkaCluster, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """Returns the topics that currently match."""
        del skip_missing
        names = [name for name in cluster.list_topics() if re.fullmatch(self.pattern, name)]
        # A topic may be deleted between the two requests.
        found = cluster.describe_topics(names, skip_missing=True) if names else {}
        matching = {name: topic for name, topic in found.items() if not topic.is_internal}
        if not matching:
            raise TopicNotFoundError(
                f"no topic matches the pattern {self.pattern!r} (the pattern must match the whole name; internal "
                "topics and topics that this client may not describe are excluded); correct the pattern, create a "
                "matching topic, or grant DESCRIBE on such topics"
            )
        return matching

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        """Always empty: a pattern does not list topics."""
        del found
        return ()

    def may_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the subscription includes a topic partition, if it exists."""
        return re.fullmatch(self.pattern, topic_partition.topic) is not None

    def __str__(self) -> str:
        return f"topics matching {self.pattern}"


@dataclass(frozen=True)
class PartitionSetSubscription:
    """A fixed set of topic partitions; partitions added later are not included."""

    partitions: tuple[TopicPartition, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """Their topics, sorted and unique."""
        return tuple(sorted({tp.topic for tp in self.partitions}))

    def describe(self, cluster: KafkaCluster, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """Returns the current topics, reduced to the requested topic partitions."""
        found = cluster.describe_topics(self.topics, skip_missing=skip_missing)
        wanted = set(self.partitions)
        for tp in self.partitions:
            if not skip_missing and tp not in found[tp.topic].partitions:
                raise TopicNotFoundError(
                    f"{tp} does not exist: the topic {tp.topic} has {len(found[tp.topic].partitions)} partitions, "
                    "numbered from 0; correct the number, or add partitions to the topic"
                )
        return {
            name: replace(topic, partitions=tuple(tp for tp in topic.partitions if tp in wanted))
            for name, topic in found.items()
        }

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        """The listed topic partitions that do not exist."""
        there = {tp for topic in found.values() for tp in topic.partitions}
        return tuple(str(tp) for tp in self.partitions if tp not in there)

    def may_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the subscription includes a topic partition, if it exists."""
        return topic_partition in self.partitions

    def __str__(self) -> str:
        return ", ".join(map(str, self.partitions))


Subscription: TypeAlias = "TopicListSubscription | TopicPatternSubscription | PartitionSetSubscription"
"""A source has exactly one of the three subscriptions."""


def check_topic_name(topic: str) -> None:
    """Rejects an invalid topic name."""
    if not _LEGAL_NAME.fullmatch(topic) or topic in {".", ".."}:
        raise ValueError(f"invalid topic name {topic!r}: Kafka allows 1 to 249 letters, digits, '.', '_' and '-'")


def check_topic_pattern(pattern: str) -> None:
    """Rejects an invalid regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the topic pattern {pattern!r} is not a valid regular expression: {error}") from None


class PartitionChange(NamedTuple):
    """Topic partitions by discovery state. Flink's class of the same name, plus the known ones."""

    # Of the stream's first discovery; they start at the source's starting offsets.
    initial: tuple[TopicPartition, ...]
    # Of a later one; they start at their beginning, so that no record is missed.
    new: tuple[TopicPartition, ...]
    # No longer existing or no longer in the source; their position is kept.
    removed: tuple[TopicPartition, ...]
    known: tuple[TopicPartition, ...]


def get_partition_change(
    fetched: Collection[TopicPartition], known: Collection[TopicPartition], *, initial_discovery: bool
) -> PartitionChange:
    """Compares the topic partitions that exist and are in the source with those of the position."""
    there, before = set(fetched), set(known)
    found, removed, both = (tuple(sorted(each)) for each in (there - before, before - there, before & there))
    return PartitionChange(found, (), removed, both) if initial_discovery else PartitionChange((), found, removed, both)
