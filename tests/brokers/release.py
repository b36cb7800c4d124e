"""A broker of any release of Kafka since 3.3, from its jars."""

from __future__ import annotations

import contextlib
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.java import find_java
from tests.faults.three_brokers import free_ports
from tests.kafka_topic import QUIET
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from tests.faults.network import Network

_HOST = "127.0.0.1"
_CLUSTER_ID = "KAdwYXHvSKuE15ZEhrUCLg"
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PATIENCE_SECONDS = 120.0

_SETTINGS = {
    "log.dirs": "data",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # A topic that is to be compacted is looked at ten times a second, and not every 15 seconds.
    "log.cleaner.backoff.ms": "100",
}


def _settings(port: int, other: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{other}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{_HOST}:{other}",
    }


@contextlib.contextmanager
def release(folder: Path, version: str, network: Callable[[int], Network] | None = None) -> Generator[str]:
    """A broker until the end of the block; gives its address.

    Args:
        folder: For its data and logs.
        version: Kafka's.
        network: What makes the network that is between the broker and all of its clients, given the broker's port.
    """
    class_path = ":".join(map(str, retrieve((f"org.apache.kafka:kafka_2.13:{version}",))))
    port, other = free_ports(2)
    with ExitStack() as stack:
        found_at = port if network is None else stack.enter_context(network(port)).port
        settings = {**_SETTINGS, **_settings(port, other)}
        _write(folder / "server.properties", {**settings, "advertised.listeners": f"PLAINTEXT://{_HOST}:{found_at}"})
        subprocess.run(
            [*_java(class_path, "kafka.tools.StorageTool"), *("format", "-t", _CLUSTER_ID, "-c", "server.properties")],
            cwd=folder,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        broker = stack.enter_context(_running(folder, _java(class_path, "kafka.Kafka"), "server"))
        _wait_for(f"{_HOST}:{found_at}", broker, folder / "server.log")
        yield f"{_HOST}:{found_at}"


def _wait_for(address: str, broker: subprocess.Popen[bytes], log: Path) -> None:
    admin = AdminClient({"bootstrap.servers": address, "reconnect.backoff.max.ms": 100, **QUIET})

    def answers() -> bool:
        if broker.poll() is not None:
            pytest.fail(f"the broker ended with {broker.returncode}:\n{log.read_text(errors='replace')[-4000:]}")
        try:
            return len(admin.list_topics(timeout=2).brokers) == 1
        except KafkaException:
            return False

    wait_until(answers, seconds=_PATIENCE_SECONDS)


def _java(class_path: str, main: str) -> list[str]:
    return [str(find_java()), *_OPTIONS, "-cp", class_path, main]


@contextlib.contextmanager
def _running(folder: Path, command: list[str], name: str) -> Generator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"{name}.properties"], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def _write(file: Path, settings: dict[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="ascii")
