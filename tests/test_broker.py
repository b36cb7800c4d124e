from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dagster_kafka_flip.broker import local_broker as broker_module
from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.errors import BrokerError, ConfigurationError
from dagster_kafka_flip.runtime.local_server import error_lines
from tests.kafka_topic import QUIET
from tests.processes import wait_until

DEAD_PROXY = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))


def exists(pid: int) -> bool:
    return psutil.pid_exists(pid)


def processes_on(data_dir: Path) -> list[str]:
    """The processes, of whatever kind, that work in the folder."""
    return [str(entry) for entry in Path("/proc").glob("[0-9]*/cwd") if entry.exists() and entry.resolve() == data_dir]


def create_topic(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(10)


def cluster_id(address: str) -> str:
    admin: Any = AdminClient({"bootstrap.servers": address, **QUIET})
    return admin.describe_cluster().result(10).cluster_id


def read_first(address: str, topic: str) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "readers", "isolation.level": "read_committed", **QUIET}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        record = consumer.poll(15)
        assert record is not None
        consumer.commit(message=record, asynchronous=False)
        return record
    finally:
        consumer.close()


@pytest.mark.kafka
def test_records_topics_and_cluster_outlive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    value = os.urandom(10_000_000)
    with LocalBroker(tmp_path) as broker:
        first = broker.status()
        assert first is not None
        id_before = cluster_id(first.address)
        create_topic(broker.bootstrap_servers, "flights")
        producer = Producer(
            {"bootstrap.servers": first.address, "transactional.id": "t", "message.max.bytes": 16_000_000, **QUIET}
        )
        producer.init_transactions(15)
        producer.begin_transaction()
        producer.produce("flights", value, partition=0)
        producer.commit_transaction(15)
        assert read_first(first.address, "flights").value() == value
        # A producer may make topics by asking for them, if the broker lets it.
        assert producer.list_topics("not-there", 10).topics["not-there"].error is not None
        assert set(producer.list_topics(timeout=10).topics) >= {"flights"}
        assert "not-there" not in producer.list_topics(timeout=10).topics

    assert not exists(first.pid)
    assert processes_on(tmp_path) == []
    assert broker.status() is None
    with pytest.raises(BrokerError, match=f"No broker is running on {tmp_path}"):
        _ = broker.bootstrap_servers

    monkeypatch.setenv("JAVA_TOOL_OPTIONS", DEAD_PROXY)
    with LocalBroker(tmp_path) as again:
        second = again.status()
        assert second is not None
        assert (cluster_id(second.address), second.address) == (id_before, first.address)
        assert second.pid != first.pid
        assert read_first(second.address, "flights").value() == value


@pytest.mark.kafka
def test_a_running_broker_is_shared_and_stopped_by_anyone_who_asks(tmp_path: Path, request: pytest.FixtureRequest):
    request.addfinalizer(LocalBroker(tmp_path).stop)
    started = LocalBroker(tmp_path).start(daemon=True)
    with LocalBroker(tmp_path) as user:
        assert user.bootstrap_servers == started.address
        with pytest.raises(BrokerError, match="was not started by this process"):
            user.wait()
    assert LocalBroker(tmp_path).status() == started
    with pytest.raises(BrokerError, match=rf"already running on .*, at {started.address} and not on port 1:"):
        LocalBroker(tmp_path, port=1).start()
    with pytest.raises(BrokerError, match=r"already running on .* with other options: stop it first"):
        LocalBroker(tmp_path, properties={"num.io.threads": "3"}).start()

    # A process that can't react to SIGTERM is killed after the deadline.
    os.kill(started.pid, signal.SIGSTOP)
    assert LocalBroker(tmp_path).stop(timeout=0.3)
    assert LocalBroker(tmp_path).status() is None
    assert not LocalBroker(tmp_path).stop()


@pytest.mark.kafka
def test_a_broker_that_does_not_start_shows_its_log(tmp_path: Path):
    broker = LocalBroker(tmp_path, properties={"metric.reporters": "no.such.Reporter"})
    with pytest.raises(BrokerError) as raised:
        broker.start()
    assert "ended during its start" in str(raised.value)
    assert str(broker.log_path) in str(raised.value)
    assert "no.such.Reporter" in str(raised.value)
    assert processes_on(tmp_path) == []

    # Nothing of it stays in the way, not even of a broker that is given no time.
    with pytest.raises(BrokerError, match=r"did not answer at 127\.0\.0\.1:\d+ within 0.1 s"):
        LocalBroker(tmp_path, timeout=0.1).start()
    assert processes_on(tmp_path) == []


