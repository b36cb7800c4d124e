"""The cases of Flink's OffsetsInitializerTest: each initializer as a start and as a stop."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import OffsetNotFoundError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetResetStrategy, OffsetsInitializer
from tests.source.flink.logs import PARTITIONS, RECORDS, by_number

pytestmark = pytest.mark.kafka

BEGINNINGS = {p: p for p in range(PARTITIONS)}
ENDS = dict.fromkeys(range(PARTITIONS), RECORDS)
COMMITTED = {p: min(p + 2, RECORDS) for p in range(PARTITIONS)}
NOTHING = dict.fromkeys(range(PARTITIONS), 0)
# The record at offset 3 is dated 4000, and topic partition p begins at offset p.
FROM_3001 = {p: max(3, p) for p in range(PARTITIONS)}


@pytest.fixture
def starts(enumerator_of, flink_topics):
    """Where each topic partition of a topic starts under an initializer."""

    def plan(topic, initializer, group=None):
        builder = KafkaSource.builder().set_topics(topic).set_starting_offsets(initializer)
        return by_number(enumerator_of(builder.set_group_id(group or flink_topics.group)).start().starting_position)

    return plan


@pytest.fixture
def stops(enumerator_of, flink_topics):
    """Where each topic partition of a topic stops under an initializer."""

    def plan(topic, initializer, group=None):
        builder = KafkaSource.builder().set_topics(topic).set_bounded(initializer)
        return by_number(enumerator_of(builder.set_group_id(group or flink_topics.group)).start().state.position)

    return plan


@pytest.mark.parametrize(
    ("topic", "initializer", "group", "expected"),
    [
        ("one", OffsetsInitializer.latest(), None, ENDS),
        *(("one", OffsetsInitializer.committed_offsets(reset), None, COMMITTED) for reset in OffsetResetStrategy),
        ("one", OffsetsInitializer.committed_offsets("earliest"), "nobody", BEGINNINGS),
        ("one", OffsetsInitializer.committed_offsets("latest"), "nobody", ENDS),
        ("one", OffsetsInitializer.timestamp(3001), None, FROM_3001),
        ("empty", OffsetsInitializer.timestamp(2001), None, NOTHING),
    ],
    ids=str,
)
def test_an_initializer_is_the_same_as_a_start_and_as_a_stop(
    starts, stops, flink_topics, topic, initializer, group, expected
):
    name = getattr(flink_topics, topic)
    assert starts(name, initializer, group) == stops(name, initializer, group) == expected


def test_earliest_is_the_beginning_of_each_log(starts, flink_topics):
    assert starts(flink_topics.one, OffsetsInitializer.earliest()) == BEGINNINGS


def test_specific_offsets_fall_back_to_committed_ones_and_then_to_the_reset(starts, stops, flink_topics):
    # Topic partition 0 is not named; the group has committed 2 of topic one, and nothing of the plain one.
    for topic, unnamed in ((flink_topics.one, 2), (flink_topics.plain, 0)):
        initializer = OffsetsInitializer.specific_offsets({(topic, p): p for p in range(1, PARTITIONS)})
        assert starts(topic, initializer) == {p: p for p in range(1, PARTITIONS)} | {0: unnamed}
    latest = OffsetsInitializer.specific_offsets({(flink_topics.plain, 1): 1}, "latest")
    assert starts(flink_topics.plain, latest) == ENDS | {1: 1}
    # What has no stop is not read, even where the group has committed.
    stop = OffsetsInitializer.specific_offsets({(flink_topics.one, 3): 7, (flink_topics.one, 4): 2})
    assert stops(flink_topics.one, stop) == BEGINNINGS | {3: 7}
    none = OffsetsInitializer.specific_offsets({(flink_topics.plain, 0): 0}, "none")
    with pytest.raises(OffsetNotFoundError, match=r"-1: the consumer group has no committed offset \(also for 8 more"):
        starts(flink_topics.plain, none)
