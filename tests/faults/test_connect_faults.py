"""Faults of runs through Spark Connect: clients at once, clients that die, interrupts, a server that is killed."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.runtime.remote import files_setting
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from tests import landed as read
from tests.connect_server import ConnectServer
from tests.faults.connect_ingesting import ConnectIngester
from tests.faults.network import Network
from tests.processes import LIGHT_SPARK, descendants, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

_CLIENTS = 5
_ROUNDS = 2
_RECORDS = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that outlives all that the tests of this module do to its clients."""
    with ConnectServer(tmp_path_factory.mktemp("server"), LIGHT_SPARK) as started:
        yield started


@pytest.fixture(scope="module")
def clients(server, tmp_path_factory):
    """Gives clients of the server that are running; as many as are needed at once start together, with the server."""
    folder = tmp_path_factory.mktemp("clients")
    with ExitStack() as stack:
        started = []

        def start(number):
            fresh = [
                stack.enter_context(ConnectIngester(folder, f"client-{len(started) + index}"))
                for index in range(number)
            ]
            started.extend(fresh)
            for client in fresh:
                client.connect(server.remote)
            for client in fresh:
                client.answer()

        def give(number):
            running = [client for client in started if client.process.poll() is None]
            start(max(0, number - len(running)))
            return [client for client in started if client.process.poll() is None][:number]

        start(_CLIENTS)
        yield give


@pytest.fixture
def landed(table):
    """Topic partition and offset of each row."""

    return lambda: read.rows(table, "kafka_partition", "kafka_offset")


@pytest.fixture
def operations(table):
    """What the table's history tells, oldest first."""
    return lambda: read.operations(table)


@pytest.fixture
def files(tmp_path):
    """Two files: that Spark is reading, and that it may go on."""
    return tmp_path / "reading", tmp_path / "release"


def _each_once(end):
    return [(0, offset) for offset in range(end)]


def _writing(client, broker, topic, table, files):
    """Orders a run, waits until it is in the middle of its write; returns the process that holds it up."""
    reading, release = files
    client.order(broker, topic, table, stop_at_first=[str(reading), str(release)])
    wait_until(lambda: reading.exists() or client.process.poll() is not None, seconds=120)
    assert reading.exists(), client.log()
    pid = int(reading.read_text(encoding="ascii"))
    return next(process for process in descendants(os.getpid()) if process.pid == pid)


def _next_after_a_killed_one(clients, kafka, broker, topic, table, files):
    """Kills a client in the middle of its write, which the server does not hear of; returns another client."""
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * _RECORDS)
    killed, other = clients(2)
    _writing(killed, broker, topic, table, files)
    killed.process.kill()
    killed.process.wait()
    return other


def test_several_clients_of_one_server_land_each_record_once(
    clients, kafka, broker, connection, spark_of, landed, operations, topic, table
):
    kafka.create(topic)
    running = clients(_CLIENTS)
    # The first time there is no table, and they race to make it too.
    for _ in range(_ROUNDS):
        kafka.produce(topic, [(None, "x")] * _RECORDS)
        for client in running:
            client.order(broker, topic, table)
        reported = [client.answer() for client in running]

        winners = [outcome for outcome in reported if outcome["error"] is None and not outcome["is_idle"]]
        assert [winner["rows"] for winner in winners] == [_RECORDS], reported
        for loser in (outcome for outcome in reported if outcome not in winners):
            assert loser["error"] == "ConcurrentIngestionError" or loser.get("is_idle"), loser

    end = _ROUNDS * _RECORDS
    assert landed() == _each_once(end)
    assert operations() == ["CREATE TABLE", *["WRITE"] * _ROUNDS]
    last = ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    assert last.is_idle
    assert last.state.position == {TopicPartition(topic, 0): end}


def test_the_next_run_finds_what_the_server_committed_for_a_killed_client(
    clients, kafka, broker, landed, operations, topic, table, files
):
    other = _next_after_a_killed_one(clients, kafka, broker, topic, table, files)
    files[1].touch()
    # The server knows nothing of its client's end, and goes on.
    wait_until((Path(table) / "_delta_log" / "00000000000000000001.json").exists, seconds=120)

    other.order(broker, topic, table)
    assert other.answer()["is_idle"]
    assert landed() == _each_once(_RECORDS)
    assert operations() == ["CREATE TABLE", "WRITE"]


