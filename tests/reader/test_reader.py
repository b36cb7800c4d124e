"""The reader: numbers only, strict about loss, and silent about secrets."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as f

from dagster_kafka_flip.reader.kafka_reader import RECORD_SCHEMA, no_records, read, reader_options
from dagster_kafka_flip.source.api import SplitAssignment
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import plan_tasks
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from tests.source.plans import make_plan

SECRET = "hunter2-secret"
_SOURCE = KafkaSource.builder().set_topics("a", "b").build()
_PLAIN = KafkaConnection(bootstrap_servers="h:1")
_SPLITS = (
    KafkaPartitionSplit(TopicPartition("a", 0), 5, 9),
    KafkaPartitionSplit(TopicPartition("a", 12), 0, 1),
    KafkaPartitionSplit(TopicPartition("b", 0), 7, 8),
)


def _read(spark, splits, source, connection, parallelism=2):
    assignment = SplitAssignment(make_plan({}), plan_tasks(splits, parallelism))
    return read(source.connected(connection), spark, assignment)


def _options(splits, source, connection):
    return reader_options(splits, source.connected(connection))


def _sasl(address):
    return KafkaConnection(
        bootstrap_servers=address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="flip",
        sasl_password=SECRET,  # pyright: ignore[reportArgumentType]
        request_timeout=3,
    )


def test_spark_gets_numbers_and_fails_on_data_loss():
    options = _options(_SPLITS, _SOURCE, _PLAIN)
    assert json.loads(options["assign"]) == {"a": [0, 12], "b": [0]}
    assert json.loads(options["startingOffsets"]) == {"a": {"0": 5, "12": 0}, "b": {"0": 7}}
    assert json.loads(options["endingOffsets"]) == {"a": {"0": 9, "12": 1}, "b": {"0": 8}}
    assert (options["failOnDataLoss"], options["includeHeaders"]) == ("true", "true")
    assert not {"subscribe", "subscribePattern", "startingTimestamp", "startingOffsetsByTimestamp"} & options.keys()
    assert not [value for value in options.values() if "latest" in value or "earliest" in value]
    assert options["kafka.bootstrap.servers"] == "h:1"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafka.max.poll.records"] == "10000"


def test_the_sources_properties_win_over_fetch_sizes():
    source = (
        KafkaSource.builder()
        .set_topics("a")
        .set_isolation_level("read_uncommitted")
        .set_properties({"max.poll.records": "5", "check.crcs": "false"})
        .build()
    )
    options = _options(_SPLITS[:1], source, _PLAIN)
    assert options["kafka.max.poll.records"] == "5"
    assert options["kafka.check.crcs"] == "false"
    assert options["kafka.isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize(
    ("offsets", "per_task", "fetch_bytes"),
    [(10, None, 262_144), (40_000, None, 5_120_000), (10_000_000, None, 16_777_216), (10_000_000, 40_000, 5_120_000)],
)
def test_a_small_range_is_fetched_in_small_pieces(offsets, per_task, fetch_bytes):
    splits = [
        KafkaPartitionSplit(TopicPartition("a", 0), 0, offsets),
        KafkaPartitionSplit(TopicPartition("a", 1), 0, 1),
    ]
    source = _SOURCE.connected(_PLAIN)
    assert reader_options(splits, source, records_per_task=per_task)["kafka.max.partition.fetch.bytes"] == str(
        fetch_bytes
    )
    own = source.model_copy(update={"properties": {"max.partition.fetch.bytes": "7"}})
    assert reader_options(splits, own)["kafka.max.partition.fetch.bytes"] == "7"


@pytest.mark.spark
def test_a_batch_without_splits_reads_nothing_with_the_same_columns(spark):
    empty = no_records(spark)
    full = _read(spark, _SPLITS, _SOURCE, _PLAIN)
    assert empty.count() == 0
    assert [(field.name, field.dataType) for field in empty.schema] == [
        (field.name, field.dataType) for field in full.schema
    ]
    assert [field.name for field in full.schema] == [
        part.split()[0].strip("`") for part in RECORD_SCHEMA.split(", ")[:8]
    ]


@pytest.mark.spark
@pytest.mark.kafka
def test_fat_splits_are_divided_and_thin_ones_gathered_as_planned(spark, kafka, connection, topic, monkeypatch):
    monkeypatch.setattr("dagster_kafka_flip.source.plan.MIN_RECORDS_PER_TASK", 100)
    kafka.create(topic, partitions=8)
    kafka.produce(topic, [(None, str(number)) for number in range(1000)], partition=0)
    for partition in range(1, 8):
        kafka.produce(topic, [(None, str(number)) for number in range(10)], partition=partition)
    splits = (
        KafkaPartitionSplit(TopicPartition(topic, 0), 0, 1000),
        *(KafkaPartitionSplit(TopicPartition(topic, number), 2, 10) for number in range(1, 8)),
    )
    plan = plan_tasks(splits, 2)
    assert (len(plan.divided), [len(group) for group in plan.gathered]) == (1, [3, 4])
    rows = (
        _read(spark, splits, _SOURCE, connection)
        .select("partition", "offset", f.spark_partition_id().alias("task"))
        .collect()
    )
    read: dict[int, set[tuple[int, int]]] = {}
    for row in rows:
        read.setdefault(row["task"], set()).add((row["partition"], row["offset"]))
    fat = [offsets for offsets in read.values() if min(offsets)[0] == 0]
    planned = [(task[0].starting_offset, task[0].stopping_offset) for task in plan.tasks if len(task) == 1]
    assert sorted(map(sorted, fat)) == [[(0, offset) for offset in range(*part)] for part in planned]
    # Which of the thin ones Spark puts together is its own affair; how many is not.
    thin = [offsets for offsets in read.values() if min(offsets)[0] != 0]
    assert sorted(len(offsets) for offsets in thin) == [3 * 8, 4 * 8]
    assert set().union(*thin) == {(number, offset) for number in range(1, 8) for offset in range(2, 10)}
    assert len(rows) == 1000 + 7 * 8


@pytest.mark.spark
@pytest.mark.kafka
def test_a_split_that_retention_has_taken_fails_the_read(spark, kafka, connection, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 10)
    kafka.trim(topic, 0, 6)
    frame = _read(spark, (KafkaPartitionSplit(TopicPartition(topic, 0), 2, 8),), _SOURCE, connection)
    with pytest.raises(Exception, match=r"(?s)failOnDataLoss|data may have been lost|DATA_LOSS"):
        frame.collect()


@pytest.mark.spark
@pytest.mark.kafka
def test_secrets_are_neither_in_the_plan_nor_in_the_error_of_a_failing_read(spark, broker, capfd):
    # The broker speaks no SASL, so that the read fails where the credentials are in use.
    frame = _read(spark, _SPLITS[:1], _SOURCE, _sasl(broker).model_copy(update={"security_protocol": "SASL_PLAINTEXT"}))
    frame.explain("extended")
    frame.explain("formatted")
    shown = capfd.readouterr().out
    assert "Physical Plan" in shown
    assert SECRET not in shown
    assert SECRET not in repr(frame)
    hurried = _read(
        spark,
        _SPLITS[:1],
        KafkaSource.builder()
        .set_topics("a")
        .set_property("default.api.timeout.ms", "3000")
        .set_java_property("request.timeout.ms", "2000")
        .build(),
        _sasl(broker),
    )
    with pytest.raises(Exception) as error:  # noqa: PT011 - whatever it is, it must not show the secret
        hurried.collect()
    assert SECRET not in f"{error.value!r} {error.value}"
    out, errors = capfd.readouterr()
    assert SECRET not in out + errors
