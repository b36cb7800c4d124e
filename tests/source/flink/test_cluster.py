"""KafkaCluster on a real broker: what its answers are where logs are not just a row of records."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.split import TopicPartition
from tests.source.flink.logs import by_number, write

pytestmark = pytest.mark.kafka

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def test_each_topic_partition_has_a_time_of_its_own(kafka, cluster, topic):
    kafka.create(topic, partitions=4)
    write(kafka, topic, {0: [1000, 2000, 3000], 1: [3000, 1000, 2000], 2: [1000, 1000]})
    asked = {0: 2000, 1: 2000, 2: 1001, 3: 1}
    found = cluster.offsets_for_times({TopicPartition(topic, p): time for p, time in asked.items()}, COMMITTED)
    assert by_number(found) == {0: 1, 1: 0}
    asked = {0: 3001, 1: 3000, 2: 0}
    found = cluster.offsets_for_times({TopicPartition(topic, p): time for p, time in asked.items()}, COMMITTED)
    assert by_number(found) == {1: 0, 2: 0}


def test_a_look_up_by_time_ends_where_an_open_transaction_begins(kafka, cluster, topic):
    kafka.create(topic)
    tp = TopicPartition(topic, 0)
    write(kafka, topic, {0: [1000]})
    transaction = kafka.open_transaction(topic, [(None, "open")])
    assert cluster.offsets_for_times({tp: 2000}, COMMITTED) == {}
    assert cluster.offsets_for_times({tp: 2000}, UNCOMMITTED) == {tp: 1}
    assert cluster.offsets_for_times({tp: 1000}, COMMITTED) == {tp: 0}
    transaction.commit()
    assert cluster.offsets_for_times({tp: 2000}, COMMITTED) == {tp: 1}


def test_the_highest_timestamp_need_not_be_the_last(kafka, cluster, topic):
    kafka.create(topic, partitions=4)
    write(kafka, topic, {0: [1000, 3000, 2000], 1: [5000], 3: [1000, 2000]})
    kafka.trim(topic, 3, 1)
    partitions = [TopicPartition(topic, p) for p in range(4)]
    highest = by_number(cluster.max_timestamps(partitions))
    assert {number: found.timestamp_ms for number, found in highest.items()} == {0: 3000, 1: 5000, 3: 2000}


def test_the_highest_timestamp_is_also_that_of_open_and_aborted_transactions(kafka, cluster, topic):
    kafka.create(topic, partitions=2)
    far = 4_000_000_000
    write(kafka, topic, {0: [1000], 1: [1000]})
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0, timestamp=far)
    assert producer.flush(30) == 0
    tp = TopicPartition(topic, 0)
    assert cluster.max_timestamps([tp])[tp].timestamp_ms == far
    producer.abort_transaction(30)
