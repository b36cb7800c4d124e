"""The reader: numbers only, strict about loss, and silent about secrets."""

from __future__ import annotations

import json

import pytest

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
