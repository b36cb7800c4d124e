"""What has changed among the topic partitions: each is exactly one of initial, new, removed and known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.subscription import get_partition_change
from tests.source.strategies import topic_partitions

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
_some = st.sets(topic_partitions, max_size=12)


@given(_some, _some, st.booleans())
def test_each_topic_partition_is_one_of_four(fetched, known, initial_discovery):
    change = get_partition_change(fetched, known, initial_discovery=initial_discovery)
    parts = (change.initial, change.new, change.removed, change.known)
    together = [tp for part in parts for tp in part]
    assert sorted(together) == sorted(fetched | known), "none is lost, none is in two"
    assert {*change.initial, *change.new, *change.known} == fetched
    assert {*change.removed, *change.known} == known
    assert all(part == tuple(sorted(part)) for part in parts)
    assert (change.new if initial_discovery else change.initial) == ()
