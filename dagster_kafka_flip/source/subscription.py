"""Which topic partitions a source reads, and which of them are new."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.split import TopicMetadata, TopicPartition

# Kafka's rule for topic names, from org.apache.kafka.common.internals.Topic.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class Subscription:
    """The topic partitions that a source reads, asked for with each plan: Flink's three KafkaSubscribers.

    Exactly one is set. A pattern must match a topic's whole name, and excludes Kafka's internal topics. Partitions that
    are added to a topic later are not in a set of topic partitions.
    """

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that it names; none of a pattern."""
        return self.topics or tuple(sorted({tp.topic for tp in self.partitions or ()}))

    def describe(self, cluster: KafkaCluster, *, skip_missing: bool = False) -> Mapping[str, TopicMetadata]:
        """Returns the current topics, reduced to the topic partitions to read."""
        if self.pattern is not None:
            return self._matching(cluster, self.pattern)
        found = cluster.describe_topics(self.named_topics, skip_missing=skip_missing)
        if self.partitions is None:
            return found
        for tp in self.partitions:
            if not skip_missing and tp not in found[tp.topic].partitions:
                raise TopicNotFoundError(
                    f"{tp} does not exist: the topic {tp.topic} has {len(found[tp.topic].partitions)} partitions, "
                    "numbered from 0; correct the number, or add partitions to the topic"
                )
        wanted = set(self.partitions)
        return {
            name: replace(topic, partitions=tuple(tp for tp in topic.partitions if tp in wanted))
            for name, topic in found.items()
        }

    def _matching(self, cluster: KafkaCluster, pattern: str) -> Mapping[str, TopicMetadata]:
        names = [name for name in sorted(cluster.list_topics()) if re.fullmatch(pattern, name)]
        # A topic may be deleted between the two requests.
        found = cluster.describe_topics(names, skip_missing=True) if names else {}
        matching = {name: topic for name, topic in found.items() if not topic.is_internal}
        if not matching:
            raise TopicNotFoundError(
                f"no topic matches the pattern {pattern!r} (the pattern must match the whole name; internal topics and "
                "topics that this client may not describe are excluded); correct the pattern, create a matching "
                "topic, or grant DESCRIBE on such topics"
            )
        return matching

    def missing(self, found: Mapping[str, TopicMetadata]) -> tuple[str, ...]:
        there = {tp for topic in found.values() for tp in topic.partitions}
        topics = (topic for topic in self.topics or () if topic not in found)
        return (*topics, *(str(tp) for tp in self.partitions or () if tp not in there))

    def may_read(self, topic_partition: TopicPartition) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic_partition.topic) is not None
        if self.partitions is not None:
            return topic_partition in self.partitions
        return topic_partition.topic in (self.topics or ())

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.topics or self.partitions or ()))
        return listed if self.pattern is None else f"topics matching {self.pattern}"


def check_topic_name(topic: str) -> None:
    if not _LEGAL_NAME.fullmatch(topic) or topic in {".", ".."}:
        raise ValueError(f"invalid topic name {topic!r}: Kafka allows 1 to 249 letters, digits, '.', '_' and '-'")


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
    there, before = set(fetched), set(known)
    found, removed, both = (tuple(sorted(each)) for each in (there - before, before - there, before & there))
    return PartitionChange(found, (), removed, both) if initial_discovery else PartitionChange((), found, removed, both)
