"""A broker that has no look-up of a log's highest timestamp (Kafka before 3.0) against one that has."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.limits import Limits, Spread
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from tests.kafka_topic import Kafka
from tests.source.flink.logs import splits_of, write

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.kafka

_KAFKA = "org.apache.kafka:kafka_2.13:2.8.2"
_SETTINGS = """\
broker.id=1
zookeeper.connect=127.0.0.1:{zookeeper}
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/logs
offsets.topic.replication.factor=1
log.cleaner.dedupe.buffer.size=16777216
"""
_ZOOKEEPER = """\
dataDir={folder}/zookeeper
clientPort={zookeeper}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""

_HOUR = 3_600_000
_BASE = 1_700_000_000_000


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def _java(class_path: str, main: str, settings: Path) -> Generator[subprocess.Popen[bytes]]:
    """A Java process, gone afterwards."""
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    with settings.with_suffix(".log").open("wb") as log:
        command = [str(find_java()), *options, "-cp", class_path, main, str(settings)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


@pytest.fixture(scope="module")
def old_kafka(tmp_path_factory) -> Iterator[Kafka]:
    """Kafka 2.8, which still needs ZooKeeper."""
    folder = tmp_path_factory.mktemp("old-kafka")
    class_path = ":".join(map(str, retrieve((_KAFKA,))))
    ports = {"zookeeper": _free_port(), "port": _free_port(), "folder": folder}
    for name, text in (("zookeeper", _ZOOKEEPER), ("kafka", _SETTINGS)):
        (folder / f"{name}.properties").write_text(text.format(**ports))
    with (
        _java(class_path, "org.apache.zookeeper.server.quorum.QuorumPeerMain", folder / "zookeeper.properties"),
        _java(class_path, "kafka.Kafka", folder / "kafka.properties"),
    ):
        for attempt in Retrying(
            retry=retry_if_exception_type(OSError), wait=wait_fixed(0.1), stop=stop_after_delay(60), reraise=True
        ):
            with attempt:
                socket.create_connection(("127.0.0.1", ports["port"]), 1).close()
        client = Kafka(f"127.0.0.1:{ports['port']}")
        yield client
        client.close()


def test_an_old_broker_aligns_and_spreads_by_time_as_a_new_one_does(kafka, old_kafka, topic, caplog):
    logs = {
        0: [_BASE + hour * _HOUR for hour in range(48)],
        1: [_BASE + hour * _HOUR for hour in (3, 1, 2, 5, 4, 5, 0)],
        2: [_BASE + 9 * _HOUR],
        4: [-1, _BASE + 7 * _HOUR, -1],
    }
    partitions = [TopicPartition(topic, number) for number in range(5)]
    caplog.set_level(logging.INFO, "dagster_kafka_flip.source.cluster")
    told = []
    for broker in (kafka, old_kafka):
        broker.create(topic, 5)
        write(broker, topic, logs)
        connection = KafkaConnection(bootstrap_servers=broker.bootstrap_servers)
        builder = KafkaSource.builder().set_topics(topic).set_bootstrap_servers(broker.bootstrap_servers)
        caplog.clear()
        with closing(KafkaCluster(connection)) as cluster:
            highest = cluster.max_timestamps(partitions)
        messages = list(caplog.messages)
        aligned = builder.set_watermark_alignment(timedelta(hours=2)).build()
        with closing(aligned.create_enumerator(SplitEnumeratorContext())) as enumerator:
            plan = enumerator.start()
        with closing(builder.build().create_enumerator(SplitEnumeratorContext())) as enumerator:
            enumerator.start()
            cuts = []
            while (batch := enumerator.assign(Limits(max_records_per_batch=20, spread=Spread.TIME))) is not None:
                cuts.append(splits_of(batch.plan))
        late = builder.set_starting_offsets(OffsetsInitializer.timestamp(_BASE + 6 * _HOUR)).build()
        with closing(late.create_enumerator(SplitEnumeratorContext())) as enumerator:
            starts = splits_of(enumerator.start())
        told.append((highest, splits_of(plan), plan.state.watermark, cuts, starts, len(messages)))
    new, old = told
    assert new[0] == {
        tp: (times.index(max(times)), max(times))
        for tp, times in ((tp, logs.get(tp.partition)) for tp in partitions)
        if times
    }
    # What is dated more than two hours later than the slowest one gets waits.
    assert new[1] == {0: (0, 8), 1: (0, 7), 4: (0, 3)}
    assert old[:5] == new[:5]
    # Only where it is so.
    assert (new[5], old[5]) == (0, 1)
