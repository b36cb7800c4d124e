"""The enumerator on a real broker: every start and stop, and every situation in which it must not go on."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ClusterUnreachableError,
    OffsetNotFoundError,
    OffsetOutOfRangeError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(connection):
    return KafkaCluster(connection)


def _builder(*topics):
    return KafkaSource.builder().set_topics(*topics)


def _plan(source, cluster, state=None):
    return KafkaSourceEnumerator(source.build(), cluster, SplitEnumeratorContext(), state).start()


def _splits(plan, topic):
    """The splits without the topic's name."""
    return {
        split.topic_partition.partition: (split.starting_offset, split.stopping_offset)
        for split in plan.splits
        if split.topic_partition.topic == topic
    }


@pytest.fixture(scope="module")
def history(kafka):
    """A topic with timestamps out of order on partition 0, a trimmed head on partition 1, and nothing on partition 2.

    The group "history" has committed 2 on partition 0 and 4 on partition 1.
    """
    topic = "history"
    kafka.create(topic, partitions=3)
    for timestamp in (1000, 3000, 2000, 5000, 2500, 4000):
        kafka.produce(topic, [(None, str(timestamp))], timestamp=timestamp)
    kafka.produce(topic, [(None, "x")] * 6, partition=1, timestamp=9000)
    kafka.trim(topic, 1, 3)
    kafka.commit_offsets("history", topic, {0: 2, 1: 4})
    return topic


@pytest.mark.parametrize(
    ("start", "starts"),
    [
        (OffsetsInitializer.earliest(), {0: 0, 1: 3, 2: 0}),
        (OffsetsInitializer.latest(), {0: 6, 1: 6, 2: 0}),
        (OffsetsInitializer.timestamp(0), {0: 0, 1: 3, 2: 0}),
        (OffsetsInitializer.timestamp(2500), {0: 1, 1: 3, 2: 0}),
        (OffsetsInitializer.timestamp(3500), {0: 3, 1: 3, 2: 0}),
        (OffsetsInitializer.timestamp(9001), {0: 6, 1: 6, 2: 0}),
        (OffsetsInitializer.committed_offsets("earliest"), {0: 2, 1: 4, 2: 0}),
        (OffsetsInitializer.committed_offsets("latest"), {0: 2, 1: 4, 2: 0}),
        (OffsetsInitializer.specific_offsets({("history", 1): 5}), {0: 2, 1: 5, 2: 0}),
        (OffsetsInitializer.specific_offsets({("history", 0): 6, ("history", 1): 3}), {0: 6, 1: 3, 2: 0}),
    ],
    ids=str,
)
def test_each_start(cluster, history, start, starts):
    plan = _plan(_builder(history).set_group_id("history").set_starting_offsets(start), cluster)
    ends = {0: 6, 1: 6, 2: 0}
    assert {tp.partition: offset for tp, offset in plan.starting_position.items()} == starts
    assert _splits(plan, history) == {p: (start, ends[p]) for p, start in starts.items() if start < ends[p]}
    assert {tp.partition: offset for tp, offset in plan.state.position.items()} == ends
    assert {tp.partition: offset for tp, offset in plan.end_offsets.items()} == ends
    assert {tp.partition: offset for tp, offset in plan.beginning_offsets.items()} == {0: 0, 1: 3, 2: 0}


@pytest.mark.parametrize(
    ("stop", "splits"),
    [
        (OffsetsInitializer.latest(), {0: (0, 6), 1: (3, 6)}),
        (OffsetsInitializer.timestamp(3500), {0: (0, 3)}),
        (OffsetsInitializer.timestamp(9001), {0: (0, 6), 1: (3, 6)}),
        (OffsetsInitializer.committed_offsets("earliest"), {0: (0, 2), 1: (3, 4)}),
        (OffsetsInitializer.specific_offsets({("history", 0): 5}), {0: (0, 5)}),
        (OffsetsInitializer.specific_offsets({("history", 0): 99, ("history", 1): 1}), {0: (0, 6)}),
    ],
    ids=str,
)
def test_each_stop(cluster, history, stop, splits):
    plan = _plan(_builder(history).set_group_id("history").set_bounded(stop), cluster)
    assert _splits(plan, history) == splits
    assert {tp.partition: offset for tp, offset in plan.state.position.items()} == {
        p: splits[p][1] if p in splits else start for p, start in {0: 0, 1: 3, 2: 0}.items()
    }


def test_specific_offsets_outside_of_the_log_are_refused(cluster, history):
    start = OffsetsInitializer.specific_offsets({(history, 1): 2})
    with pytest.raises(OffsetOutOfRangeError) as error:
        _plan(_builder(history).set_starting_offsets(start), cluster)
    assert str(error.value) == (
        'history-1: the start offset 2 (offsets:{"history": {"1": 2}}) is outside the log, which holds offsets 3 to 6; '
        "choose an offset in that range, or earliest or latest"
    )


def test_committed_offsets_of_a_group_that_never_committed(cluster, history):
    strict = _builder(history).set_group_id("nobody").set_starting_offsets(OffsetsInitializer.committed_offsets())
    with pytest.raises(OffsetNotFoundError) as error:
        _plan(strict, cluster)
    assert str(error.value) == (
        "history-0: the consumer group has no committed offset (also for 2 more topic partitions), and no reset "
        "strategy is set; set one, such as committed_offsets(OffsetResetStrategy.EARLIEST)"
    )
    earliest = strict.set_starting_offsets(OffsetsInitializer.committed_offsets("earliest"))
    assert _splits(_plan(earliest, cluster), history) == {0: (0, 6), 1: (3, 6)}


