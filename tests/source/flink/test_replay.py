"""Splits that are handed back or planned again while new records arrive, with what Spark reads in them."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import EndBeforePositionError, RetentionOvertookPositionError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from tests.source.flink.logs import by_number, offsets_read, splits_of, transact, write

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def builder(kafka, topic):
    """Reads a topic with six records on each of two topic partitions."""
    kafka.create(topic, partitions=2)
    write(kafka, topic, {0: [1000] * 6, 1: [1000] * 6})
    return KafkaSource.builder().set_topics(topic)


def test_failed_splits_are_assigned_again_unchanged_although_records_arrived(
    spark, kafka, source_of, enumerator_of, builder, topic
):
    enumerator = enumerator_of(builder)
    enumerator.start()
    first = enumerator.assign(Limits(max_records_per_batch=4))
    read = offsets_read(spark, source_of(builder), first)
    failed = enumerator.assign(Limits(max_records_per_batch=4))
    assert splits_of(failed.plan) == {0: (2, 4), 1: (2, 4)}
    write(kafka, topic, {0: [1000] * 3, 1: [1000] * 3})

    enumerator.add_splits_back(failed.plan)
    assert by_number(enumerator.snapshot_state().position) == {0: 2, 1: 2}
    again = enumerator.assign(Limits(max_records_per_batch=4))
    assert again == failed
    rest = enumerator.assign(Limits())
    assert splits_of(rest.plan) == {0: (4, 6), 1: (4, 6)}, "the plan ends where it did"
    for assignment in (again, rest):
        for p, offsets in offsets_read(spark, source_of(builder), assignment).items():
            read[p] += offsets
    assert read == {0: list(range(6)), 1: list(range(6))}
    assert enumerator.assign(Limits()) is None
    assert splits_of(enumerator_of(builder, enumerator.snapshot_state()).start()) == {0: (6, 9), 1: (6, 9)}


def test_a_replay_reads_the_same_records_again_whatever_arrived(
    spark, kafka, cluster, source_of, enumerator_of, builder, topic
):
    enumerator = enumerator_of(builder)
    enumerator.start()
    first = enumerator.assign(Limits(max_records_per_batch=6))
    before = offsets_read(spark, source_of(builder), first)
    state = enumerator.snapshot_state()
    transact(kafka, cluster, topic, {0: [1000] * 2, 1: [1000]}, commit=False)
    transact(kafka, cluster, topic, {0: [1000]})
    again = enumerator.replay(reversed(first.plan.splits))
    assert again.plan.splits == first.plan.splits
    assert offsets_read(spark, source_of(builder), again) == before == {0: [0, 1, 2], 1: [0, 1, 2]}
    assert enumerator.snapshot_state() == state, "the stream stands where it stood"
    # Over aborted records and markers, too.
    tail = enumerator.replay([KafkaPartitionSplit(TopicPartition(topic, 0), 5, 11)])
    assert offsets_read(spark, source_of(builder), tail) == {0: [5, 9]}


def test_a_replay_of_what_the_log_no_longer_or_not_yet_holds_is_refused(kafka, enumerator_of, builder, topic):
    enumerator = enumerator_of(builder)
    plan = enumerator.start()
    kafka.trim(topic, 1, 3)
    with pytest.raises(RetentionOvertookPositionError, match=rf"^{topic}-1: .* up to 3 unread records are gone"):
        enumerator.replay(plan.splits)
    assert splits_of(enumerator.replay(plan.splits[:1]).plan) == {0: (0, 6)}
    with pytest.raises(EndBeforePositionError, match=rf"^{topic}-0: .* to offset 7 .* ends at offset 6\."):
        enumerator.replay([KafkaPartitionSplit(TopicPartition(topic, 0), 0, 7)])
