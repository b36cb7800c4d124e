"""Transactions: what is planned and what is read around open, committed and aborted ones, and around their markers."""

from __future__ import annotations

from itertools import combinations

import pytest

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from tests.source.flink.logs import (
    PARTITIONS,
    RECORDS,
    by_number,
    leave_open,
    offsets_read,
    splits_of,
    transact,
    trim_heads,
    within,
)

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Each letter is an offset: p plain, c of a committed transaction, a of an aborted one, o of an open one, M a marker.
LOGS = {
    0: "aaMpp",  # a marker right behind the start
    1: "pccMp",  # in the middle
    2: "pccM",  # at the end
    3: "aaM",  # nothing to read at all
    4: "poo",  # open at the end
    5: "poopp",  # open, and records behind it
    6: "oo",  # open from the start
    7: "cMaMcM",  # one after the other
}
# One log for each pair of a start and a stop in it, so that all pairs are read at once.
PATTERN = "cMaaMcpM"
PAIRS = list(combinations(range(len(PATTERN) + 1), 2))


def _end(log):
    return log.index("o") if "o" in log else len(log)


def _committed(log):
    return [offset for offset in range(_end(log)) if log[offset] in "pc"]


def _written(log):
    return [offset for offset, what in enumerate(log) if what != "M"]


@pytest.fixture(scope="module")
def logs(kafka, cluster):
    """A topic with LOGS, whose open transactions stay open."""
    topic = "transactions-logs"
    kafka.create(topic, partitions=len(LOGS))
    held = []
    for partition, log in LOGS.items():
        transactions = {"c": True, "a": False}
        position = 0
        while position < len(log):
            what = log[position]
            run = len(log[position:]) - len(log[position:].lstrip(what))
            if what == "p":
                kafka.produce(topic, [(None, "plain")] * run, partition=partition)
            elif what == "o":
                held.append(leave_open(kafka, topic, partition, run))
            else:
                transact(kafka, cluster, topic, {partition: [0] * run}, commit=transactions[what])
                run += 1
            position += run
    yield topic
    for producer in held:
        producer.abort_transaction(30)


@pytest.fixture(scope="module")
def pattern(kafka, cluster):
    """A topic with a topic partition for each of PAIRS, all of whose logs are PATTERN."""
    topic = "transactions-pattern"
    kafka.create(topic, partitions=len(PAIRS))
    one, two = ({p: [0] * number for p in range(len(PAIRS))} for number in (1, 2))
    transact(kafka, cluster, topic, one)
    transact(kafka, cluster, topic, two, commit=False)
    transact(kafka, cluster, topic, two)
    return topic


def test_the_markers_are_where_the_tests_take_them_to_be(cluster, logs):
    partitions = [TopicPartition(logs, p) for p in LOGS]
    assert by_number(cluster.end_offsets(partitions, "read_uncommitted")) == {p: len(log) for p, log in LOGS.items()}
    assert by_number(cluster.end_offsets(partitions, "read_committed")) == {p: _end(log) for p, log in LOGS.items()}


def test_committed_records_are_read_up_to_the_first_open_transaction(spark, source_of, enumerator_of, logs):
    builder = KafkaSource.builder().set_topics(logs)
    enumerator = enumerator_of(builder)
    plan = enumerator.start()
    assert splits_of(plan) == {p: (0, _end(log)) for p, log in LOGS.items() if _end(log)}
    assert by_number(plan.held_back) == {p: len(log) - _end(log) for p, log in LOGS.items() if _end(log) < len(log)}
    read = offsets_read(spark, source_of(builder), enumerator.assign(Limits()))
    assert read == {p: _committed(log) for p, log in LOGS.items() if _committed(log)}


def test_uncommitted_reading_takes_every_record_and_no_marker(spark, source_of, enumerator_of, logs):
    builder = KafkaSource.builder().set_topics(logs).set_isolation_level("read_uncommitted")
    enumerator = enumerator_of(builder)
    plan = enumerator.start()
    assert splits_of(plan) == {p: (0, len(log)) for p, log in LOGS.items()}
    assert plan.held_back == {}
    read = offsets_read(spark, source_of(builder), enumerator.assign(Limits()))
    assert read == {p: _written(log) for p, log in LOGS.items()}


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_a_split_may_start_and_stop_at_any_offset(spark, source_of, enumerator_of, pattern, isolation_level):
    builder = (
        KafkaSource.builder()
        .set_topics(pattern)
        .set_isolation_level(isolation_level)
        .set_starting_offsets(
            OffsetsInitializer.specific_offsets({(pattern, p): start for p, (start, _) in enumerate(PAIRS)})
        )
        .set_bounded(OffsetsInitializer.specific_offsets({(pattern, p): stop for p, (_, stop) in enumerate(PAIRS)}))
    )
    enumerator = enumerator_of(builder)
    assert splits_of(enumerator.start()) == dict(enumerate(PAIRS))
    assignment = enumerator.assign(Limits())
    assert by_number(assignment.plan.state.position) == {p: stop for p, (_, stop) in enumerate(PAIRS)}
    # Of the second transaction nothing is committed; of the first and the third everything.
    readable = [0, 5, 6] if isolation_level == "read_committed" else [0, 2, 3, 5, 6]
    expected = {p: within(readable, pair) for p, pair in enumerate(PAIRS)}
    read = offsets_read(spark, source_of(builder), assignment)
    assert read == {p: offsets for p, offsets in expected.items() if offsets}


def test_a_transactions_records_behind_a_trimmed_head(spark, source_of, enumerator_of, kafka, cluster, topic):
    kafka.create(topic, PARTITIONS)
    transact(kafka, cluster, topic, {p: [1000] * RECORDS for p in range(PARTITIONS)})
    trim_heads(kafka, topic)
    builder = KafkaSource.builder().set_topics(topic)
    enumerator = enumerator_of(builder)
    # The marker is behind the last record, in the split and read by nobody.
    assert splits_of(enumerator.start()) == {p: (p, RECORDS + 1) for p in range(PARTITIONS)}
    read = offsets_read(spark, source_of(builder), enumerator.assign(Limits()))
    assert read == {p: list(range(p, RECORDS)) for p in range(PARTITIONS)}


def test_a_marker_is_neither_the_start_nor_the_stop_at_a_time(spark, source_of, enumerator_of, kafka, cluster, topic):
    # Kafka's look-up by time answers with the marker at offset 2, dated by the broker's clock.
    kafka.create(topic)
    transact(kafka, cluster, topic, {0: [1000, 2000]})
    transact(kafka, cluster, topic, {0: [3000]})
    transact(kafka, cluster, topic, {0: [20_000]})
    ten_seconds = OffsetsInitializer.timestamp(10_000)
    before = KafkaSource.builder().set_topics(topic).set_bounded(ten_seconds)
    from_then = KafkaSource.builder().set_topics(topic).set_starting_offsets(ten_seconds)
    read = []
    for builder in (before, from_then):
        enumerator = enumerator_of(builder)
        enumerator.start()
        assignment = enumerator.assign(Limits())
        read.append((splits_of(assignment.plan), offsets_read(spark, source_of(builder), assignment)))
    assert read == [({0: (0, 5)}, {0: [0, 1, 3]}), ({0: (5, 7)}, {0: [5]})]
