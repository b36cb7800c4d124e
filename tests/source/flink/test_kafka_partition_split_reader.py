"""The cases of Flink's KafkaPartitionSplitReaderTest: what Spark reads in the splits that it is handed."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.reader.kafka_reader import reader_options
from dagster_kafka_flip.source.api import SplitAssignment
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits, TaskPlan
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from tests.source.flink.logs import PARTITIONS, RECORDS, by_number, offsets_read, rows_read, write

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("parallelism", [1, 4 * PARTITIONS])
def test_every_record_of_every_split_is_read_whichever_task_it_is_in(
    spark, source_of, enumerator_of, flink_topics, parallelism
):
    builder = KafkaSource.builder().set_topics(flink_topics.one, flink_topics.two)
    enumerator = enumerator_of(builder, parallelism=parallelism)
    enumerator.start()
    assignment = enumerator.assign(Limits())
    columns = ("topic", "partition", "offset", "cast(value AS STRING)", "unix_millis(timestamp)", "cast(key AS STRING)")
    assert rows_read(spark, source_of(builder), assignment, *columns) == [
        (topic, p, offset, str(offset), 1000 * (offset + 1), f"{topic}-{p}")
        for topic in sorted((flink_topics.one, flink_topics.two))
        for p in range(PARTITIONS)
        for offset in range(p, RECORDS)
    ]


def test_a_split_divided_between_tasks_is_read_like_a_whole_one(spark, source_of, enumerator_of, flink_topics):
    builder = KafkaSource.builder().set_partitions([(flink_topics.one, 0), (flink_topics.one, 4)])
    plan = enumerator_of(builder).start()
    divided = SplitAssignment(plan, TaskPlan(plan.splits, (), 3))
    assert offsets_read(spark, source_of(builder), divided) == {0: list(range(10)), 4: list(range(4, 10))}


def test_the_lag_goes_down_batch_by_batch_whatever_the_topics_name(kafka, enumerator_of, topic):
    name = f"{topic[:150]}_underscore.period-minus"
    kafka.create(name, partitions=2)
    write(kafka, name, {0: [1000] * 10, 1: [1000] * 10})
    enumerator = enumerator_of(KafkaSource.builder().set_topics(name))
    plan = enumerator.start()
    assert by_number(plan.lag_before) == {0: 10, 1: 10}
    for left in range(18, -1, -2):
        batch = enumerator.assign(Limits(max_records_per_batch=2)).plan
        assert sum(batch.lag_after.values()) == left
        assert sum(batch.lag_before.values()) == left + 2
    assert by_number(plan.lag_after) == {0: 0, 1: 0}


def test_an_empty_split_is_left_out_and_costs_no_task(spark, source_of, enumerator_of, flink_topics):
    # One topic partition with records, one that starts at its end, one that never had a record.
    normal, ended, empty = ((flink_topics.one, 0), (flink_topics.two, 0), (flink_topics.empty, 0))
    builder = (
        KafkaSource.builder()
        .set_partitions([normal, ended, empty])
        .set_starting_offsets(OffsetsInitializer.specific_offsets({normal: 0, ended: RECORDS, empty: 0}))
    )
    enumerator = enumerator_of(builder)
    enumerator.start()
    assignment = enumerator.assign(Limits())
    assert [str(split) for split in assignment.plan.splits] == [f"{flink_topics.one}-0 [0, 10)"]
    assert len(assignment.task_plan.tasks) == 1
    assert assignment.plan.state.position == {
        TopicPartition(*normal): RECORDS,
        TopicPartition(*ended): RECORDS,
        TopicPartition(*empty): 0,
    }
    assert offsets_read(spark, source_of(builder), assignment) == {0: list(range(RECORDS))}


@pytest.mark.parametrize(("reset", "start"), [("earliest", 4), ("latest", RECORDS)])
def test_without_a_committed_offset_reading_starts_at_the_reset(
    spark, kafka, source_of, enumerator_of, flink_topics, reset, start
):
    builder = (
        KafkaSource.builder()
        .set_partitions([(flink_topics.one, 4), (flink_topics.two, 1)])
        .set_group_id("flink-using-committed-offset")
        .set_starting_offsets(OffsetsInitializer.committed_offsets(reset))
    )
    kafka.commit_offsets("flink-using-committed-offset", flink_topics.two, {1: 8})
    enumerator = enumerator_of(builder)
    enumerator.start()
    read = offsets_read(spark, source_of(builder), enumerator.assign(Limits()))
    assert read == {p: offsets for p, offsets in {1: [8, 9], 4: list(range(start, RECORDS))}.items() if offsets}


def test_the_rack_and_the_client_id_reach_the_consumer_and_reading_goes_on(
    spark, source_of, enumerator_of, flink_topics
):
    builder = (
        KafkaSource.builder()
        .set_partitions([(flink_topics.one, 7)])
        .set_client_rack("use1-az1")
        .set_client_id_prefix("prefix")
    )
    enumerator = enumerator_of(builder)
    enumerator.start()
    assignment = enumerator.assign(Limits())
    options = reader_options(assignment.plan.splits, source_of(builder))
    assert (options["kafka.client.rack"], options["kafka.client.id"]) == ("use1-az1", "prefix-reader")
    assert offsets_read(spark, source_of(builder), assignment) == {7: [7, 8, 9]}


def test_without_a_rack_the_consumer_gets_none_and_an_empty_one_is_refused(source_of, flink_topics):
    builder = KafkaSource.builder().set_topics(flink_topics.one)
    split = KafkaPartitionSplit(TopicPartition(flink_topics.one, 0), 0, 1)
    assert "kafka.client.rack" not in reader_options([split], source_of(builder))
    with pytest.raises(ConfigurationError, match=r"client_rack: empty$"):
        builder.set_client_rack("").build()
