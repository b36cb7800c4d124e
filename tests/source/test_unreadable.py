"""Which record Spark can't read: pure logic, with a model of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TimestampedOffset, TopicPartition
from tests.source.log_model import ClusterModel

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def split(start: int, stop: int, tp: TopicPartition = A) -> KafkaPartitionSplit:
    return KafkaPartitionSplit(tp, start, stop)


def unreadable_record(logs: Any, splits: list[KafkaPartitionSplit]):
    return KafkaSourceEnumerator(KafkaSource(topics=("t",)), logs, SplitEnumeratorContext()).unreadable_record(splits)


class _Logs(ClusterModel):
    """Logs by the times of their records; a None is a marker. Notes what is read of them."""

    def __init__(self, times: dict[TopicPartition, list[int | None]]) -> None:
        super().__init__({})
        self.times = times
        self.read: list[KafkaPartitionSplit] = []

    def offsets_for_times(self, timestamps_ms, isolation_level):
        del isolation_level
        found = {
            tp: [offset for offset, time in enumerate(self.times[tp]) if time is not None and time >= wanted]
            for tp, wanted in timestamps_ms.items()
        }
        return {tp: offsets[0] for tp, offsets in found.items() if offsets}

    def record_times(self, ranges: Sequence[KafkaPartitionSplit], isolation_level: str):
        del isolation_level
        for each in ranges:
            self.read.append(each)
            for offset in range(each.starting_offset, each.stopping_offset):
                time = self.times[each.topic_partition][offset]
                if time is not None:
                    yield each.topic_partition, TimestampedOffset(offset, time)


@pytest.mark.parametrize("bad", [LAST_SPARK_TIMESTAMP_MS + 1, 2**63 - 1])
def test_a_late_record_is_found_from_where_a_look_up_by_time_points(bad):
    logs = _Logs({A: [0, LAST_SPARK_TIMESTAMP_MS, bad, 1, None, bad], B: [0, 1, 2]})
    assert unreadable_record(logs, [split(0, 6), split(0, 3, B)]) == (A, (2, bad))
    assert logs.read == [split(2, 6)]
    assert unreadable_record(logs, [split(3, 5), split(0, 3, B)]) is None
    assert unreadable_record(logs, []) is None


def test_times_long_before_1970_are_found_by_reading_all():
    logs = _Logs({A: [0, -LAST_SPARK_TIMESTAMP_MS], B: [0, -1, -LAST_SPARK_TIMESTAMP_MS - 1, 5]})
    assert unreadable_record(logs, [split(0, 2), split(0, 4, B)]) == (B, (2, -LAST_SPARK_TIMESTAMP_MS - 1))
