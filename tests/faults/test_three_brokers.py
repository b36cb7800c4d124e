"""Three brokers: leaders die, brokers are restarted one by one, topics grow under load, and logs are cut off."""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip.errors import ClusterRequestError, ClusterUnreachableError, EndBeforePositionError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane import Lane
from dagster_kafka_flip.sink.progress import Origin, Progress
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from tests import landed
from tests.faults.connect_ingesting import stopping
from tests.faults.following import start_of
from tests.faults.network import RECORD_BYTES, RECORDS
from tests.faults.three_brokers import ThreeBrokers
from tests.kafka_topic import Kafka
from tests.processes import wait_until
from tests.sink.conftest import Published
from tests.sink.publishing import by_last_digit

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory):
    """Three brokers."""
    with ThreeBrokers(tmp_path_factory.mktemp("brokers")) as started:
        yield started


@pytest.fixture
def brokers(three_brokers):
    """All of them running, whatever the test before has left."""
    three_brokers.heal()
    return three_brokers


@pytest.fixture
def three(brokers):
    """Makes topics and records on them."""
    client = Kafka(brokers.bootstrap_servers, replicas=3)
    yield client
    client.close()


@pytest.fixture
def run(brokers, spark_of):
    """One run of a topic's stream."""

    def land(topics, table, request_timeout=20, **options):
        topics = (topics,) if isinstance(topics, str) else topics
        connection = KafkaConnection(bootstrap_servers=brokers.bootstrap_servers, request_timeout=request_timeout)
        source = KafkaSource(topics=topics, java_properties=options.pop("java_properties", {}))
        return ingest(source, table, spark=spark_of, connection=connection, **options)

    return land


def test_a_leader_that_is_killed_in_the_middle_of_a_read_costs_no_record(brokers, three, run, topic, table, tmp_path):
    three.create(topic)
    three.produce(topic, [(None, bytes(RECORD_BYTES))] * RECORDS)
    reading, release = tmp_path / "reading", tmp_path / "release"
    reported = []
    # Fetched in small pieces, so that most of it has to come from the next leader.
    options = {"java_properties": {"max.partition.fetch.bytes": "300000", "max.poll.records": "10"}}
    thread = threading.Thread(
        target=lambda: reported.append(run(topic, table, transform=stopping(str(reading), str(release)), **options))
    )
    thread.start()
    wait_until(lambda: reading.exists() or not thread.is_alive(), seconds=120)
    leader = brokers.leaders(topic)[0]
    brokers.kill(leader)
    release.touch()
    thread.join(300)
    assert [result.rows for result in reported] == [RECORDS]
    assert landed.values(table, "kafka_offset") == [*range(RECORDS)]
    brokers.start(leader)
    # Another leader alone is nothing to stop for.
    brokers.wait_for_replicas(topic, 3)
    assert run(topic, table).rows == 0
    three.produce(topic, [(None, "more")])
    assert run(topic, table).rows == 1


