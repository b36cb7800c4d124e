"""A real Apache Kafka broker on this machine, without Docker, for development and tests.

One process in KRaft mode is both broker and controller. It only listens on 127.0.0.1, without authentication.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import uuid
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import BrokerError, ConfigurationError
from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.java import find_java, run_to_its_end
from dagster_kafka_flip.runtime.local_server import LOCALHOST, LocalServer, error_lines, write_private
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

KAFKA_VERSION = "4.2.1"
"""The version of Apache Kafka."""

KAFKA_JARS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka's own jar has no log backend, and would write no log.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
"""Maven coordinates of Kafka; `retrieve(KAFKA_JARS)` downloads them ahead of time (44 MB)."""

_NODE_ID = 1
_FORMAT_TIMEOUT_SECONDS = 300.0

# For a short-lived broker, start-up time matters more than peak throughput. The serial collector and the first compiler
# halve it, and a JVM out of memory should exit.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xms256m",
    "-Xmx512m",
)

# A record of 10 MB with overhead; the limit is per batch, and producers raise their own `message.max.bytes` too.
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_DEFAULT_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(_MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(_MAX_MESSAGE_BYTES),
    "group.initial.rebalance.delay.ms": "0",
    # Internal topics for one node, with few partitions: the first group or transaction creates them.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Timed-out transactions hold back the last stable offset until they are aborted.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # By default, the log cleaner allocates 128 MiB of the heap at the start.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
}

_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
logger.configs.name = org.apache.kafka.common.config
logger.configs.level = warn
"""


class LocalBroker(LocalServer):
    """A single-node Apache Kafka broker with its own data folder.

    A context manager; a broker that was running before is used and keeps running. After a restart on the same folder,
    it has the same topics, cluster id, and port if free.

    Args:
        data_dir: The folder for topics, settings and logs.
        port: The port for clients. 0, the default, reuses the last, or takes a free one.
        controller_port: The controller's port; 0 as above.
        properties: Broker settings, besides those for development.
        jvm_options: JVM options, such as `["-Xmx2g"]` (default: 512 MiB).
        cache_dir: The cache folder for Kafka's jars. Default: `jars.default_cache_dir()`.
        timeout: Seconds to wait for the broker's answer.

    Raises:
        ConfigurationError: A setting in `properties` is determined by other arguments, or a port is out of range.
    """

    name = what = "broker"
    error = BrokerError

    def __init__(
        self,
        data_dir: str | Path,
        *,
        port: int = 0,
        controller_port: int = 0,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        cache_dir: Path | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        ports = {"port": port, "controller_port": controller_port}
        super().__init__(data_dir, ports, timeout, (self._properties, self._jvm_options))
        for name, value in self._properties.items():
            expect(f"properties[{name!r}]", value, str, '"1000"')
        taken = sorted(self._properties.keys() & self._addressing(port, controller_port))
        if taken:
            raise ConfigurationError(
                f"{', '.join(taken)} can't be set as broker properties: data_dir, port and controller_port determine "
                "them."
            )
        self._cache_dir = cache_dir

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as `host:port`.

        Raises:
            BrokerError: The broker is not running.
        """
        return self.running().address

    def _program(self) -> list[str]:
        java, jars = find_java(), retrieve(KAFKA_JARS, cache_dir=self._cache_dir)
        logging = "-Dlog4j2.configurationFile=log4j2.properties"
        return [str(java), *_JVM_OPTIONS, *self._jvm_options, logging, "-cp", os.pathsep.join(map(str, jars))]

    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> list[str]:
        write_private(self.data_dir / "log4j2.properties", _LOGGING)
        settings = {**_DEFAULT_PROPERTIES, **self._properties, **self._addressing(**ports)}
        # JSON escapes are valid in Java properties.
        lines = [f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items()]
        write_private(self.data_dir / "server.properties", "".join(lines))
        if self._cluster_id() is None:
            self._format(program)
        return [*program, "kafka.Kafka", "server.properties"]

    def _format(self, program: Sequence[str]) -> None:
        cluster_id = "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        command = [*program, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", "server.properties"]
        try:
            finished = run_to_its_end(command, _FORMAT_TIMEOUT_SECONDS, cwd=self.data_dir, umask=self.umask)
        except subprocess.TimeoutExpired as error:
            raise BrokerError(
                f"Formatting {self.data_dir} took more than {_FORMAT_TIMEOUT_SECONDS:.0f} s: try again when the "
                "machine is less busy."
            ) from error
        if finished.returncode != 0:
            last_output = error_lines(finished.stdout)
            raise BrokerError(f"Kafka could not format {self.data_dir}. Last output:\n{last_output}")

    def _cluster_id(self) -> str | None:
        """Reads the cluster id; formatting writes this file last, so without it formatting is incomplete."""
        try:
            text = (self.data_dir / "data" / "meta.properties").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        values = [line.partition("=")[2] for line in text.splitlines() if line.startswith("cluster.id=")]
        return values[0] if values else None

    def _answers(self, port: int) -> Callable[[], bool]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        address = self._address(port)
        admin = AdminClient(
            {
                "bootstrap.servers": address,
                # Refused connections are expected while waiting, so they are not printed.
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 100,
            }
        )

        def answers() -> bool:
            try:
                cluster: Any = admin.describe_cluster(request_timeout=min(2.0, self.timeout)).result()
            except KafkaException:
                return False
            addresses = {(node.id, f"{node.host}:{node.port}") for node in cluster.nodes}
            # Compares both, because another program's broker may be on the same port.
            return cluster.cluster_id == self._cluster_id() and (_NODE_ID, address) in addresses

        return answers

    def _addressing(self, port: int, controller_port: int) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": str(_NODE_ID),
            "listeners": f"PLAINTEXT://{LOCALHOST}:{port},CONTROLLER://{LOCALHOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOCALHOST}:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{_NODE_ID}@{LOCALHOST}:{controller_port}",
            # Relative to the working directory, because a comma in a path would separate two paths.
            "log.dirs": "data",
        }
