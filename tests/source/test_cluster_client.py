"""The client that plans, on the real broker: what it makes of silence, of old errors, and of its own end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.errors import ClusterRequestError, ClusterUnreachableError, ConfigurationError
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.split import KafkaPartitionSplit, RecordSearch, TopicPartition
from tests.kafka_topic import Kafka
from tests.source.flink.logs import until

pytestmark = pytest.mark.kafka

# Asked in a process of its own: what goes wrong in librdkafka may end the process.
_ASK = """
import sys
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.split import RecordSearch
from dagster_kafka_flip.source.split import TopicPartition
cluster = KafkaCluster(KafkaConnection(bootstrap_servers=sys.argv[1]))
print(cluster.committed_offsets([TopicPartition("t", number) for number in range(3)], "g"))
"""


def test_a_group_can_be_asked_for_on_a_broker_that_never_had_one(tmp_path):
    with LocalBroker(tmp_path / "broker") as local:
        # The first question makes __consumer_offsets; while it is being made, the admin client's request ended the
        # process by SIGSEGV in most cases.
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, local.bootstrap_servers],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert (asked.returncode, asked.stdout.strip()) == (0, "{}"), asked.stderr


def test_a_broker_that_falls_silent_does_not_mean_that_there_are_no_records(tmp_path):
    tp = TopicPartition("t", 0)
    split = KafkaPartitionSplit(tp, 0, 3)
    with (
        LocalBroker(tmp_path / "broker") as local,
        contextlib.closing(Kafka(local.bootstrap_servers)) as kafka,
        contextlib.closing(KafkaCluster(KafkaConnection(bootstrap_servers=local.bootstrap_servers))) as cluster,
    ):
        kafka.create("t")
        kafka.produce("t", [(None, "x")] * 3)
        assert cluster.cluster_id() is not None
        status = local.status()
        assert status is not None
        cluster.request_timeout = 0.2
        os.kill(status.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ClusterUnreachableError, match=r"single records \(t-0\)"):
                cluster.search_records([RecordSearch(tp, 1, 2, 0)], "read_committed")
            with pytest.raises(ClusterUnreachableError, match=r"Kafka at .* did not return records \("):
                list(cluster.records([split], "read_committed"))
        finally:
            os.kill(status.pid, signal.SIGCONT)


def test_ranges_are_read_record_by_record_over_markers_and_never_short(kafka, connection, topic):
    kafka.create(topic, 2)
    kafka.produce(topic, [("k", "0"), (None, None)])
    # A record, a marker, an aborted record, a marker: offsets 2 to 5.
    kafka.open_transaction(topic, [(None, "2")]).commit()
    kafka.open_transaction(topic, [(None, "aborted")]).abort()
    kafka.produce(topic, [("k", "other")], partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        ranges = [KafkaPartitionSplit(first, 0, 6), KafkaPartitionSplit(second, 0, 1)]
        found = list(cluster.records(ranges, "read_committed"))
        assert sorted((record.partition(), record.offset(), record.key(), record.value()) for record in found) == [
            (0, 0, b"k", b"0"),
            (0, 1, None, None),
            (0, 2, None, b"2"),
            (1, 0, b"k", b"other"),
        ]
        uncommitted = list(cluster.records([KafkaPartitionSplit(first, 1, 6)], "read_uncommitted"))
        assert [record.offset() for record in uncommitted] == [1, 2, 4]
        with pytest.raises(
            ClusterRequestError,
            match=rf"{topic}-1: the log ends at offset 1, but records up to "
            "offset 3",
        ):
            list(cluster.records([KafkaPartitionSplit(second, 0, 3)], "read_committed"))


def test_an_error_from_before_an_answer_is_not_given_as_the_cause_of_a_later_one(broker):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        cluster = KafkaCluster(KafkaConnection(bootstrap_servers=f"{nobody},{broker}", request_timeout=10))
        assert cluster.cluster_id() is not None
    # Nothing is asked meanwhile: nothing new can have been told.
    error = cluster._failures.unreachable("something", "timed out")
    assert " did not return something within 10 s: timed out. " in str(error)


def test_a_client_that_is_closed_ends_its_threads_and_answers_no_more(connection):
    def threads():
        gc.collect()
        return set(Path("/proc/self/task").iterdir())

    KafkaCluster(connection).close()  # what is started once for the process
    before = threads()
    cluster = KafkaCluster(connection)
    assert cluster.cluster_id() is not None
    # Those of an earlier test's clients may end meanwhile.
    its_own = threads() - before
    assert its_own
    cluster.close()
    cluster.close()
    until(lambda: not its_own & threads())()
    with pytest.raises(ConfigurationError, match="is closed"):
        cluster.cluster_id()
