"""A broker that is killed while Spark reads from it: one that comes back, and one that does not."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.errors import BrokerError, ClusterUnreachableError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table import interruptible
from tests import landed
from tests.kafka_topic import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

_RECORDS = 400
# Far more than a consumer fetches at once, so that there is something left to fetch when the broker is gone.
_RECORD_BYTES = 100_000
_SMALL_FETCHES = {"max.partition.fetch.bytes": "1000000", "max.poll.records": "10", "request.timeout.ms": "4000"}


@pytest.fixture
def local(tmp_path):
    """A broker of the test's own, to be killed."""
    with LocalBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def source(local, topic):
    """A topic with more records than are fetched at once."""
    kafka = Kafka(local.bootstrap_servers)
    kafka.create(topic)
    kafka.produce(topic, [(None, bytes(_RECORD_BYTES))] * _RECORDS)
    kafka.close()
    return KafkaSource(topics=(topic,), java_properties=_SMALL_FETCHES)


def _kill_while_spark_reads(pid: int, dead: Path):
    """A transform that kills the broker once Spark has the first record in hand, and goes on when it is dead."""

    def transform(records):
        from pyspark.sql import functions as f

        @f.udf("boolean", useArrow=False)
        def kill(offset: int, _: bytes) -> bool:
            import os
            import signal
            import time
            from pathlib import Path

            if offset == 0 and not Path(dead).exists():
                os.kill(pid, signal.SIGKILL)
                while not Path(dead).exists():
                    time.sleep(0.01)
            return True

        # Given the values too, so that Spark can't run far ahead of the function: they fill every buffer in between.
        return records.where(kill("kafka_offset", "kafka_value"))

    return transform


@contextlib.contextmanager
def _when_killed(local, dead, then):
    """Does something, in a thread of its own, when the broker has been killed; makes sure that it was, at the end."""
    ends = []

    def wait():
        try:
            local.wait()
        except BrokerError as error:
            ends.append(str(error))
        Path(dead).touch()
        then()

    pid = local.status().pid
    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield pid
        assert ends, "Spark never got to the record at which it kills the broker"
    finally:
        if not ends and local.status() is not None:
            os.kill(pid, signal.SIGKILL)
        waiting.join()
    assert f"ended with -{signal.SIGKILL:d}" in ends[0]


def test_a_broker_that_is_killed_while_spark_reads_and_comes_back_costs_no_record(
    local, source, spark, spark_of, topic, table, tmp_path
):
    dead = tmp_path / "dead"
    address = local.bootstrap_servers
    connection = KafkaConnection(bootstrap_servers=address)
    with _when_killed(local, dead, local.start) as pid:
        # Whether the read goes on or is tried again is the Java client's affair: a broker that recovers may look to it
        # like one that lost data.
        result = ingest(
            source, table, spark=spark_of, connection=connection, transform=_kill_while_spark_reads(pid, dead)
        )
    assert dead.exists()
    assert local.bootstrap_servers == address
    assert result.rows == _RECORDS
    assert result.state.position == {TopicPartition(topic, 0): _RECORDS}
    assert landed.values(table, "kafka_offset") == list(range(_RECORDS))


def test_a_broker_that_stays_away_ends_the_run_with_nothing_written(
    local, source, spark, spark_of, table, tmp_path, caplog, monkeypatch
):
    dead = tmp_path / "dead"
    source = source.model_copy(update={"java_properties": {**_SMALL_FETCHES, "default.api.timeout.ms": "5000"}})
    connection = KafkaConnection(bootstrap_servers=local.bootstrap_servers, read_timeout=5, request_timeout=1)
    monkeypatch.setattr(interruptible, "_FIRST_WAIT_SECONDS", 0.1)
    with (
        caplog.at_level(logging.WARNING, logger="dagster_kafka_flip"),
        _when_killed(local, dead, lambda: None) as pid,
        pytest.raises(ClusterUnreachableError),
    ):
        ingest(source, table, spark=spark_of, connection=connection, transform=_kill_while_spark_reads(pid, dead))
    reported = [record.getMessage() for record in caplog.records if "retrying in" in record.getMessage()]
    assert [text.partition("; ")[0] for text in reported] == [
        f"the write to {table} failed with a transient error (try {number} of 5)" for number in range(1, 5)
    ]
    assert landed.count(table) == 0
    assert landed.operations(table) == ["CREATE TABLE"]
