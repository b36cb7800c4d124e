"""Three Kafka brokers that replicate, and that a test can kill, stop and start: each is a process of its own.

Each is broker and controller, so that any two of them can go on without the third.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dagster_kafka_flip.broker.local_broker import KAFKA_JARS
from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.java import find_java
from tests.kafka_topic import QUIET
from tests.processes import Servers, wait_until

if TYPE_CHECKING:
    from pathlib import Path

_HOST = "127.0.0.1"
_CLUSTER_ID = "KAdwYXHvSKuE15ZEhrUCLg"
_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms96m", "-Xmx192m")
_PATIENCE_SECONDS = 120.0

_SETTINGS = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "data",
    "auto.create.topics.enable": "false",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A dead broker is noticed after so long.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "num.network.threads": "1",
    "num.io.threads": "2",
}


class ThreeBrokers(Servers):
    """The brokers 1, 2 and 3 of a cluster, until the end of the block.

    Args:
        folder: For their data and logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = ":".join(map(str, retrieve(KAFKA_JARS)))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        ports = free_ports(6)
        self._ports = dict(enumerate(ports[:3], 1))
        self._controllers = dict(enumerate(ports[3:], 1))
        self._voters = ",".join(f"{number}@{_HOST}:{port}" for number, port in self._controllers.items())
        for number in (1, 2, 3):
            self._configure(number)
        self._format()
        self.bootstrap_servers = ",".join(f"{_HOST}:{port}" for port in self._ports.values())
        # Finds the brokers that are left, after it has lost the one that it took for the controller.
        refresh = {"topic.metadata.refresh.interval.ms": 1000}
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, **refresh, **QUIET})

    def heal(self) -> None:
        """Starts the brokers that are not running."""
        for number in {1, 2, 3} - set(self._running):
            self._launch(number)
        self._wait_for_brokers()

    def kill(self, number: int) -> None:
        """SIGKILL."""
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def stop(self, number: int) -> None:
        """Stops a broker as an operator does: it hands its topic partitions over first."""
        process = self._running.pop(number)
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE_SECONDS)

    def start(self, number: int) -> None:
        """Starts a broker, and waits until the others know it."""
        self._launch(number)
        self._wait_for_brokers()

    def create_on(self, topic: str, replicas: list[int], **config: str) -> None:
        """Makes a topic of one topic partition on some of the brokers; settings have underscores for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(topic, 1, replica_assignment=[replicas], config=settings)
        self._admin.create_topics([new])[topic].result(30)
        self.wait_for_replicas(topic, len(replicas))

    def leaders(self, topic: str) -> dict[int, int | None]:
        """The leader of each topic partition."""
        return {each.id: None if each.leader is None else each.leader.id for each in self._partitions(topic)}

    def wait_for_leader(self, topic: str, number: int | None) -> None:
        """Waits until a broker leads a topic's first topic partition; None for no broker."""
        wait_until(lambda: self._asked(lambda: self.leaders(topic)[0] == number), seconds=_PATIENCE_SECONDS)

    def wait_for_replicas(self, topic: str, count: int) -> None:
        """Waits until so many replicas of each topic partition are in sync, no more and no fewer."""

        def are_in_sync() -> bool:
            return all(len(each.isr) == count for each in self._partitions(topic))

        wait_until(lambda: self._asked(are_in_sync), seconds=_PATIENCE_SECONDS)

    def _partitions(self, topic: str) -> list[Any]:
        described: Any = self._admin.describe_topics(TopicCollection([topic]), request_timeout=3)[topic].result(30)
        return described.partitions

    def _wait_for_brokers(self) -> None:
        def are_there() -> bool:
            reported: Any = self._admin.describe_cluster(request_timeout=2).result()
            return {node.id for node in reported.nodes} == set(self._running)

        wait_until(lambda: self._asked(are_there), seconds=_PATIENCE_SECONDS)

    @staticmethod
    def _asked(question: Any) -> bool:
        try:
            return question()
        except KafkaException:
            return False

    def _configure(self, number: int) -> None:
        place = self._folder / f"broker-{number}"
        place.mkdir(parents=True)
        address = f"PLAINTEXT://{_HOST}:{self._ports[number]}"
        settings = {
            **_SETTINGS,
            "node.id": str(number),
            "listeners": f"{address},CONTROLLER://{_HOST}:{self._controllers[number]}",
            "advertised.listeners": address,
            "controller.quorum.voters": self._voters,
        }
        (place / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _format(self) -> None:
        """Formats one folder with Kafka's tool, which takes a second, and the others like it."""
        first = self._folder / "broker-1"
        tool = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", "server.properties")
        subprocess.run(self._command(*tool), cwd=first, check=True, capture_output=True)
        reported = (first / "data" / "meta.properties").read_text()
        for number in (2, 3):
            data = self._folder / f"broker-{number}" / "data"
            shutil.copytree(first / "data", data)
            lines = [
                f"node.id={number}" if line.startswith("node.id=") else line
                for line in reported.splitlines()
                # A broker gives its folder an id if it has none.
                if not line.startswith("directory.id=")
            ]
            (data / "meta.properties").write_text("\n".join(lines) + "\n")

    def _command(self, *arguments: str) -> list[str]:
        return [str(find_java()), *_OPTIONS, "-cp", self._jars, *arguments]

    def _launch(self, number: int) -> None:
        place = self._folder / f"broker-{number}"
        with (place / "log").open("ab") as log:
            self._running[number] = subprocess.Popen(
                self._command("kafka.Kafka", "server.properties"),
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(os.environ),
            )

    def end(self) -> None:
        """SIGKILL for all."""
        for number in tuple(self._running):
            self.kill(number)


def free_ports(count: int) -> list[int]:
    """Ports that are free; held until all are found, so that none comes twice."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]
