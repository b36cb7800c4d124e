"""Watermark alignment on a model of a log: drift, idle topic partitions, and what it costs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.log import Log, times_reached
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from tests.source.log_model import ClusterModel, LogModel

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
HOUR = 3_600_000
DAY = 24 * HOUR


def _run(cluster, state=None, **changes):
    source = KafkaSource(topics=("t",), max_drift=timedelta(hours=1), **changes)
    enumerator = KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state)
    return enumerator.start()


@given(st.lists(st.integers(0, 500), max_size=20), st.integers(0, 20), st.integers(0, 20), st.integers(1, 40))
def test_the_time_reached_is_the_highest_before_the_offset(timestamps, beginning, offset, precision):
    log = LogModel(timestamps, min(beginning, len(timestamps)))
    offset = min(offset, len(timestamps))
    reached = times_reached({T0: offset}, Log(ClusterModel({T0: log}), [T0], "read_committed"), precision_ms=precision)
    before = timestamps[log.beginning : offset]
    if not before:
        assert reached == {}
    else:
        assert max(before) - precision < reached[T0].timestamp_ms <= max(before)
        assert timestamps[reached[T0].offset] >= reached[T0].timestamp_ms
        assert log.beginning <= reached[T0].offset < offset


def test_an_idle_topic_partition_does_not_hold_others_back():
    cluster = ClusterModel({T0: LogModel([0]), T1: LogModel([DAY, 2 * DAY]), T2: LogModel()})
    first = _run(cluster)
    assert [str(split) for split in first.splits] == ["t-0 [0, 1)"]
    assert first.paused == {T1: 2}
    second = _run(cluster, first.state)
    assert [str(split) for split in second.splits] == ["t-1 [0, 2)"]
    assert second.paused == {}


@pytest.mark.parametrize(
    "stop",
    [
        OffsetsInitializer.latest(),
        OffsetsInitializer.timestamp(5 * HOUR),
        OffsetsInitializer.specific_offsets({T0: 3, T1: 9}),
        OffsetsInitializer.committed_offsets(),
    ],
    ids=str,
)
def test_alignment_goes_with_any_stop(stop):
    hourly = [hour * HOUR for hour in range(10)]
    cluster = ClusterModel({T0: LogModel(hourly[:3]), T1: LogModel(hourly)}, committed={T0: 3, T1: 8})
    plan = _run(cluster, stopping_offsets=stop, group_id="g")
    # t-0 reaches 2 o'clock, so that t-1 is read to 3 o'clock, whatever its own stop.
    assert dict(plan.state.position) == {T0: 3, T1: 4}
    assert plan.state.watermark == 2 * HOUR


def test_the_watermark_is_reached_with_the_last_batch_and_not_before():
    cluster = ClusterModel({T0: LogModel([HOUR, 2 * HOUR])})
    source = KafkaSource(topics=("t",), max_drift=timedelta(hours=1))
    enumerator = KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext())
    planned = enumerator.start()
    one = Limits(max_records_per_batch=1)
    first, last = enumerator.assign(one), enumerator.assign(one)
    assert first is not None
    assert last is not None
    assert first.plan.state.watermark is None
    assert last.plan.state.watermark == planned.state.watermark is not None
    enumerator.add_splits_back(last.plan)
    assert enumerator.snapshot_state() == first.plan.state


def test_the_number_of_requests_does_not_depend_on_the_number_of_topic_partitions():
    def requests(partitions):
        logs = {TopicPartition("t", n): LogModel([n * HOUR, (n % 7) * DAY]) for n in range(partitions)}
        logs[TopicPartition("t", 0)].timestamps += [300 * DAY]
        cluster = ClusterModel(logs)
        _run(cluster)
        return cluster.requests

    assert requests(200) == requests(2) < 40
