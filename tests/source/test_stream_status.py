"""How a stream stands to its logs, against a model of them."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.enumerator import log_status
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from tests.source.log_model import ClusterModel, LogModel

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SOURCE = KafkaSource(topics=("t",))


def log(records, beginning=0, open_from=None):
    return LogModel([1000 * (number + 1) for number in range(records)], beginning, open_from)


def state(t0, *, cluster: str | None = "cluster", topic_id: str | None = "topic-id"):
    return EnumeratorState({T0: t0}, cluster, {} if topic_id is None else {"t": topic_id})


def changed(found):
    return [type(error).__name__ for error in found.changed]


def test_lag_is_what_lies_between_position_and_end_and_all_of_a_topic_partition_that_is_new():
    cluster = ClusterModel({T0: log(10), T1: log(7, beginning=2)})
    found = log_status(SOURCE, cluster, state(4))
    assert (found.lag, found.total_lag, found.lost, found.beyond) == ({T0: 6, T1: 5}, 11, {}, {})
    assert (found.changed, found.cluster_id, found.topics) == ((), "cluster", 1)
    assert cluster.requests == 5, "whatever the number of topic partitions"


def test_records_held_back_by_an_open_transaction_are_reported_and_not_counted_as_lag():
    found = log_status(SOURCE, ClusterModel({T0: log(10, open_from=6)}), state(8))
    assert (found.lag, found.beyond, found.held_back) == ({T0: 0}, {}, {T0: 2})


def test_missing_topic_partitions_of_the_position_are_reported_unless_the_source_leaves_them_out():
    gone, other = TopicPartition("t-old", 0), TopicPartition("other", 0)
    before = EnumeratorState({T0: 1, gone: 7, other: 3}, "cluster", {"t": "topic-id", "t-old": "topic-id"})
    found = log_status(KafkaSource(topic_pattern="t.*"), ClusterModel({T0: log(3)}), before)
    assert (found.gone, found.lag, found.changed) == ((gone,), {T0: 2}, ())


def test_unread_records_deleted_by_retention_are_lost_and_not_lag():
    found = log_status(SOURCE, ClusterModel({T0: log(10, beginning=7)}), state(4))
    assert (found.lag, found.lost) == ({T0: 3}, {T0: 3})


def test_a_log_that_ends_before_the_position_is_reported():
    found = log_status(SOURCE, ClusterModel({T0: log(3)}), state(5))
    assert (found.lag, found.beyond) == ({T0: 0}, {T0: 2})


@pytest.mark.parametrize("unknown", [{"cluster": None}, {"topic_id": None}])
def test_an_id_that_is_not_known_is_not_compared(unknown):
    assert log_status(SOURCE, ClusterModel({T0: log(3)}), state(1, **unknown)).changed == ()


def test_the_lag_to_another_log_is_not_reported():
    again = log_status(SOURCE, ClusterModel({T0: log(3)}), state(1, topic_id="old"))
    assert (changed(again), again.lag) == (["TopicRecreatedError"], {})
    other = log_status(SOURCE, ClusterModel({T0: log(3)}), state(1, cluster="another"))
    assert (changed(other), other.lag) == (["ClusterChangedError"], {})


def test_a_topic_that_is_missing_is_reported_and_the_others_are_measured():
    both = KafkaSource(topics=("t", "gone"))
    found = log_status(both, ClusterModel({T0: log(3)}), state(1))
    assert (changed(found), found.lag) == (["TopicNotFoundError"], {T0: 2})
    assert str(found.changed[0]).startswith("gone: topic does not exist")
    none = log_status(KafkaSource(topic_pattern="x.*"), ClusterModel({T0: log(3)}), state(1))
    assert (changed(none), none.lag, none.topics) == (["TopicNotFoundError"], {}, 0)
