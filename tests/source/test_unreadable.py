"""Which record Spark can't read: pure logic, with a model of a log."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from tests.source.log_model import ClusterModel, LogModel

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def split(start: int, stop: int, tp: TopicPartition = A) -> KafkaPartitionSplit:
    return KafkaPartitionSplit(tp, start, stop)


def unreadable_record(logs: ClusterModel, splits: list[KafkaPartitionSplit]):
    return KafkaSourceEnumerator(KafkaSource(topics=("t",)), logs, SplitEnumeratorContext()).unreadable_record(splits)


@pytest.mark.parametrize("bad", [LAST_SPARK_TIMESTAMP_MS + 1, 2**63 - 1])
def test_a_late_record_is_found_from_where_a_look_up_by_time_points(bad):
    times = [0, LAST_SPARK_TIMESTAMP_MS, bad, bad, 1, bad]
    logs = ClusterModel({A: LogModel(times, markers={2}), B: LogModel([0, 1, 2])})
    assert unreadable_record(logs, [split(0, 6), split(0, 3, B)]) == (A, (3, bad))
    assert unreadable_record(logs, [split(0, 3), split(0, 3, B)]) is None
    assert unreadable_record(logs, [split(4, 5)]) is None
    assert unreadable_record(logs, [split(4, 6)]) == (A, (5, bad))
    assert unreadable_record(logs, []) is None


def test_a_time_long_before_1970_can_not_be_looked_up():
    assert unreadable_record(ClusterModel({A: LogModel([0, -LAST_SPARK_TIMESTAMP_MS - 1, 5])}), [split(0, 3)]) is None