def test_a_late_commit_for_a_killed_client_is_refused_after_the_next_run(
    clients, server, kafka, broker, landed, operations, topic, table, files
):
    other = _next_after_a_killed_one(clients, kafka, broker, topic, table, files)

    other.order(broker, topic, table)
    assert other.answer()["rows"] == _RECORDS
    # Such an error names no table, and may be of an earlier test.
    before = server.log.stat().st_size
    files[1].touch()
    wait_until(lambda: b"ConcurrentTransactionException" in server.log.read_bytes()[before:], seconds=120)

    assert landed() == _each_once(_RECORDS)
    assert operations() == ["CREATE TABLE", "WRITE"]
    other.order(broker, topic, table)
    assert other.answer()["is_idle"]


def test_an_interrupted_client_stops_the_write_on_the_server(
    clients, kafka, broker, landed, operations, topic, table, files
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * _RECORDS)
    (client,) = clients(1)
    worker = _writing(client, broker, topic, table, files)
    # SIGINT has the same handler there.
    client.process.send_signal(signal.SIGTERM)

    assert client.answer() == {"error": "KeyboardInterrupt"}
    assert "interrupted; stopping the Spark jobs of the batch" in client.log()
    # Nobody ever lets it go on.
    wait_until(lambda: not worker.is_alive(), seconds=120)
    assert operations() == ["CREATE TABLE"]

    # In the session that was interrupted.
    client.order(broker, topic, table)
    assert client.answer()["rows"] == _RECORDS
    assert landed() == _each_once(_RECORDS)


def test_a_server_that_is_killed_ends_the_run_and_the_next_one_lands_each_record_once(
    clients, kafka, broker, landed, operations, topic, table, files, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * _RECORDS)
    with ConnectServer(tmp_path / "server") as server, ConnectIngester(tmp_path, "client") as client:
        client.connect(server.remote, retries=3)
        # For each of the write and the question for the commit; by itself Spark's client would take ten minutes.
        assert 20 < client.answer()["patience"] < 40
        _writing(client, broker, topic, table, files)
        server.kill()
        reported = client.answer()
        # In the same session, as the next asset of a run has it.
        client.order(broker, topic, table)
        next_one = client.answer()
    for each, error in ((reported, "CommitUnknownError"), (next_one, "SparkSessionError")):
        assert each["error"] == error, each
        assert "start it again (dagster-kafka-flip spark start --daemon, if it is that one), and run" in each["message"]
    assert operations() == ["CREATE TABLE"]

    (other,) = clients(1)
    other.order(broker, topic, table)
    assert other.answer()["rows"] == _RECORDS
    assert landed() == _each_once(_RECORDS)


def test_a_write_whose_server_no_longer_answers_is_not_said_to_have_committed_nothing(
    kafka, broker, landed, topic, table, files, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * _RECORDS)
    # The client reads the table's log itself.
    settings = {**LIGHT_SPARK, **files_setting()}
    with ConnectServer(tmp_path / "server", settings) as server, ConnectIngester(tmp_path, "client") as client:
        with Network(int(server.remote.rpartition(":")[2])) as network:
            client.connect(f"sc://127.0.0.1:{network.port}", retries=2)
            client.answer()
            _writing(client, broker, topic, table, files)
            network.cut()
            reported = client.answer()
        files[1].touch()
        wait_until((Path(table) / "_delta_log" / "00000000000000000001.json").exists, seconds=120)
    assert reported["error"] == "CommitUnknownError", reported
    assert landed() == _each_once(_RECORDS)


def test_a_network_that_is_cut_between_client_and_server_while_the_server_commits_costs_no_record(
    server, kafka, broker, landed, operations, topic, table, files, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * _RECORDS)
    port = int(server.remote.rpartition(":")[2])
    with Network(port) as network, ConnectIngester(tmp_path, "client") as client:
        client.connect(f"sc://127.0.0.1:{network.port}")
        client.answer()
        _writing(client, broker, topic, table, files)
        network.cut()
        files[1].touch()
        wait_until((Path(table) / "_delta_log" / "00000000000000000001.json").exists, seconds=120)
        network.heal()
        reported = client.answer()
    assert reported["error"] is None, reported
    assert reported["rows"] == _RECORDS
    assert landed() == _each_once(_RECORDS)
    assert operations() == ["CREATE TABLE", "WRITE"]
