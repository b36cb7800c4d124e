"""A real Apache Kafka broker on this machine, without Docker, for development and tests.

One process in KRaft mode is both broker and controller. It only listens on 127.0.0.1, without authentication.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import BrokerError, ConfigurationError
from dagster_kafka_flip.runtime.jars import default_cache_dir, retrieve
from dagster_kafka_flip.runtime.java import find_java, run_to_its_end
from dagster_kafka_flip.runtime.server_folder import (
    LOCALHOST,
    PRIVATE_UMASK,
    ServerFolder,
    check_port,
    error_lines,
    write_private,
)
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

KAFKA_VERSION = "4.2.1"
"""The version of Apache Kafka."""

KAFKA_JARS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka's own jar has no log backend, and would write no log.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
"""Maven coordinates of Kafka; `retrieve(KAFKA_JARS)` downloads them ahead of time (44 MB)."""

_PORTS = ("port", "controller_port")
_NODE_ID = 1
_FORMAT_TIMEOUT_SECONDS = 60.0

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

# The file that formatting creates besides `meta.properties`.
_CHECKPOINT = "bootstrap.checkpoint"

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


@dataclass(frozen=True)
class BrokerStatus:
    """A running broker.

    Attributes:
        bootstrap_servers: The address for clients, as `host:port`.
        pid: The process id of the broker.
        cluster_id: The id of the cluster, which stays the same for a data folder.
        data_dir: The folder with topics, settings and logs.
        started_at: When the broker was started, in UTC.
    """

    bootstrap_servers: str
    pid: int
    cluster_id: str
    data_dir: Path
    started_at: datetime

    @property
    def port(self) -> int:
        """The port for clients."""
        return int(self.bootstrap_servers.rpartition(":")[2])

    @property
    def uptime(self) -> timedelta:
        """The time since the start."""
        return datetime.now(timezone.utc) - self.started_at


class LocalBroker:
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
        expect("data_dir", data_dir, (str, Path), '".kafka"')
        expect("timeout", timeout, (int, float), "60.0")
        if not timeout > 0:
            raise ConfigurationError(f"timeout: invalid value {timeout!r}; use a number of seconds above 0.")
        check_port("port", port)
        check_port("controller_port", controller_port)
        for name, value in (properties or {}).items():
            expect(f"properties[{name!r}]", value, str, '"1000"')
        taken = sorted(set(properties or {}) & set(self._addressing(port, controller_port)))
        if taken:
            raise ConfigurationError(
                f"{', '.join(taken)} can't be set as broker properties: data_dir, port and controller_port determine "
                "them."
            )
        self._folder = ServerFolder(Path(data_dir).expanduser().absolute(), "broker", "broker", _PORTS, BrokerError)
        self._port = port
        self._controller_port = controller_port
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._cache_dir = cache_dir
        self._timeout = timeout

    # --- what is used from outside ----------------------------------------------------------------------------------

    @property
    def data_dir(self) -> Path:
        """The folder with topics, settings and logs."""
        return self._folder.path

    @property
    def log_path(self) -> Path:
        """The broker's log of this run; the previous run's is `broker.previous.log`."""
        return self._folder.log_path

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as `host:port`.

        Raises:
            BrokerError: The broker is not running.
        """
        return self._running().bootstrap_servers

    def start(self, *, daemon: bool = False) -> BrokerStatus:
        """Starts the broker and waits until it answers; returns a running one unchanged.

        The very first start downloads Kafka (44 MB); the first start on a data folder formats it.

        Args:
            daemon: Whether the broker keeps running when this process ends. Otherwise it ends with this object at the
                latest, even if this process is killed.

        Returns:
            The running broker.

        Raises:
            BrokerError: The port is in use, the folder can't be written, the broker ended or did not answer in time, or
            it already runs on another port.
            JavaNotFoundError: Java was not found, or is too old.
            JarDownloadError: Kafka could not be downloaded.
        """
        java, jars = find_java(), retrieve(KAFKA_JARS, cache_dir=self._cache_dir)
        with self._lock():
            running = self.status()
            if running is None:
                self._folder.forget()
                return self._launch(self._command(java, jars), daemon=daemon)
            if self._port not in (0, running.port):
                raise BrokerError(
                    f"A broker is already running on {self._folder.path}, at {running.bootstrap_servers} and not on "
                    f"port {self._port}: stop it first, or use that address."
                )
            self._wait_until_ready(running.port)
            return running

    def stop(self, *, timeout: float = 30.0) -> bool:
        """Stops the broker, started by any process; keeps topics and settings.

        Args:
            timeout: Seconds for the shutdown before the broker is killed.

        Returns:
            Whether a broker was running.

        Raises:
            BrokerError: The process did not end, or another process is still starting the broker.
        """
        # If the folder was deleted, no lock is needed, and it must not be created again.
        with self._lock() if self._folder.path.is_dir() else contextlib.nullcontext():
            return self._folder.stop(timeout)

    def status(self) -> BrokerStatus | None:
        """Returns the running broker, started by any process, or None.

        Only checks the process: a broker that was just started may not answer yet.

        Raises:
            BrokerError: The state of the last start can't be read.
        """
        state = self._folder.running()
        cluster_id = self._cluster_id()
        if state is None or cluster_id is None:
            return None
        return BrokerStatus(
            bootstrap_servers=f"{LOCALHOST}:{state.ports['port']}",
            pid=state.process.pid,
            cluster_id=cluster_id,
            data_dir=self._folder.path,
            started_at=state.started_at,
        )

    def wait(self) -> None:
        """Waits until the broker that this object started has ended.

        Raises:
            BrokerError: This object did not start it, or it ended without being stopped.
        """
        code = self._folder.wait()
        with self._lock():
            self._folder.forget()
        # A JVM that ends by SIGTERM exits with 128 + 15.
        if code not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            raise BrokerError(f"The broker on {self._folder.path} ended with {code}. {self._folder.last_words()}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._folder.is_child:
            self.stop()

    def _running(self) -> BrokerStatus:
        status = self.status()
        if status is None:
            raise BrokerError(f"No broker is running on {self._folder.path}: start it first.")
        return status

    # --- starting ---------------------------------------------------------------------------------------------------

    def _command(self, java: Path, jars: Sequence[Path]) -> list[str]:
        classpath = os.pathsep.join(str(jar) for jar in jars)
        logging = "-Dlog4j2.configurationFile=log4j2.properties"
        return [str(java), *_JVM_OPTIONS, *self._jvm_options, logging, "-cp", classpath]

    def _launch(self, command: Sequence[str], *, daemon: bool) -> BrokerStatus:
        write_private(self._folder.path / "log4j2.properties", _LOGGING)

        def prepared(ports: Mapping[str, int]) -> list[str]:
            self._write_properties(**ports)
            self._format(command)
            return [*command, "kafka.Kafka", "server.properties"]

        self._folder.start(
            {"port": self._port, "controller_port": self._controller_port},
            prepared,
            lambda ports: self._wait_until_ready(ports["port"]),
            daemon=daemon,
            umask=PRIVATE_UMASK,
        )
        return self._running()

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

    def _write_properties(self, port: int, controller_port: int) -> None:
        settings = {**_DEFAULT_PROPERTIES, **self._properties, **self._addressing(port, controller_port)}
        # JSON escapes are valid in Java properties.
        lines = [f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items()]
        write_private(self._folder.path / "server.properties", "".join(lines))

    def _cluster_id(self) -> str | None:
        """Reads the cluster id; formatting writes this file last, so without it formatting is incomplete."""
        try:
            text = (self._folder.path / "data" / "meta.properties").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        values = [line.partition("=")[2] for line in text.splitlines() if line.startswith("cluster.id=")]
        return values[0] if values else None

    def _format(self, command: Sequence[str]) -> None:
        if self._cluster_id() is not None:
            return
        kept = self._kept_checkpoint()
        with contextlib.suppress(OSError):
            self._format_with(kept.read_bytes())
            return
        try:
            finished = run_to_its_end(
                [*command, "kafka.tools.StorageTool", "format", "-t", _random_id(), "-c", "server.properties"],
                _FORMAT_TIMEOUT_SECONDS,
                cwd=self._folder.path,
                umask=PRIVATE_UMASK,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerError(
                f"Formatting {self._folder.path} took more than {_FORMAT_TIMEOUT_SECONDS:.0f} s: try again when the "
                "machine is less busy."
            ) from error
        if finished.returncode != 0:
            last_output = error_lines(finished.stdout)
            raise BrokerError(f"Kafka could not format {self._folder.path}. Last output:\n{last_output}")
        _keep(self._folder.path / "data" / _CHECKPOINT, kept)

    def _kept_checkpoint(self) -> Path:
        """The cached file with a new broker's features, which only depend on Kafka's version."""
        return (self._cache_dir or default_cache_dir()) / "formatted" / f"kafka-{KAFKA_VERSION}.checkpoint"

    def _format_with(self, features: bytes) -> None:
        """Formats like Kafka's own tool, which takes a second, from the cached result of another folder."""
        data = self._folder.path / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        checkpoint = data / _CHECKPOINT
        checkpoint.touch(0o600)
        checkpoint.write_bytes(features)
        identity = f"version=1\ncluster.id={_random_id()}\nnode.id={_NODE_ID}\ndirectory.id={_random_id()}\n"
        # Written last and atomically: it marks a complete format.
        partial = data / "meta.properties.partial"
        write_private(partial, identity)
        partial.replace(data / "meta.properties")

    def _wait_until_ready(self, port: int) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        address = f"{LOCALHOST}:{port}"
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
                cluster: Any = admin.describe_cluster(request_timeout=min(2.0, self._timeout)).result()
            except KafkaException:
                return False
            addresses = {(node.id, f"{node.host}:{node.port}") for node in cluster.nodes}
            # Compares both, because another program's broker may be on the same port.
            return cluster.cluster_id == self._cluster_id() and (_NODE_ID, address) in addresses

        self._folder.wait_until_ready(answers, address, self._timeout)

    def _lock(self) -> AbstractContextManager[None]:
        # The lock's holder may wait for a broker as long as this process would, and then must end it.
        return self._folder.lock(self._timeout + 30.0)


def _random_id() -> str:
    """A random Kafka id; its first letter keeps Kafka's command line from parsing it as an option."""
    return "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _keep(made: Path, kept: Path) -> None:
    """Copies a file to the cache, if possible."""
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Another process may look for it meanwhile.
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="partial-") as folder:
            shutil.copyfile(made, Path(folder) / kept.name).replace(kept)
