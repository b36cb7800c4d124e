"""The highest timestamp of a log, found by look-ups by time alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.source.record_search import highest_times
from dagster_kafka_flip.source.split import TimestampedOffset, TopicPartition
from tests.source.log_model import ClusterModel, LogModel

_TIMES = st.one_of(st.integers(0, 100), st.integers(1_700_000_000_000, 1_800_000_000_000), st.integers(0, 2**63 - 1))


@given(st.lists(st.lists(_TIMES, min_size=1, max_size=10), min_size=1, max_size=4))
def test_the_first_of_the_highest_is_found_in_a_bounded_number_of_requests(logs):
    model = ClusterModel({TopicPartition("t", number): LogModel(times) for number, times in enumerate(logs)})
    found = highest_times(
        {TopicPartition("t", number): TimestampedOffset(0, times[0]) for number, times in enumerate(logs)},
        lambda times: model.records_at([times], "read_uncommitted")[0],
    )
    expected = [(times.index(max(times)), max(times)) for times in logs]
    assert [found[TopicPartition("t", number)] for number in range(len(logs))] == expected
    assert model.requests <= 2 * 64 + 10
