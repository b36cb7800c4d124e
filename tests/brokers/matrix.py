"""The core on brokers of each release of Kafka: what is landed and published is compared with what a consumer reads.

`make test-brokers` runs this; it takes minutes, so `make test` does not. Between them the releases have every way in
which brokers still in use answer: 3.3 is the first without ZooKeeper, 3.9 the last that speaks the oldest
protocols, 4.0 the first that does not.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from dagster_kafka_flip.broker.local_broker import KAFKA_VERSION
from dagster_kafka_flip.errors import TopicRecreatedError
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.brokers.release import release
from tests.kafka_topic import QUIET, Kafka, consumed
from tests.processes import wait_until
from tests.sink.conftest import Published
from tests.sink.held_requests import HeldRequests
from tests.sink.numbers import EVERY_SCHEDULE, try_all
from tests.source.flink.logs import splits_of
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RELEASES = ("3.3.2", "3.7.2", "3.9.2", "4.0.1", KAFKA_VERSION)


@pytest.fixture(scope="module", params=RELEASES)
def broker(request, tmp_path_factory):
    """The address of a broker of one release, in the place of the session's."""
    with release(tmp_path_factory.mktemp("release"), request.param) as bootstrap_servers:
        yield bootstrap_servers


@pytest.fixture(scope="module")
def kafka(broker):
    """Makes topics and records on it."""
    client = Kafka(broker)
    yield client
    client.close()


@pytest.fixture(scope="module")
def connection(broker):
    """How to reach it."""
    return KafkaConnection(bootstrap_servers=broker)


@pytest.fixture
def land(connection, spark_of, table):
    """Runs ingest() of a topic into the test's table."""

    def run(topic, **options):
        source = KafkaSource(topics=(topic,))
        return ingest(source, options.pop("into", table), spark=spark_of, connection=connection, **options)

    return run


def _create_when_it_is_gone(kafka, topic):
    # With ZooKeeper, its deletion goes on after the brokers have forgotten its partitions.
    for attempt in Retrying(
        retry=retry_if_exception_type(KafkaException), wait=wait_fixed(0.1), stop=stop_after_delay(60), reraise=True
    ):
        with attempt:
            kafka.create(topic, 2)


def _landed(table):
    return landed.rows(table, "kafka_partition", "kafka_offset", "kafka_key", "kafka_value")


def _records(first, last):
    return [(f"k{number}", f"v{number}") for number in range(first, last)]


def test_each_committed_record_is_landed_once_and_a_transactions_when_it_is_over(kafka, land, table, topic):
    kafka.create(topic, 2)
    for partition in range(2):
        kafka.produce(topic, _records(0, 50), partition=partition)
    kafka.open_transaction(topic, _records(50, 60)).abort()
    kafka.open_transaction(topic, _records(60, 70), partition=1).commit()
    kafka.produce(topic, _records(70, 80))
    waiting = kafka.open_transaction(topic, _records(80, 90))
    kafka.produce(topic, _records(90, 95))

    assert land(topic).rows == 50 + 50 + 10 + 10
    waiting.commit()
    assert land(topic).rows == 10 + 5
    assert land(topic).rows == 0
    assert len(_landed(table)) == 135
    assert _landed(table) == consumed(kafka.bootstrap_servers, topic, 2)

    # The topic's id tells a new topic from the old one.
    kafka.delete(topic)
    _create_when_it_is_gone(kafka, topic)
    for partition in range(2):
        kafka.produce(topic, _records(0, 200), partition=partition)
    with pytest.raises(TopicRecreatedError, match=topic):
        land(topic)


