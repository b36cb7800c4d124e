"""Committing the position to a consumer group, on the real broker: after the table, and only for whoever watches."""

from __future__ import annotations

import logging
import time

import pytest
from confluent_kafka import Consumer

from dagster_kafka_flip.assets.metadata import result_metadata
from dagster_kafka_flip.errors import ConfigurationError, GroupCommitError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from tests.kafka_topic import QUIET


def _committed(connection, topic, group):
    partitions = [TopicPartition(topic, number) for number in range(2)]
    return {
        tp.partition: offset for tp, offset in KafkaCluster(connection).committed_offsets(partitions, group).items()
    }


def test_without_a_group_id_no_offsets_are_committed():
    with pytest.raises(ConfigurationError) as error:
        KafkaSource.builder().set_topics("t").set_commit_offsets().build()
    assert str(error.value) == ("invalid KafkaSource: committing offsets needs a group id: set the source's group_id")


@pytest.mark.kafka
@pytest.mark.spark
def test_the_groups_offsets_are_committed_after_each_batch_if_requested(kafka, connection, spark_of, topic, table):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, "x")] * 5)
    kafka.produce(topic, [(None, "x")] * 5, partition=1)
    silent = KafkaSource(topics=(topic,), group_id=topic)
    seen: list[dict[int, int]] = []

    def transform(records):
        # Called for a batch before it is committed.
        seen.append(_committed(connection, topic, topic))
        return records

    limits = Limits(max_records_per_batch=4, max_batches=1)
    ingest(silent, table, spark=spark_of, connection=connection, limits=limits)
    assert _committed(connection, topic, topic) == {}
    telling = KafkaSource.builder().set_topics(topic).set_group_id(topic).set_commit_offsets().build()
    result = ingest(
        telling,
        table,
        spark=spark_of,
        connection=connection,
        limits=Limits(max_records_per_batch=4),
        transform=transform,
    )
    assert seen == [{}, {0: 4, 1: 4}]
    assert _committed(connection, topic, topic) == {0: 5, 1: 5}
    assert result.group_commit_failures == 0
    assert "kafka/group_commit_failures" not in result_metadata(result, None)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_group_with_active_members_is_left_alone_and_the_run_goes_on(
    kafka, connection, spark_of, topic, table, caplog
):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, "x")] * 5)
    member = Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": topic, **QUIET})
    try:
        joined: list[object] = []
        member.subscribe([topic], on_assign=lambda _, partitions: joined.extend(partitions))
        deadline = time.monotonic() + 30
        while not joined:
            assert time.monotonic() < deadline, "the member did not get its partitions"
            member.poll(0.2)
        source = KafkaSource(topics=(topic,), group_id=topic, commit_offsets=True)
        with caplog.at_level(logging.WARNING, logger="dagster_kafka_flip"):
            result = ingest(source, table, spark=spark_of, connection=connection)
        assert (result.rows, result.group_commit_failures) == (5, 1)
        assert result_metadata(result, None)["kafka/group_commit_failures"] == 1
        (reported,) = [record.getMessage() for record in caplog.records]
        assert reported == (
            f"the batch is committed, but committing to the consumer group failed: the consumer group {topic} has 1 "
            "active "
            "members, so its offsets were not committed; give the source its own group id"
        )
        with pytest.raises(GroupCommitError):
            KafkaCluster(connection).commit_offsets({TopicPartition(topic, 0): 1}, topic)
    finally:
        member.close()
    assert _committed(connection, topic, topic) == {}
