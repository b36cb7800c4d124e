"""Flink's test topics on the session's broker, and enumerators over them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from tests.source.flink.logs import PARTITIONS, RECORDS, trim_heads, write_test_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_kafka_flip.source.connection import KafkaConnection


@dataclass(frozen=True)
class FlinkTopics:
    """The topics of Flink's KafkaSourceTestEnv. Nobody writes to them again.

    Attributes:
        one: Topic partition p begins at offset p and ends at 10; the group has committed p + 2, at most 10.
        two: The same.
        plain: The same records, from offset 0 on, and no commits.
        empty: No records.
        group: The consumer group.
    """

    one: str
    two: str
    plain: str
    empty: str
    group: str


@pytest.fixture(scope="session")
def flink_topics(kafka) -> FlinkTopics:
    """Flink's test topics."""
    names = FlinkTopics(*(f"flink-{os.getpid()}-{name}" for name in ("one", "two", "plain", "empty", "group")))
    for topic in (names.one, names.two, names.plain):
        write_test_topic(kafka, topic)
    kafka.create(names.empty, PARTITIONS)
    for topic in (names.one, names.two):
        trim_heads(kafka, topic)
        kafka.commit_offsets(names.group, topic, {p: min(p + 2, RECORDS) for p in range(PARTITIONS)})
    return names


@pytest.fixture(scope="session")
def cluster(connection) -> KafkaCluster:
    """The session's broker, as planning sees it."""
    return KafkaCluster(connection)


@pytest.fixture
def enumerator_of(cluster, connection: KafkaConnection) -> Callable[..., KafkaSourceEnumerator]:
    """Makes the enumerator of a builder's source."""

    def make(builder, state=None, *, parallelism=2, tolerated=frozenset()):
        source = builder.set_connection(connection).build()
        context = SplitEnumeratorContext(parallelism, tolerated=tolerated)
        return KafkaSourceEnumerator(source, cluster, context, state)

    return make


@pytest.fixture
def source_of(connection: KafkaConnection):
    """Makes a builder's source with the session's broker."""
    return lambda builder: builder.set_connection(connection).build()
