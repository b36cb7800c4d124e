"""Lists, patterns and sets of topic partitions, against a model of a cluster."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import TopicNotFoundError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.subscription import Subscription
from tests.source.log_model import ClusterModel, LogModel


def _cluster(**topics):
    logs = {
        TopicPartition(topic, number): LogModel()
        for topic, partitions in topics.items()
        for number in range(partitions)
    }
    return ClusterModel(logs)


_CLUSTER = _cluster(orders_eu=2, orders_us=1, payments=1, orders_eu_v2=1, __orders_internal=1)


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders_eu", {"orders_eu"}),
        ("orders_..", {"orders_eu", "orders_us"}),
        (".*orders.*", {"orders_eu", "orders_us", "orders_eu_v2"}),
        ("orders_eu|payments", {"orders_eu", "payments"}),
    ],
)
def test_the_whole_name_has_to_match_and_internal_topics_are_left_out(pattern, topics):
    subscription = Subscription(pattern=pattern)
    # Brokers list topics in any order, and a source's data version must not depend on it.
    found = [
        list(subscription.describe(each)) for each in (_CLUSTER, ClusterModel(dict(reversed(_CLUSTER.logs.items()))))
    ]
    assert found == [sorted(topics)] * 2
    assert str(subscription) == f"topics matching {pattern}"
    assert subscription.may_read(TopicPartition(min(topics), 7))
    assert not subscription.may_read(TopicPartition("invoices", 0))


@pytest.mark.parametrize("pattern", ["order", "rders_eu", "nothing.*", "__orders.*"])
def test_a_pattern_that_matches_nothing_is_an_error(pattern):
    with pytest.raises(
        TopicNotFoundError, match=r"^no topic matches the pattern .* must match the whole name; internal"
    ):
        Subscription(pattern=pattern).describe(_CLUSTER)


def test_a_topic_that_is_deleted_while_a_pattern_is_looked_up_is_not_missed():
    class Deleting(ClusterModel):
        def list_topics(self):
            return (*super().list_topics(), "orders_gone")

    found = Subscription(pattern="orders_.*").describe(Deleting(_cluster(orders_eu=1).logs))
    assert set(found) == {"orders_eu"}


def test_only_the_partitions_of_a_set_are_read():
    eu, us = TopicPartition("orders_eu", 1), TopicPartition("orders_us", 0)
    subscription = Subscription(partitions=(eu, us))
    found = subscription.describe(_CLUSTER)
    assert {name: topic.partitions for name, topic in found.items()} == {"orders_eu": (eu,), "orders_us": (us,)}
    assert (subscription.may_read(eu), subscription.may_read(TopicPartition("orders_eu", 0))) == (True, False)
    assert str(subscription) == "orders_eu-1, orders_us-0"


def test_a_list_reads_all_partitions():
    subscription = Subscription(("orders_eu", "payments"))
    found = subscription.describe(_CLUSTER)
    assert [len(topic.partitions) for topic in found.values()] == [2, 1]
    assert subscription.may_read(TopicPartition("payments", 9))
    assert str(subscription) == "orders_eu, payments"
