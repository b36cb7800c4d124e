"""Which records Spark can't read, and what ranges are set aside for them: pure logic, with a model of a log."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.source import unreadable
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TimestampedOffset, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.unreadable import (
    LATEST_MS,
    around,
    is_readable,
    joined,
    rounds,
    unreadable_records,
    within,
)
from tests.source.log_model import ClusterModel

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BAD = LATEST_MS + 1


def split(start: int, stop: int, tp: TopicPartition = A) -> KafkaPartitionSplit:
    return KafkaPartitionSplit(tp, start, stop)


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


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(LATEST_MS, True), (LATEST_MS + 1, False), (2**63 - 1, False), (-1, True), (-LATEST_MS, True), (-(2**63), False)],
)
def test_spark_has_microseconds_in_64_bits(timestamp, expected):
    assert is_readable(timestamp) is expected
    assert (-(2**63) <= timestamp * 1000 < 2**63) is expected


def test_the_records_are_found_from_where_a_look_up_by_time_points(monkeypatch):
    monkeypatch.setattr(unreadable, "_JOINED", 1)
    logs = _Logs({A: [0, BAD, 1, 2, None, BAD, BAD, 3, 2**63 - 1, 4], B: [0, 1, 2]})
    found = unreadable_records(logs, [split(0, 10), split(0, 3, B)], "read_committed")
    assert found is not None
    assert found.records == 4
    assert found.ranges == (split(1, 2), split(5, 9))
    assert found.named[0] == (A, (1, BAD))
    assert logs.read == [split(1, 10)]
    assert unreadable_records(logs, [split(2, 5), split(0, 3, B)], "read_committed") is None
    assert unreadable_records(logs, [], "read_committed") is None


def test_times_long_before_1970_are_found_by_reading_all():
    logs = _Logs({A: [0, 1], B: [0, -1, -(2**63), 5]})
    found = unreadable_records(logs, [split(0, 2), split(0, 4, B)], "read_committed")
    assert found is not None
    assert (found.records, found.ranges) == (1, (split(2, 3, B),))


_RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10), st.booleans()), max_size=6).map(
    lambda made: joined(split(start, start + length, A if is_a else B) for start, length, is_a in made)
)
_SPLITS = st.tuples(st.integers(0, 20), st.integers(1, 30), st.integers(0, 20), st.integers(1, 30)).map(
    lambda made: (split(made[0], made[0] + made[1]), split(made[2], made[2] + made[3], B))
)


def _offsets(ranges):
    return [
        (each.topic_partition, offset)
        for each in ranges
        for offset in range(each.starting_offset, each.stopping_offset)
    ]


@given(splits=_SPLITS, ranges=_RANGES)
def test_records_set_aside_and_their_neighbours_make_up_the_splits(splits, ranges):
    aside, pieces = within(ranges, splits), around(splits, ranges)
    assert sorted(_offsets(aside) + _offsets(pieces)) == sorted(_offsets(splits))
    assert set(_offsets(aside)) <= set(_offsets(ranges))
    for each in rounds(pieces):
        assert len({piece.topic_partition for piece in each}) == len(each)
    assert sorted(itertools.chain.from_iterable(rounds(pieces))) == sorted(pieces)


def test_ranges_that_touch_or_overlap_become_one():
    made = [split(5, 6), split(0, 2), split(2, 3), split(4, 8), split(2, 3, B)]
    assert joined(made) == (split(0, 3), split(4, 8), split(2, 3, B))


def test_a_run_that_knows_of_such_ranges_has_the_client_read_them():
    context = SplitEnumeratorContext(aside=(split(3, 6), split(0, 9, B)))
    plan = ReadPlan((split(4, 9),), EnumeratorState({A: 9}), {A: 9}, {A: 9}, {A: 4})
    assert context.assignment(plan).aside == (split(4, 6),)
