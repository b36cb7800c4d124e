"""The cases of Flink's KafkaSubscriberTest: the three ways to subscribe, asked of a real cluster."""

from __future__ import annotations

import re

import pytest

from dagster_kafka_flip.errors import TopicNotFoundError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.subscription import Subscription

pytestmark = pytest.mark.kafka


def _described(subscription, cluster):
    found = subscription.describe(cluster)
    assert all(name == topic.name and topic.topic_id for name, topic in found.items())
    return {name: [tp.partition for tp in topic.partitions] for name, topic in found.items()}


def test_a_topic_pattern_matches_whole_names(kafka, cluster, topic):
    matching, longer, other = f"{topic}.pattern-1", f"{topic}.pattern-12", f"{topic}.other"
    for name in (matching, longer, other):
        kafka.create(name, partitions=2)
    subscription = Subscription(pattern=re.escape(topic) + r"\.pattern-\d")
    assert _described(subscription, cluster) == {matching: [0, 1]}
    # A topic that is made later is found by the next look.
    kafka.create(f"{topic}.pattern-2")
    assert _described(subscription, cluster) == {matching: [0, 1], f"{topic}.pattern-2": [0]}
    kafka.delete(matching)
    assert _described(subscription, cluster) == {f"{topic}.pattern-2": [0]}


def test_internal_topics_are_matched_by_no_pattern_and_read_when_they_are_named(kafka, cluster, flink_topics):
    # Made with the first commit of a group.
    internal = "__consumer_offsets"
    kafka.commit_offsets("flink-internal", flink_topics.empty, {0: 0})
    assert {internal, flink_topics.one} <= set(cluster.list_topics())
    every = Subscription(pattern=".*").describe(cluster)
    assert flink_topics.one in every
    assert internal not in every
    assert not [name for name, topic in every.items() if topic.is_internal]
    with pytest.raises(TopicNotFoundError):
        Subscription(pattern="__consumer_.*").describe(cluster)
    assert Subscription((internal,)).describe(cluster)[internal].is_internal


def test_a_missing_topic_partition_of_a_set_is_an_error(cluster, flink_topics):
    missing = TopicPartition(flink_topics.one, 2**31 - 1)
    with pytest.raises(TopicNotFoundError) as error:
        Subscription(partitions=(TopicPartition(flink_topics.one, 0), missing)).describe(cluster)
    assert str(error.value) == (
        f"{missing} does not exist: the topic {flink_topics.one} has 10 partitions, numbered from 0; correct the "
        "number, or add partitions to the topic"
    )
    with pytest.raises(TopicNotFoundError, match=r"^the topic removed does not exist on "):
        Subscription(partitions=(TopicPartition("removed", 0),)).describe(cluster)
