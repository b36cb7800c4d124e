"""A network to the broker that is cut, while Spark reads and while a run is planned, and heals."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

import pytest

from dagster_kafka_flip.errors import ClusterUnreachableError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.telemetry import repeatedly
from tests import landed
from tests.faults.connect_ingesting import stopping
from tests.faults.network import IMPATIENT, RECORD_BYTES, RECORDS, Network
from tests.kafka_topic import Kafka
from tests.processes import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def connection(distant):
    """The way to the broker that can be cut, for clients that don't wait for long."""
    return KafkaConnection(bootstrap_servers=distant.distant_servers, request_timeout=2, read_timeout=2)


@pytest.fixture
def source(distant, topic):
    """A topic with more records than are fetched at once."""
    # Written by a way of its own.
    kafka = Kafka(distant.bootstrap_servers)
    kafka.create(topic)
    kafka.produce(topic, [(None, bytes(RECORD_BYTES))] * RECORDS)
    kafka.close()
    return KafkaSource(topics=(topic,), java_properties=IMPATIENT)


class _Healer(logging.Handler):
    """Heals the network once it is said that something is tried again."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self.reported: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "retrying in" in record.getMessage():
            self.reported.append(record.getMessage())
            self._network.heal()


@contextlib.contextmanager
def _while_spark_reads(then, reading: Path, cut: Path):
    """Does something, in a thread of its own, when Spark has a record in hand; the read goes on behind it."""

    def wait() -> None:
        try:
            wait_until(reading.exists, seconds=120)
            then()
        finally:
            cut.touch()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        waiting.join()


def _offsets(table):
    return landed.values(table, "kafka_offset")


def test_a_network_that_is_cut_while_spark_reads_and_heals_costs_no_record(
    distant, connection, source, spark, spark_of, topic, table, tmp_path
):
    reading, cut = tmp_path / "reading", tmp_path / "cut"
    healer = _Healer(distant.network)
    log = logging.getLogger(f"{__name__}.{topic}")
    log.addHandler(healer)
    with _while_spark_reads(distant.network.cut, reading, cut):
        result = ingest(
            source, table, spark=spark_of, connection=connection, transform=stopping(str(reading), str(cut)), logger=log
        )
    # More than one only where the machine is so slow that the second one ran into its timeouts too.
    assert healer.reported[0].startswith(f"the write to {table} failed with a transient error (try 1 of 5)")
    assert result.rows == RECORDS
    assert result.state.position == {TopicPartition(topic, 0): RECORDS}
    assert _offsets(table) == list(range(RECORDS))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    assert [row["operation"] for row in history] == ["WRITE", "CREATE TABLE"]


def test_a_reader_that_is_cut_off_while_planning_is_not_is_reported_with_the_brokers_addresses(
    distant, connection, source, spark_of, table
):
    distant.network.cut_java()
    with pytest.raises(ClusterUnreachableError) as unreachable:
        ingest(source, table, spark=spark_of, connection=connection)
    message = str(unreachable.value)
    assert message.startswith(
        "Spark's Kafka reader could not connect to the brokers, or lost the connection, in 2 tries, "
    )
    assert f"advertised.listeners are {distant.distant_servers} (bootstrap_servers" in message
    assert "TimeoutException" in message

    distant.network.heal()
    assert ingest(source, table, spark=spark_of, connection=connection).rows == RECORDS


def test_a_network_that_is_silent_between_two_requests_of_the_plan_leaves_nothing_behind(
    distant, connection, source, spark, spark_of, topic, table, monkeypatch, caplog
):
    monkeypatch.setattr(repeatedly, "_SILENCE_SECONDS", 3.0)
    # In time for more than one request.
    connection = connection.model_copy(update={"request_timeout": 4.5})
    asked = KafkaCluster.end_offsets
    met = []

    def cut_first(cluster, *args, **kwargs):
        if not met:
            met.append(True)
            distant.network.silence()
        return asked(cluster, *args, **kwargs)

    # The topic and where its log begins are known by then.
    monkeypatch.setattr(KafkaCluster, "end_offsets", cut_first)
    with pytest.raises(ClusterUnreachableError) as unreachable:
        ingest(source, table, spark=spark_of, connection=connection)
    assert met
    assert f" did not return the offsets of {topic}-0 within 4.5 s: " in str(unreachable.value)
    assert str(unreachable.value).endswith(
        "timed out. Nothing was written. A broker has answered before: start those that are down, or check whether "
        "all can be reached"
    )
    waited = f"waiting for 3 s: Kafka at {distant.distant_servers}: the offsets of {topic}-0: "
    assert waited in caplog.text
    assert not Path(table).exists()

    distant.network.heal()
    assert ingest(source, table, spark=spark_of, connection=connection).rows == RECORDS
    assert _offsets(table) == list(range(RECORDS))
