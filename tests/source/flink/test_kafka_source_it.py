"""The cases of Flink's KafkaSourceITCase: from topics to records."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from tests.source.flink.logs import (
    PARTITIONS,
    RECORDS,
    offsets_read,
    splits_of,
    transact,
    trim_heads,
    write,
)

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def _bounded(*topics):
    return (
        KafkaSource.builder()
        .set_topics(*topics)
        .set_starting_offsets(OffsetsInitializer.earliest())
        .set_bounded(OffsetsInitializer.latest())
    )


@pytest.fixture
def assigned(enumerator_of):
    """All that a source reads now, as one batch."""

    def assign(builder, **context):
        enumerator = enumerator_of(builder, **context)
        enumerator.start()
        return enumerator.assign(Limits())

    return assign


def test_a_transactions_records_behind_a_trimmed_head(spark, kafka, cluster, source_of, assigned, topic):
    kafka.create(topic, PARTITIONS)
    transact(kafka, cluster, topic, {p: [1000] * RECORDS for p in range(PARTITIONS)})
    trim_heads(kafka, topic)
    builder = _bounded(topic)
    assignment = assigned(builder)
    # The marker is behind the last record, in the split and read by nobody.
    assert splits_of(assignment.plan) == {p: (p, RECORDS + 1) for p in range(PARTITIONS)}
    assert offsets_read(spark, source_of(builder), assignment) == {
        p: list(range(p, RECORDS)) for p in range(PARTITIONS)
    }


def test_runs_of_another_parallelism_go_on_where_the_last_one_stopped(spark, kafka, source_of, enumerator_of, topic):
    kafka.create(topic, partitions=4)
    builder = _bounded(topic)
    state, read_in_all = None, {}
    for parallelism in (1, 4, 2, 8):
        write(kafka, topic, {p: [1000] * (p + 1) for p in range(4)})
        enumerator = enumerator_of(builder, state, parallelism=parallelism)
        enumerator.start()
        assignment = enumerator.assign(Limits())
        state = enumerator.snapshot_state()
        assert len(assignment.task_plan.tasks) == min(parallelism, 4)
        for p, offsets in offsets_read(spark, source_of(builder), assignment).items():
            read_in_all.setdefault(p, []).extend(offsets)
    assert read_in_all == {p: list(range(4 * (p + 1))) for p in range(4)}
