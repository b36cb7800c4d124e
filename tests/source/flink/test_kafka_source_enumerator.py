"""The cases of Flink's KafkaSourceEnumeratorTest."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dagster_kafka_flip.errors import RetentionOvertookPositionError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from tests.source.flink.logs import PARTITIONS, RECORDS, write

pytestmark = pytest.mark.kafka


class Listening:
    """A cluster that remembers what it was asked."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.asked: list[str] = []

    def __getattr__(self, name):
        method = getattr(self._cluster, name)

        def ask(*args, **kwargs):
            self.asked.append(name)
            return method(*args, **kwargs)

        return ask


@pytest.fixture
def builder(flink_topics):
    """Reads the two trimmed topics."""
    return KafkaSource.builder().set_topics(flink_topics.one, flink_topics.two)


@pytest.fixture
def expected(flink_topics):
    """All that there is in the two trimmed topics."""
    return tuple(
        KafkaPartitionSplit(TopicPartition(topic, p), p, RECORDS)
        for topic in sorted((flink_topics.one, flink_topics.two))
        for p in range(PARTITIONS)
    )


def test_a_start_discovers_once_and_with_as_many_requests_for_many_topic_partitions_as_for_one(
    cluster, source_of, builder, flink_topics
):
    def asked(source):
        listening = Listening(cluster)
        enumerator = KafkaSourceEnumerator(source, listening, SplitEnumeratorContext())  # pyright: ignore[reportArgumentType]
        assert listening.asked == []
        enumerator.start()
        once = list(listening.asked)
        while enumerator.assign(Limits(max_records_per_batch=30)) is not None:
            pass
        assert listening.asked == once, "handing out splits looks at nothing"
        return once

    many = asked(source_of(builder))
    assert many.count("describe_topics") == 1
    assert many == asked(source_of(KafkaSource.builder().set_partitions([(flink_topics.one, 0)])))


def test_a_topic_made_later_is_read_from_its_beginning_although_the_first_ones_started_at_the_end(
    kafka, enumerator_of, topic
):
    first, later = f"{topic}.first", f"{topic}.later"
    builder = (
        KafkaSource.builder()
        .set_topic_pattern(re.escape(topic) + r"\..*")
        .set_starting_offsets(OffsetsInitializer.latest())
    )
    kafka.create(first, partitions=2)
    write(kafka, first, {0: [1000] * 3, 1: [1000] * 4})
    begin = enumerator_of(builder).start()
    assert begin.splits == ()
    assert enumerator_of(builder, begin.state).start().splits == ()

    kafka.create(later, partitions=2)
    write(kafka, later, {0: [1000] * 2})
    plan = enumerator_of(builder, begin.state).start()
    assert [str(split) for split in plan.splits] == [f"{later}-0 [0, 2)"]
    assert plan.discovered == (TopicPartition(later, 0), TopicPartition(later, 1))
    assert plan.state.position == {**begin.state.position, TopicPartition(later, 0): 2, TopicPartition(later, 1): 0}


def test_a_state_that_knows_some_topic_partitions_starts_the_others_at_their_beginning(
    enumerator_of, builder, expected, flink_topics
):
    complete = enumerator_of(builder).start().state
    known = {TopicPartition(flink_topics.one, 0): 7, TopicPartition(flink_topics.one, 9): 10}
    partial = replace(complete, position=known)
    # Whatever the initializer says: it counts for a stream without a state.
    latest = builder.set_starting_offsets(OffsetsInitializer.latest())
    # Flink says nothing of the records that retention has taken from a topic's other topic partitions.
    with pytest.raises(RetentionOvertookPositionError, match=r"but the log begins at 1"):
        enumerator_of(latest, partial).start()
    plan = enumerator_of(latest, partial, tolerated=frozenset({RetentionOvertookPositionError})).start()
    assert plan.splits == tuple(
        replace(split, starting_offset=known.get(split.topic_partition, split.starting_offset))
        for split in expected
        if known.get(split.topic_partition) != split.stopping_offset
    )
    assert plan.discovered == tuple(sorted({split.topic_partition for split in expected} - known.keys()))


def test_the_planning_client_gets_the_prefix_and_the_properties(source_of, builder, expected):
    source = source_of(
        builder.set_client_id_prefix("test-prefix")
        .set_property("metadata.max.age.ms", "99999")
        .set_librdkafka_property("socket.keepalive.enable", "true")
    )
    enumerator = source.create_enumerator(SplitEnumeratorContext())
    assert isinstance(enumerator._cluster, KafkaCluster)
    reported = enumerator._cluster._config
    assert reported["client.id"] == "test-prefix-enumerator"
    assert reported["topic.metadata.refresh.interval.ms"] == "99999"
    assert reported["socket.keepalive.enable"] == "true"
    assert enumerator.start().splits == expected, "and librdkafka takes them"
