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


@pytest.fixture
def starts(enumerator_of, flink_topics):
    """Where each topic partition of a topic starts under an initializer."""

    def plan(topic, initializer, group=None):
        builder = KafkaSource.builder().set_topics(topic).set_starting_offsets(initializer)
        builder = builder.set_group_id(flink_topics.group if group is None else group)
        return by_number(enumerator_of(builder).start().starting_position)

    return plan


@pytest.fixture
def stops(enumerator_of, flink_topics):
    """Where each topic partition of a topic stops under an initializer."""

    def plan(topic, initializer, group=None):
        builder = KafkaSource.builder().set_topics(topic).set_bounded(initializer)
        builder = builder.set_group_id(flink_topics.group if group is None else group)
        return by_number(enumerator_of(builder).start().state.position)

    return plan


def test_earliest_is_the_beginning_of_each_log(starts, flink_topics):
    assert starts(flink_topics.one, OffsetsInitializer.earliest()) == BEGINNINGS


def test_latest_is_the_end_of_each_log(starts, stops, flink_topics):
    assert starts(flink_topics.one, OffsetsInitializer.latest()) == ENDS
    assert stops(flink_topics.one, OffsetsInitializer.latest()) == ENDS


@pytest.mark.parametrize("reset", OffsetResetStrategy)
def test_committed_offsets_are_the_groups_whatever_the_reset(starts, stops, flink_topics, reset):
    initializer = OffsetsInitializer.committed_offsets(reset)
    assert starts(flink_topics.one, initializer) == COMMITTED
    assert stops(flink_topics.one, initializer) == COMMITTED


def test_a_time_is_the_first_record_at_or_after_it(starts, stops, flink_topics):
    # The record at offset 3 is dated 4000, and topic partition p begins at offset p.
    initializer = OffsetsInitializer.timestamp(3001)
    expected = {p: max(3, p) for p in range(PARTITIONS)}
    assert starts(flink_topics.one, initializer) == expected
    assert stops(flink_topics.one, initializer) == expected


def test_a_time_in_an_empty_topic_is_offset_0(starts, stops, flink_topics):
    initializer = OffsetsInitializer.timestamp(2001)
    zero = dict.fromkeys(range(PARTITIONS), 0)
    assert starts(flink_topics.empty, initializer) == zero
    assert stops(flink_topics.empty, initializer) == zero


def test_specific_offsets_fall_back_to_committed_ones_and_then_to_the_reset(starts, flink_topics):
    # Topic partition 0 is not named; the group has committed 2 of topic one, and nothing of the plain one.
    for topic, unnamed in ((flink_topics.one, 2), (flink_topics.plain, 0)):
        initializer = OffsetsInitializer.specific_offsets({(topic, p): p for p in range(1, PARTITIONS)})
        assert initializer.reset is OffsetResetStrategy.EARLIEST
        assert starts(topic, initializer) == {p: p for p in range(1, PARTITIONS)} | {0: unnamed}
    latest = OffsetsInitializer.specific_offsets({(flink_topics.plain, 1): 1}, "latest")
    assert starts(flink_topics.plain, latest) == ENDS | {1: 1}


def test_a_stop_that_is_not_named_is_not_read_even_where_the_group_has_committed(stops, flink_topics):
    initializer = OffsetsInitializer.specific_offsets({(flink_topics.one, 3): 7, (flink_topics.one, 4): 2})
    assert stops(flink_topics.one, initializer) == BEGINNINGS | {3: 7}


def test_specific_offsets_without_a_reset_are_an_error_where_nothing_is_committed(starts, flink_topics):
    initializer = OffsetsInitializer.specific_offsets({(flink_topics.plain, 0): 0}, "none")
    with pytest.raises(OffsetNotFoundError) as error:
        starts(flink_topics.plain, initializer)
    assert str(error.value).startswith(
        f"{flink_topics.plain}-1: the consumer group has no committed offset (also for 8 more topic partitions)"
    )


@pytest.mark.parametrize(("reset", "expected"), [("earliest", BEGINNINGS), ("latest", ENDS)])
def test_a_group_that_never_committed_is_reset(starts, stops, flink_topics, reset, expected):
    initializer = OffsetsInitializer.committed_offsets(reset)
    assert starts(flink_topics.one, initializer, group="nobody") == expected
    assert stops(flink_topics.one, initializer, group="nobody") == expected