def test_each_starting_offset_is_the_number_that_it_means(kafka, connection, spark_of, table, topic):
    kafka.create(topic)
    for number in range(10):
        kafka.produce(topic, _records(number, number + 1), timestamp=START + number * HOUR)
    kafka.trim(topic, 0, 2)
    kafka.commit_offsets(f"{topic}-group", topic, {0: 4})
    builder = KafkaSource.builder().set_bootstrap_servers(kafka.bootstrap_servers).set_topics(topic)
    builder = builder.set_group_id(f"{topic}-group").set_commit_offsets()
    started = {}
    for name, start in {
        "earliest": OffsetsInitializer.earliest(),
        "committed": OffsetsInitializer.committed_offsets(),
        "timestamp": OffsetsInitializer.timestamp(START + 6 * HOUR - 1),
        "latest": OffsetsInitializer.latest(),
    }.items():
        source = builder.set_starting_offsets(start).build()
        with closing(source.create_enumerator(SplitEnumeratorContext())) as enumerator:
            started[name] = splits_of(enumerator.start())
    assert started == {"earliest": {0: (2, 10)}, "committed": {0: (4, 10)}, "timestamp": {0: (6, 10)}, "latest": {}}
    aligned = builder.set_starting_offsets(OffsetsInitializer.committed_offsets())
    aligned = aligned.set_watermark_alignment(timedelta(hours=2)).build()
    assert ingest(aligned, table, spark=spark_of, connection=connection).rows == 6
    # And the position is where tools that watch groups look for it.
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"{topic}-group", **QUIET})
    with closing(consumer):
        (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    assert committed.offset == 10


def test_records_left_by_compaction_are_landed(kafka, land, table, topic):
    kafka.create(topic, cleanup_policy="compact", segment_ms="60000", min_cleanable_dirty_ratio="0.001")
    for offset, key in enumerate("aabbacad"):
        kafka.produce(topic, [(key, str(offset))], timestamp=1000 * (offset + 1))
    # A new segment, so that the records before it can be compacted.
    kafka.produce(topic, [("roll", "8")], timestamp=10_000_000)
    wait_until(lambda: len(consumed(kafka.bootstrap_servers, topic)) == 5, seconds=60)
    assert land(topic).rows == 5
    assert [offset for _, offset, _, _ in _landed(table)] == [3, 5, 6, 7, 8]
    assert _landed(table) == consumed(kafka.bootstrap_servers, topic)


def test_windows_hold_the_records_of_their_hours(kafka, connection, spark_of, table, topic):
    kafka.create(topic, 2)
    # Out of order, and on both sides of each bound.
    for partition, minutes in enumerate([(1, 61, 59, 119, 60, 180), (0, 120, 200, 121)]):
        for minute in minutes:
            kafka.produce(topic, [(None, str(minute))], partition=partition, timestamp=START + minute * 60_000)
    target = DeltaTarget(table=table, partition_by=("kafka_window",))
    for _ in range(2):
        list(
            rewrite_windows(
                KafkaSource(topics=(topic,)),
                target,
                hours(0, 3),
                spark=spark_of,
                connection=connection,
                value_format=StringFormat(),
                definition="hours",
            )
        )
    found = landed.rows(table, "kafka_window", "CAST(kafka_value AS int)")
    assert found == [
        *(("h000", minute) for minute in (0, 1, 59)),
        *(("h001", minute) for minute in (60, 61, 119)),
        *(("h002", minute) for minute in (120, 121)),
    ]


def test_a_tables_changes_are_published_once_behind_a_transaction_that_a_dead_run_left(
    spark, kafka, connection, topic, table
):
    published = Published(spark, kafka, connection, topic, table)
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    assert published.run().records == 3
    published.sql("UPDATE {t} SET v = 'B' WHERE id = 2")
    published.sql("DELETE FROM {t} WHERE id = 3")
    # As a run leaves it that is killed in its transaction: under the lane's id.
    dead = kafka.producer(**{"transactional.id": f"{topic}-0"})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(topic, b'{"id": 2, "v": "half"}', b'{"id": 2}')
    assert dead.flush(30) == 0
    assert published.run().records == 2
    assert published.run().records == 0
    assert published.texts() == {1: ["a"], 2: ["b", "B"], 3: ["c", None]}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["3.7.2", "3.9.2"])
def test_a_request_that_the_network_held_back_reaches_no_later_transaction(version, topic, tmp_path):
    networks = []

    def between(port):
        networks.append(HeldRequests(port))
        return networks[0]

    with release(tmp_path, version, between) as address, closing(Kafka(address)) as kafka:
        try_all(kafka, KafkaConnection(bootstrap_servers=address), topic, networks[0], EVERY_SCHEDULE)