def test_two_topics_and_a_partition_that_appears_later(kafka, cluster, topic):
    first, second = f"{topic}-a", f"{topic}-b"
    kafka.create(first, partitions=2)
    kafka.create(second)
    kafka.produce(first, [(None, "x")] * 3, partition=1)
    kafka.produce(second, [(None, "x")] * 2)
    source = _builder(second, first).set_starting_offsets(OffsetsInitializer.latest())
    begin = _plan(source, cluster)
    assert begin.splits == ()
    assert dict(begin.state.position) == {
        TopicPartition(first, 0): 0,
        TopicPartition(first, 1): 3,
        TopicPartition(second, 0): 2,
    }
    assert begin.state.topic_ids.keys() == {first, second}

    kafka.grow(second, 2)
    kafka.produce(second, [(None, "x")] * 4, partition=1)
    kafka.produce(first, [(None, "x")], partition=0)
    then = _plan(source, cluster, begin.state)
    assert _splits(then, first) == {0: (0, 1)}
    assert _splits(then, second) == {1: (0, 4)}
    assert then.discovered == (TopicPartition(second, 1),)
    assert _plan(source, cluster, then.state).splits == ()


def test_an_open_transaction_holds_the_end_back_and_an_aborted_one_does_not(kafka, cluster, topic):
    kafka.create(topic)
    tp = TopicPartition(topic, 0)
    kafka.produce(topic, [(None, "x")] * 3)
    kafka.open_transaction(topic, [(None, "aborted")] * 2).abort()
    # Two records and the marker that ends their transaction.
    aborted = _plan(_builder(topic), cluster)
    assert (_splits(aborted, topic), aborted.held_back) == ({0: (0, 6)}, {})

    transaction = kafka.open_transaction(topic, [(None, "open")] * 4)
    kafka.produce(topic, [(None, "behind")] * 5)
    held = _plan(_builder(topic), cluster)
    assert _splits(held, topic) == {0: (0, 6)}
    assert (held.end_offsets, held.high_watermarks, held.held_back) == ({tp: 6}, {tp: 15}, {tp: 9})
    uncommitted = _plan(_builder(topic).set_isolation_level("read_uncommitted"), cluster)
    assert _splits(uncommitted, topic) == {0: (0, 15)}
    assert uncommitted.held_back == {}
    # A position beyond the last stable offset, as read_uncommitted leaves it, is no log that was cut off.
    assert _plan(_builder(topic), cluster, uncommitted.state).splits == ()

    transaction.commit()
    after = _plan(_builder(topic), cluster, held.state)
    assert (_splits(after, topic), after.held_back) == ({0: (6, 16)}, {})


def test_retention_that_has_overtaken_the_position_is_reported_with_numbers(kafka, cluster, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 5)
    state = _plan(_builder(topic), cluster).state
    kafka.produce(topic, [(None, "x")] * 10)
    kafka.trim(topic, 0, 5)
    assert _splits(_plan(_builder(topic), cluster, state), topic) == {0: (5, 15)}
    kafka.trim(topic, 0, 12)
    with pytest.raises(RetentionOvertookPositionError) as error:
        _plan(_builder(topic), cluster, state)
    assert str(error.value) == (
        f"{topic}-0: retention has overtaken the position. The next offset to read is 5, but the log begins at 12: up "
        "to 7 unread records are gone. To continue with what the logs have now, run once with "
        f'start set to offsets:{{"{topic}": {{"0": 12}}}}'
    )


def test_a_recreated_topic_and_another_cluster_are_reported(kafka, cluster, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 5)
    before = _plan(_builder(topic), cluster).state
    with pytest.raises(ClusterChangedError) as error:
        _plan(_builder(topic), cluster, replace(before, cluster_id="another"))
    assert str(error.value).startswith(
        "the position belongs to the Kafka cluster another, but the bootstrap servers now lead to "
        f"{before.cluster_id}, "
    )

    kafka.delete(topic)
    kafka.create(topic)
    # As long as the position, so that offsets alone would show nothing.
    kafka.produce(topic, [(None, "y")] * 5)
    now = _plan(_builder(topic), cluster).state
    with pytest.raises(TopicRecreatedError) as error:
        _plan(_builder(topic), cluster, before)
    assert str(error.value).startswith(
        f"the topic {topic} was deleted and recreated: the position belongs to topic id {before.topic_ids[topic]}, "
        f"and the id is now {now.topic_ids[topic]}. "
    )


def test_a_missing_topic_is_named(cluster, broker, history):
    with pytest.raises(TopicNotFoundError) as error:
        _plan(_builder(history, "not-there"), cluster)
    assert str(error.value) == (
        f"the topic not-there does not exist on {broker}, or this client may not describe it. Check the name, create "
        "it, or remove it from the source"
    )


def test_an_address_without_a_listener_is_reported():
    with socket.socket() as held:
        # Bound and not listening, so that nobody else can take the port meanwhile.
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        unreachable = KafkaCluster(KafkaConnection(bootstrap_servers=address, request_timeout=3))
        with pytest.raises(ClusterUnreachableError) as error:
            _plan(_builder("any"), unreachable)
    message = str(error.value)
    assert message.startswith(f"Kafka at {address} did not return the cluster's id within 3 s: ")
    assert f" s: Connect to {address} failed: Connection refused. " in message
    assert message.endswith(". No process listens on this port: start the broker, or correct bootstrap_servers")