@pytest.mark.kafka
def test_a_broker_ends_with_a_parent_that_is_killed(tmp_path: Path):
    script = (
        "import sys, time; from dagster_kafka_flip.broker.local_broker import LocalBroker\n"
        "broker = LocalBroker(sys.argv[1]); print(broker.start().pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert exists(pid)
        parent.kill()
    wait_until(lambda: not exists(pid), seconds=15)
    assert LocalBroker(tmp_path).status() is None


def test_a_port_in_use_is_named(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"Port {port} on 127\.0\.0\.1 is in use by another program"):
            LocalBroker(tmp_path, port=port).start()


def recorded(data_dir: Path, pid: int) -> LocalBroker:
    state = {"ports": {"port": 9, "controller_port": 10}, "pid": pid, "started_at": "2026-01-01T00:00:00+00:00"}
    (data_dir / "broker.json").write_text(json.dumps(state))
    return LocalBroker(data_dir)


def test_a_process_that_got_the_id_of_a_broker_is_not_touched(tmp_path: Path):
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            broker = recorded(tmp_path, other.pid)
            assert broker.status() is None
            assert not broker.stop()
            assert other.poll() is None
        finally:
            other.kill()


def test_other_users_can_not_read_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # In the place of Java, what makes files as Java does, and answers nothing.
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nmkdir -p data/topic-0\necho cluster.id=KKKK > data/meta.properties\n")
    java.chmod(0o755)
    monkeypatch.setattr(broker_module, "find_java", lambda: java)
    monkeypatch.setattr(broker_module, "retrieve", lambda *_, **__: [])
    before = os.umask(0o000)
    try:
        with pytest.raises(BrokerError, match="ended during its start"):
            LocalBroker(tmp_path / "data").start()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    made = {
        str(path.relative_to(tmp_path / "data")): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "data").rglob("*")
    }
    assert {"broker.json", "broker.lock", "server.properties", "logs/broker.log", "data/topic-0"} <= made.keys()
    assert {path: oct(mode) for path, mode in made.items() if mode & 0o077} == {}


def test_an_unreadable_record_is_never_guessed(tmp_path: Path):
    (tmp_path / "broker.json").write_text("{}")
    with pytest.raises(BrokerError, match=r"broker\.json can't be read"):
        LocalBroker(tmp_path).status()
    (tmp_path / "broker.json").unlink()
    # Nor one that the system does not let it read.
    (tmp_path / "broker.json").mkdir()
    with pytest.raises(BrokerError, match=r"broker\.json can't be read"):
        LocalBroker(tmp_path).status()


def test_the_options_of_the_last_start_are_kept_as_a_digest(tmp_path: Path):
    def options(**given: Any) -> str:
        return LocalBroker(tmp_path, **given)._options

    one = options(properties={"a": "hidden", "b": "2"}, jvm_options=["-Xmx1g"])
    assert one == options(properties={"b": "2", "a": "hidden"}, jvm_options=("-Xmx1g",))
    assert "hidden" not in one
    assert len({one, options(properties={"a": "hidden"}), options(jvm_options=["-Xmx1g"]), options()}) == 4


def test_a_log_is_shown_without_what_java_says_of_its_environment():
    told = "NOTE: Picked up JDK_JAVA_OPTIONS: -Dhttps.proxyPassword=hidden\nPicked up JAVA_TOOL_OPTIONS: -Dx=hidden\n"
    assert error_lines(f"{told}no room\n") == "  no room"


def test_settings_that_follow_from_the_arguments_are_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"listeners, log\.dirs can't be set"):
        LocalBroker(tmp_path, properties={"log.dirs": "/elsewhere", "listeners": "PLAINTEXT://:1"})
    with pytest.raises(ConfigurationError, match="Invalid port 70000"):
        LocalBroker(tmp_path, port=70000)
    number: Any = 9000
    with pytest.raises(ConfigurationError, match=r"properties\['log\.retention\.ms'\]: expected str, got int"):
        LocalBroker(tmp_path, properties={"log.retention.ms": number})


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BrokerError, match=rf"{tmp_path}/file/data can't be used as the data folder"):
        LocalBroker(tmp_path / "file" / "data").start()
