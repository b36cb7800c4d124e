"""Compacted topics: holes at the start, in the middle and at the end of a split."""

from __future__ import annotations

from itertools import combinations

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from tests.kafka_topic import QUIET
from tests.source.flink.logs import offsets_read, splits_of, until, within

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# The keys of the records, by offset; of each key the last one is left.
KEYS = "aabbacad"
LEFT = [3, 5, 6, 7]
# The record behind them opens a new segment, so that theirs can be compacted, and stays.
ROLL = len(KEYS)
END = ROLL + 1
PAIRS = [pair for pair in combinations(range(END + 1), 2) if pair[1] in {1, 3, 4, 5, 8, 9}]
IN_A_HOLE = 4001


@pytest.fixture(scope="module")
def compacted(kafka):
    """A compacted topic with a topic partition for each of PAIRS, all of whose logs are the same."""
    topic = "compacted"
    kafka.create(
        topic, partitions=len(PAIRS), cleanup_policy="compact", segment_ms="60000", min_cleanable_dirty_ratio="0.001"
    )
    producer = kafka.producer(**{"enable.idempotence": True})
    for partition in range(len(PAIRS)):
        for offset, key in enumerate(KEYS):
            producer.produce(topic, str(offset), key, partition, timestamp=1000 * (offset + 1))
    # A segment begins with a batch of its own.
    assert producer.flush(60) == 0
    for partition in range(len(PAIRS)):
        producer.produce(topic, str(ROLL), "roll", partition, timestamp=10_000_000)
    assert producer.flush(60) == 0
    until(lambda: _offsets(kafka, topic) == {p: [*LEFT, ROLL] for p in range(len(PAIRS))})()
    return topic


def _offsets(kafka, topic):
    """What a consumer finds in each topic partition."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "tests", "enable.partition.eof": True, **QUIET}
    )
    found = {partition: [] for partition in range(len(PAIRS))}
    ended = set()
    try:
        consumer.assign([ClientTopicPartition(topic, partition, 0) for partition in found])
        while len(ended) < len(found):
            for message in consumer.consume(1000, 0.1):
                error, partition = message.error(), message.partition()
                assert partition is not None
                if error is None:
                    found[partition].append(message.offset())
                else:
                    assert error.name() == "_PARTITION_EOF"
                    ended.add(partition)
    finally:
        consumer.close()
    return found


def test_a_split_may_start_and_stop_in_a_hole(spark, source_of, enumerator_of, compacted):
    builder = (
        KafkaSource.builder()
        .set_topics(compacted)
        .set_starting_offsets(
            OffsetsInitializer.specific_offsets({(compacted, p): start for p, (start, _) in enumerate(PAIRS)})
        )
        .set_bounded(OffsetsInitializer.specific_offsets({(compacted, p): stop for p, (_, stop) in enumerate(PAIRS)}))
    )
    enumerator = enumerator_of(builder)
    assert splits_of(enumerator.start()) == dict(enumerate(PAIRS))
    read = offsets_read(spark, source_of(builder), enumerator.assign(Limits()))
    expected = {p: within([*LEFT, ROLL], pair) for p, pair in enumerate(PAIRS)}
    assert read == {p: offsets for p, offsets in expected.items() if offsets}


@pytest.mark.parametrize(
    ("timestamp", "found"), [(0, 3), (1000, 3), (4000, 3), (IN_A_HOLE, 5), (6000, 5), (8001, ROLL), (10_000_001, END)]
)
def test_a_time_that_was_compacted_away_is_the_next_record_left(
    spark, source_of, enumerator_of, compacted, timestamp, found
):
    initializer = OffsetsInitializer.timestamp(timestamp)
    builder = KafkaSource.builder().set_partitions([(compacted, 0)])
    before, behind = enumerator_of(builder.set_bounded(initializer)), builder.set_starting_offsets(initializer)
    assert splits_of(before.start()) == {0: (0, found)}
    enumerator = enumerator_of(behind)
    assert splits_of(enumerator.start()) == ({0: (found, END)} if found < END else {})
    # Spark reads what splits say, from and to any offset: see above.
    if timestamp == IN_A_HOLE:
        for assignment, pair in ((before.assign(Limits()), (0, found)), (enumerator.assign(Limits()), (found, END))):
            assert offsets_read(spark, source_of(builder), assignment) == {0: within([*LEFT, ROLL], pair)}
