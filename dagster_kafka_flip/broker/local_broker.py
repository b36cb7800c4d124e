"""A real Apache Kafka broker on this machine, without Docker, for development and tests.

One process in KRaft mode is broker and controller at once. It listens on 127.0.0.1 only, without authentication.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import BrokerError, ConfigurationError
from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.server_folder import (
    LOCALHOST,
    ServerFolder,
    choose_ports,
    is_free,
    telling_lines,
    write_private,
)
from dagster_kafka_flip.settings import expect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

KAFKA_VERSION = "4.2.1"
"""The version of Apache Kafka that is run."""

KAFKA_JARS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka's own jar names no backend for its log, and would write none.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
"""The Maven coordinates of what is run; `retrieve(KAFKA_JARS)` downloads it ahead of time (44 MB)."""

_PORTS = ("port", "controller_port")
_NODE_ID = 1
_PORT_ATTEMPTS = 4
_FORMAT_TIMEOUT_SECONDS = 60.0

# Over a broker's short life start-up time counts for more than peak throughput. It halves with the simple collector and
# the first compiler only, and a JVM out of memory is better dead than half alive.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xms256m",
    "-Xmx512m",
)

# A record of 10 MB with its overhead; the limit is on a batch, and a producer raises its own `message.max.bytes` too.
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_DEFAULT_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(_MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(_MAX_MESSAGE_BYTES),
    "group.initial.rebalance.delay.ms": "0",
    # Internal topics for one node, with few topic partitions: they are made when the first group or transaction comes.
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
    # The log cleaner takes 128 MiB of the heap at start by default.
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


# Records may be anybody's secrets, and so nobody else on this machine gets to see the files.
_PRIVATE_UMASK = 0o077


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
    """An Apache Kafka broker of one node, on a data folder of its own.

    As a context manager it is started on entering and stopped on leaving; a broker that was running before is used, and
    left running. Started again on the same folder, it has its topics, its cluster id, and its port if that is free.

    Args:
        data_dir: The folder for topics, settings and logs; made if it isn't there.
        port: The port for clients. 0, the default, takes the port of the last time, or a free one.
        controller_port: The port on which the node talks to itself as the controller; 0 as above.
        properties: Broker settings that are added to, or replace, those for development.
        jvm_options: Options for the JVM, which win over the defaults; `["-Xmx2g"]` makes the heap larger than 512 MiB.
        cache_dir: The cache folder for Kafka's jars; by default `jars.default_cache_dir()`.
        timeout: How many seconds the broker may take until it answers.

    Raises:
        ConfigurationError: A setting among `properties` follows from the other arguments, or a port is out of range.
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
            raise ConfigurationError(f"timeout: {timeout!r} is no time to wait; give a number of seconds above 0.")
        for option, number in (("port", port), ("controller_port", controller_port)):
            expect(option, number, int, "9092")
            if not 0 <= number <= 65535:  # noqa: PLR2004
                raise ConfigurationError(f"{number} is not a port: take one from 1 to 65535, or 0 for a free one.")
        taken = sorted(set(properties or {}) & set(self._addressing(port, controller_port)))
        if taken:
            raise ConfigurationError(
                f"{', '.join(taken)} can't be set as broker properties: they follow from data_dir, port and "
                "controller_port."
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
        """The broker's log of this run; that of the run before lies beside it as `broker.previous.log`."""
        return self._folder.log_path

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as `host:port`.

        Raises:
            BrokerError: The broker is not running.
        """
        return self._running().bootstrap_servers

    def start(self, *, daemon: bool = False) -> BrokerStatus:
        """Starts the broker and waits until it answers; one that is running already is returned as it is.

        The first start ever downloads Kafka (44 MB), the first start on a data folder formats it.

        Args:
            daemon: Whether the broker goes on when this process ends. Otherwise it ends with this object at the latest,
                also when this process is killed.

        Returns:
            The running broker.

        Raises:
            BrokerError: The port is in use, the folder can't be written, the broker ended or did not answer in time, or
                it runs already on another port than the one asked for.
            JavaNotFoundError: There is no Java, or it is too old.
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
                    f"A broker is running on {self._folder.path} already, at {running.bootstrap_servers} and not on "
                    f"port {self._port}: stop it first, or use that address."
                )
            self._wait_until_ready(running.port)
            return running

    def stop(self, *, timeout: float = 30.0) -> bool:
        """Stops the broker, whichever process started it; topics and settings stay.

        Args:
            timeout: How many seconds the broker has to shut down before it is killed.

        Returns:
            Whether there was a broker to stop.

        Raises:
            BrokerError: The process did not end, or another process is starting the broker and does not get done.
        """
        # Where the folder was deleted there is nobody to keep out, and it is not to come back.
        with self._lock() if self._folder.path.is_dir() else contextlib.nullcontext():
            return self._folder.stop(timeout)

    def status(self) -> BrokerStatus | None:
        """Returns the running broker, whichever process started it, or None.

        It looks at the process only: a broker that has just been started may not answer yet.

        Raises:
            BrokerError: The record of the last start can't be read.
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
            BrokerError: This object did not start it, or it ended by itself and not because it was stopped.
        """
        code = self._folder.wait()
        with self._lock():
            self._folder.forget()
        # A JVM that was asked to end by SIGTERM says 128 + 15.
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
        state = self._folder.last_start()
        remembered: Mapping[str, int] = {} if state is None else state.ports
        attempts = _PORT_ATTEMPTS
        while True:
            ports = self._choose_ports(remembered)
            self._write_properties(**ports)
            self._format(command)
            try:
                return self._launch_once(command, ports, daemon=daemon)
            except BrokerError:
                # Between choosing a free port and binding it, another program can have taken it.
                attempts -= 1
                taken = {port for port in ports.values() if not is_free(port)}
                if not taken or taken & {self._port, self._controller_port} or not attempts:
                    raise
                remembered = {}

    def _launch_once(self, command: Sequence[str], ports: Mapping[str, int], *, daemon: bool) -> BrokerStatus:
        process = self._folder.launch(
            [*command, "kafka.Kafka", "server.properties"], ports, daemon=daemon, umask=_PRIVATE_UMASK
        )
        try:
            self._wait_until_ready(ports["port"])
        except BaseException:
            self._folder.end(process)
            raise
        return self._running()

    def _choose_ports(self, remembered: Mapping[str, int]) -> dict[str, int]:
        return choose_ports({"port": self._port, "controller_port": self._controller_port}, remembered, BrokerError)

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
            # Relative to the working directory, because a path with a comma in it would be taken for two.
            "log.dirs": "data",
        }

    def _write_properties(self, port: int, controller_port: int) -> None:
        settings = {**_DEFAULT_PROPERTIES, **self._properties, **self._addressing(port, controller_port)}
        # JSON escapes what Java's properties escape, in the same way.
        lines = [f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items()]
        write_private(self._folder.path / "server.properties", "".join(lines))

    def _cluster_id(self) -> str | None:
        """Reads the cluster id; Kafka writes that file last when it formats, so without it there is more to do."""
        try:
            text = (self._folder.path / "data" / "meta.properties").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        values = [line.partition("=")[2] for line in text.splitlines() if line.startswith("cluster.id=")]
        return values[0] if values else None

    def _format(self, command: Sequence[str]) -> None:
        if self._cluster_id() is not None:
            return
        # The leading letter keeps Kafka's command line from taking the id for an option.
        cluster_id = "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        try:
            finished = subprocess.run(
                [*command, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", "server.properties"],
                cwd=self._folder.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=_FORMAT_TIMEOUT_SECONDS,
                umask=_PRIVATE_UMASK,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerError(
                f"{self._folder.path} was not formatted within {_FORMAT_TIMEOUT_SECONDS:.0f} s: try again when the "
                "machine is less busy."
            ) from error
        if finished.returncode != 0:
            said = telling_lines(finished.stdout)
            raise BrokerError(f"Kafka could not format {self._folder.path}. The last that it said:\n{said}")

    def _wait_until_ready(self, port: int) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        address = f"{LOCALHOST}:{port}"
        admin = AdminClient(
            {
                "bootstrap.servers": address,
                # Refused connections are what is waited through here, and no news for the terminal.
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
            # Without both, another program's broker on the same port could be taken for ours.
            return cluster.cluster_id == self._cluster_id() and (_NODE_ID, address) in addresses

        self._folder.wait_until_ready(answers, address, self._timeout)

    def _lock(self) -> AbstractContextManager[None]:
        # Whoever holds it may be waiting for a broker for as long as we would, and then has to end it.
        return self._folder.lock(self._timeout + 30.0)