def test_a_plan_right_after_a_leaders_death_waits_for_the_next_leader_and_not_for_the_dead_one(
    brokers, three, run, topic, table
):
    three.create(topic, 3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    for number in range(3):
        three.produce(topic, [(None, "x")], partition=number)
    with closing(KafkaCluster(KafkaConnection(bootstrap_servers=brokers.bootstrap_servers))) as cluster:
        # Once with a client that knows the leaders, and with the new one of a run.
        cluster.cluster_id()
        for asked in (
            lambda: sum(cluster.end_offsets(partitions, "read_committed").values()),
            lambda: run(topic, table).rows,
        ):
            brokers.kill(brokers.leaders(topic)[0])
            assert asked() == 3
            brokers.heal()
            brokers.wait_for_replicas(topic, 3)
            cluster.end_offsets(partitions, "read_committed")
    assert landed.count(table) == 3


def test_a_topic_partition_without_a_leader_is_waited_for_with_a_word_and_then_told_with_advice(
    brokers, three, run, topic, table, caplog
):
    led = f"{topic}-led"
    brokers.create_on(led, [1, 2], min_insync_replicas="1")
    brokers.create_on(topic, [3], min_insync_replicas="1")
    for name in (topic, led):
        three.produce(name, [(None, "x")])
    brokers.kill(3)
    brokers.wait_for_leader(topic, None)
    with pytest.raises(ClusterRequestError) as refused:
        run((topic, led), table, request_timeout=13)
    assert str(refused.value).startswith(
        f"Kafka at {brokers.bootstrap_servers} failed to return the offsets of {topic}-0: LEADER_NOT_AVAILABLE: "
    )
    assert str(refused.value).endswith(
        ". No broker leads the topic partition. Nothing was written. Start the brokers that have its replicas, or "
        "wait until one of them is elected, then run again"
    )
    waited = f"waiting for 10 s: Kafka at {brokers.bootstrap_servers}: the offsets of {topic}-0: LEADER_NOT_"
    assert waited in caplog.text
    connection = KafkaConnection(bootstrap_servers=brokers.bootstrap_servers, request_timeout=1)
    with closing(KafkaCluster(connection)) as cluster:
        cluster.cluster_id()
        with pytest.raises(
            ClusterUnreachableError, match=r"\. A broker has answered before: start those that are down"
        ):
            cluster.end_offsets([TopicPartition(topic, 0)], "read_committed")
    # What the messages advise.
    brokers.start(3)
    assert run((topic, led), table).rows == 2
    assert landed.values(table, "kafka_topic") == [topic, led]


def test_a_run_without_any_broker_says_what_it_waits_for_and_one_after_they_are_started_goes_on(
    brokers, three, run, topic, table, caplog
):
    three.create(topic)
    three.produce(topic, [(None, "a")] * 3)
    assert run(topic, table).rows == 3
    three.produce(topic, [(None, "b")] * 2)
    for number in (1, 2, 3):
        brokers.kill(number)
    with pytest.raises(ClusterUnreachableError) as refused:
        run(topic, table)
    assert f"waiting for 10 s: Kafka at {brokers.bootstrap_servers}: the cluster's id" in caplog.text
    assert f"Kafka at {brokers.bootstrap_servers}" in str(refused.value)
    brokers.heal()
    assert run(topic, table).rows == 2
    assert landed.values(table, "kafka_offset") == [*range(5)]


def test_records_and_topic_partitions_that_come_during_a_rolling_restart_land_once(brokers, three, run, topic, table):
    three.create(topic, 2)
    stop = threading.Event()
    # Each topic partition has records with consecutive numbers.
    written = dict.fromkeys(range(5), 0)
    producer = three.producer(**{"enable.idempotence": True, "delivery.timeout.ms": 120_000, "linger.ms": 5})
    partitions = [2]

    def write():
        while not stop.wait(0.005):
            for partition in range(partitions[0]):
                producer.produce(topic, str(written[partition]), partition=partition)
                written[partition] += 1
            producer.poll(0)
        assert producer.flush(120) == 0

    thread = threading.Thread(target=write)
    thread.start()
    try:
        results = [run(topic, table)]
        for number in (1, 2, 3):
            brokers.stop(number)
            results.append(run(topic, table))
            brokers.start(number)
            three.grow(topic, 2 + number)
            producer.list_topics(topic, timeout=30)
            partitions[0] = 2 + number
            brokers.wait_for_replicas(topic, 3)
            results.append(run(topic, table))
    finally:
        stop.set()
        thread.join()
    results.append(run(topic, table))
    assert all(written.values())
    assert landed.rows(table, "kafka_partition", "kafka_offset", "CAST(kafka_value AS STRING)") == [
        (partition, number, str(number)) for partition, count in written.items() for number in range(count)
    ]
    assert sum(result.rows or 0 for result in results) == sum(written.values())


def test_a_coordinator_and_a_leader_that_die_in_mid_publication_cost_and_double_no_record(
    brokers, three, spark, topic, table
):
    connection = KafkaConnection(bootstrap_servers=brokers.bootstrap_servers)
    published = Published(spark, three, connection, topic, table)
    published.create()
    published.sql("INSERT INTO {t} SELECT id, concat('a', id) FROM range(9)")
    published.sql("UPDATE {t} SET v = concat('b', id)")
    calls, killed = [], []

    def killing(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        calls.append(key)
        if len(calls) in (4, 13):
            # First the coordinator of all transactions, then the leader of a topic partition, each in a transaction.
            brokers.heal()
            leaders = brokers.leaders("__transaction_state" if len(calls) == 4 else topic)
            killed.append(leaders[0])
            brokers.kill(leaders[0])
        return by_last_digit(topic, key, value, partitions)

    result = published.run(start=0, lanes=2, partitioner=killing, limits=Limits(max_records_per_batch=6))
    assert len(killed) == 2
    assert (result.records, result.lag_versions) == (18, 0)
    assert published.texts() == {key: [f"a{key}", f"b{key}"] for key in range(9)}
    # The brokers' default is one.
    with closing(KafkaCluster(connection)) as cluster:
        assert cluster.describe_topics([published.sink.progress_name])[published.sink.progress_name].replicas == 3


class _Starting(logging.Handler):
    """Starts the brokers that are down once a run says that it waits."""

    def __init__(self, brokers: ThreeBrokers) -> None:
        super().__init__()
        self._start = brokers.heal
        self.reported: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("waiting for"):
            self.reported.append(record.getMessage())
            if len(self.reported) == 1:
                threading.Thread(target=self._start).start()


@pytest.mark.parametrize(
    ("replicas", "killed", "reported"),
    [
        ([1, 3], [3], "-0 has 1 of 2 replicas in sync, and min.insync.replicas is 2"),
        ([3], [3], "-0 has no leader"),
        ([1, 2, 3], [1, 2, 3], None),
    ],
    ids=["too few replicas in sync", "no leader", "no broker"],
)
def test_a_sink_says_within_ten_seconds_what_it_waits_for_and_goes_on_when_it_is_there(
    replicas, killed, reported, brokers, spark, topic, table
):
    connection = KafkaConnection(bootstrap_servers=brokers.bootstrap_servers)
    least = str(len(replicas))
    making: Any = SimpleNamespace(create=lambda name, _: brokers.create_on(name, replicas, min_insync_replicas=least))
    published = Published(spark, making, connection, topic, table)
    published.create()
    published.sql("INSERT INTO {t} SELECT id, concat('a', id) FROM range(9)")
    starting = _Starting(brokers)
    log = logging.getLogger(f"{__name__}.{topic}")
    log.addHandler(starting)
    calls = []

    def killing(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        calls.append(key)
        if len(calls) == 4:
            for number in killed:
                brokers.kill(number)
        return by_last_digit(topic, key, value, partitions)

    timeout = timedelta(seconds=60)
    result = published.run(start=0, partitioner=killing, transaction_timeout=timeout, logger=log)
    assert (result.records, result.lag_versions) == (9, 0)
    assert published.texts() == {key: [f"a{key}"] for key in range(9)}
    said = starting.reported[0]
    assert said.startswith(
        f"waiting for 10 s: Kafka at {brokers.bootstrap_servers} has not accepted commit_transaction"
    )
    told = f"Connect to {brokers.bootstrap_servers.partition(':')[0]}:" if reported is None else f"{topic}{reported}"
    assert f" of the lane {topic}-0 yet: {told}" in said


def test_a_lane_that_gives_up_names_the_topic_partitions_that_take_no_records(brokers, topic):
    few, none, progress = (f"{topic}-{name}" for name in ("few", "none", "progress"))
    brokers.create_on(few, [1, 3], min_insync_replicas="2")
    brokers.create_on(none, [3], min_insync_replicas="1")
    brokers.create_on(progress, [1], min_insync_replicas="1")
    connection = KafkaConnection(bootstrap_servers=brokers.bootstrap_servers, request_timeout=5)
    with closing(KafkaCluster(connection)) as cluster:

        def opened(name):
            sink = KafkaSink(
                topic=name,
                transactional_id_prefix=name,
                progress_topic=progress,
                transaction_timeout=timedelta(seconds=8),
            )
            router: Any = SimpleNamespace(batch_bytes=None, unready=lambda: cluster.unready([name]))
            lane = Lane(connection, sink, 0, router)
            lane.open()
            return sink, lane

        lanes = {name: opened(name) for name in (few, none)}
        for name, (_, lane) in lanes.items():
            lane.write(name, b"k", b"v")
            wait_until(lambda lane=lane: lane.serve() or not len(lane._producer), seconds=30)
        brokers.kill(3)
        brokers.wait_for_leader(none, None)
        wait_until(lambda: bool(cluster.unready([few])), seconds=30)
        causes = {few: "has 1 of 2 replicas in sync, and min.insync.replicas is 2", none: "has no leader"}
        for name, (_, lane) in lanes.items():
            lane.write(name, b"k", b"v")
            told = f"did not accept .* of the lane {name}-0 in time: {name}-0 {causes[name]}: start the brokers"
            with pytest.raises(ClusterUnreachableError, match=told):
                lane.commit(Progress(0, 1, "t", None, "a", "i", Origin(0, snapshot=False), 1, 0, "{}", "s"))
            lane.close()
        # The transaction of the lane before can't end, as its topic partition can't be told.
        with pytest.raises(
            ClusterUnreachableError, match=f"did not accept init_transactions .*: {none}-0 has no leader"
        ):
            opened(none)
        brokers.start(3)
        opened(none)[1].close()


def test_a_progress_topic_of_too_few_replicas_is_told_at_each_start_until_the_advice_is_followed(
    brokers, three, spark, topic, table, caplog
):
    published = Published(spark, three, KafkaConnection(bootstrap_servers=brokers.bootstrap_servers), topic, table)
    progress = published.sink.progress_name
    brokers.create_on(progress, [1], min_insync_replicas="1", cleanup_policy="compact")
    told = (
        f"the progress topic {progress} has 1 replica, but the topic {topic} has 3: if their disks are lost, the sink "
        "must start over. Add replicas to the progress topic (kafka-reassign-partitions)"
    )

    def publish():
        caplog.clear()
        return published.run(start=0).records, told in caplog.text

    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    assert [publish(), publish()] == [(1, True), (0, True)]
    _add_replicas(spark, brokers.bootstrap_servers, progress)
    brokers.wait_for_replicas(progress, 3)
    brokers.kill(1)
    published.sql("INSERT INTO {t} VALUES (2, 'b')")
    assert publish() == (1, False)
    assert published.texts() == {1: ["a"], 2: ["b"]}


def _add_replicas(spark, servers, topic):
    """What kafka-reassign-partitions asks for."""
    jvm = spark._jvm
    reassigned, replicas = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    for number in (1, 2, 3):
        replicas.add(number)
    new = jvm.org.apache.kafka.clients.admin.NewPartitionReassignment(replicas)
    reassigned.put(jvm.org.apache.kafka.common.TopicPartition(topic, 0), jvm.java.util.Optional.of(new))
    admin = jvm.org.apache.kafka.clients.admin.Admin.create({"bootstrap.servers": servers})
    admin.alterPartitionReassignments(reassigned).all().get()
    admin.close()


def _replicate(brokers, three, topics):
    """Two brokers have four records; the second one dies before the others come."""
    for name in topics:
        brokers.create_on(name, [1, 2], min_insync_replicas="1", unclean_leader_election_enable="true")
        three.produce(name, [(None, f"a{number}") for number in range(4)])
    brokers.kill(2)
    for name in topics:
        brokers.wait_for_replicas(name, 1)


def _elect_uncleanly(brokers, topics):
    """The first one dies, too, and the second becomes the leader without the last records."""
    brokers.kill(1)
    brokers.start(2)
    for name in topics:
        brokers.wait_for_leader(name, 2)


def test_an_unclean_election_in_mid_run_tells_no_start_and_the_next_run_the_one_that_doubles_nothing(
    brokers, three, run, topic, table
):
    _replicate(brokers, three, [topic])
    three.produce(topic, [(None, f"b{number}") for number in range(3)])
    assert run(topic, table).rows == 7
    three.produce(topic, [(None, "x")])
    elected = []

    def electing(records):
        if not elected:
            _elect_uncleanly(brokers, [topic])
            elected.append(True)
        return records

    with pytest.raises(EndBeforePositionError) as refused:
        run(topic, table, transform=electing)
    assert str(refused.value) == (
        f"{topic}-0: records up to offset 8 were planned, but the log was truncated at offset 4 and ends at offset 4. "
        "Nothing was written. The stream's next run plans anew from its position"
    )
    other = Kafka(brokers.bootstrap_servers)
    other.produce(topic, [(None, "c")])
    other.close()
    with pytest.raises(EndBeforePositionError) as refused:
        run(topic, table)
    assert run(topic, table, starting_offsets=start_of(refused)).rows == 1
    values = [*(f"a{number}" for number in range(4)), *(f"b{number}" for number in range(3)), "c"]
    assert landed.values(table, "CAST(kafka_value AS STRING)") == values
    brokers.start(1)
