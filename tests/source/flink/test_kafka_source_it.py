"""The cases of Flink's KafkaSourceITCase: from topics to records."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.reader.kafka_reader import read
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from tests.source.flink.logs import (
    PARTITIONS,
    RECORDS,
    by_number,
    offsets_read,
    rows_read,
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


def test_a_record_has_its_own_timestamp(spark, kafka, source_of, assigned, topic):
    kafka.create(topic)
    # Odd milliseconds, and not in order.
    timestamps = [1_763_683_200_001, 1_763_683_200_003, 1_763_683_200_002]
    write(kafka, topic, {0: timestamps})
    builder = _bounded(topic)
    read_back = rows_read(spark, source_of(builder), assigned(builder), "offset", "unix_millis(timestamp)")
    assert read_back == list(enumerate(timestamps))


@pytest.mark.parametrize("group", ["flink-basic-read", None])
def test_two_topics_are_read_whole_with_a_group_id_or_without(spark, source_of, assigned, flink_topics, group):
    builder = _bounded(flink_topics.one, flink_topics.two)
    if group is not None:
        builder = builder.set_group_id(group)
    values = rows_read(
        spark, source_of(builder), assigned(builder), "topic", "partition", "cast(cast(value AS STRING) AS INT)"
    )
    assert values == [
        (topic, p, value)
        for topic in sorted((flink_topics.one, flink_topics.two))
        for p in range(PARTITIONS)
        for value in range(p, RECORDS)
    ]


def test_values_alone_are_decoded(spark, source_of, assigned, flink_topics):
    builder = _bounded(flink_topics.one, flink_topics.two)
    decoder = Decoder(RawFormat(), StringFormat(), KafkaColumns(fields=()))
    values = decoder.finish(decoder.stage(read(source_of(builder), spark, assigned(builder))))
    assert values.columns == ["kafka_value"]
    ((total,),) = values.selectExpr("sum(cast(kafka_value AS INT))").collect()
    assert total == 2 * sum(value for p in range(PARTITIONS) for value in range(p, RECORDS))


def test_more_cores_than_topic_partitions_work(spark, source_of, assigned, flink_topics):
    builder = _bounded(flink_topics.one)
    assignment = assigned(builder, parallelism=PARTITIONS + 1)
    assert len(assignment.task_plan.tasks) == PARTITIONS
    expected = {p: list(range(p, RECORDS)) for p in range(PARTITIONS)}
    assert offsets_read(spark, source_of(builder), assignment) == expected


def test_the_watermark_is_that_of_the_slowest_topic_partition(kafka, enumerator_of, topic):
    kafka.create(topic, partitions=3)
    write(kafka, topic, {0: [100, 200, 300], 1: [150, 250, 350]})
    builder = _bounded(topic).set_watermark_alignment(timedelta(milliseconds=60))
    enumerator = enumerator_of(builder)
    enumerator.start()
    state = enumerator.assign(Limits()).plan.state
    assert state.watermark == 300
    assert by_number(state.position) == {0: 3, 1: 3, 2: 0}


def test_an_empty_topic_gives_an_empty_batch(enumerator_of, topic, kafka):
    kafka.create(topic, partitions=3)
    enumerator = enumerator_of(_bounded(topic))
    assert enumerator.start().is_empty
    batch = enumerator.assign(Limits())
    assert (batch.plan.splits, batch.task_plan.tasks) == ((), ())
    assert by_number(batch.plan.state.position) == {0: 0, 1: 0, 2: 0}


def test_a_topic_with_one_topic_partition_that_has_records(spark, kafka, source_of, assigned, topic):
    kafka.create(topic, PARTITIONS)
    write(kafka, topic, {5: [1000] * RECORDS})
    kafka.trim(topic, 5, 5)
    builder = _bounded(topic)
    assignment = assigned(builder)
    assert splits_of(assignment.plan) == {5: (5, 10)}
    assert offsets_read(spark, source_of(builder), assignment) == {5: [5, 6, 7, 8, 9]}


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


def test_one_split_is_one_task(spark, source_of, assigned, flink_topics):
    builder = KafkaSource.builder().set_partitions([(flink_topics.plain, 3)])
    assignment = assigned(builder)
    assert [str(split) for task in assignment.task_plan.tasks for split in task] == [f"{flink_topics.plain}-3 [0, 10)"]
    assert offsets_read(spark, source_of(builder), assignment) == {3: list(range(RECORDS))}


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
