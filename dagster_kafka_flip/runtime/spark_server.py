"""A Spark Connect server on this machine: runs that use it do not wait for Spark to start."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime.jars import spark_home
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.remote import files_setting
from dagster_kafka_flip.runtime.server_folder import LOCALHOST, ServerFolder, check_port
from dagster_kafka_flip.runtime.session_settings import REDACTION, local_settings, own_settings, redaction_regex
from dagster_kafka_flip.runtime.spark_jars import fetch_jars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DRIVER = Path(__file__).with_name("spark_server_driver.py")
# Seconds to wait while another process starts or stops it.
_LOCK_SECONDS = 150.0
# With these, the server's program would be a client of another server. A process that has been one passes them on.
_OF_CLIENTS = (
    "SPARK_REMOTE",
    "SPARK_LOCAL_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_CONNECT_MODE",
    "SPARK_API_MODE",
)


@dataclass(frozen=True)
class SparkServerStatus:
    """A running server.

    Attributes:
        remote: Its address for SparkResource.
        pid: The process id of its JVM.
        data_dir: The folder with its log.
        started_at: When it was started, in UTC.
    """

    remote: str
    pid: int
    data_dir: Path
    started_at: datetime

    @property
    def uptime(self) -> timedelta:
        """The time since the start."""
        return datetime.now(timezone.utc) - self.started_at


class SparkServer:
    """A Spark Connect server with this package's jars and Delta's extension.

    It only listens on 127.0.0.1, without a password: every user of this machine can use it.

    Args:
        data_dir: The folder for its log; created if it does not exist.
        port: The port for clients. 0 reuses the last port, or takes a free one.
        config: Additional Spark settings, such as spark.driver.memory.
        packages: Additional Maven coordinates.
        timeout: Seconds to wait for its answer.

    Raises:
        ConfigurationError: The port is out of range.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
        timeout: float = 120.0,
    ) -> None:
        check_port("port", port)
        self._folder = ServerFolder(
            Path(data_dir).expanduser().absolute(), "spark-server", "Spark server", ("port",), SparkSessionError
        )
        self._port = port
        self._config = dict(config or {})
        self._packages = tuple(packages)
        self._timeout = timeout

    def start(self, *, daemon: bool = False) -> SparkServerStatus:
        """Starts the server and waits until it answers; returns a running one unchanged.

        Args:
            daemon: Whether it keeps running when this process ends. Otherwise it ends with this object at the latest,
                even if this process is killed.

        Raises:
            SparkSessionError: The port is in use, the folder can't be written, the server ended or did not answer in
            time, it already runs on another port, or SPARK_HOME has no Spark.
            JavaNotFoundError: Java was not found, or is too old.
            JarDownloadError: The jars could not be downloaded.
        """
        find_java()
        jars = fetch_jars(self._packages)
        with self._folder.lock(_LOCK_SECONDS):
            running = self.status()
            if running is None:
                self._folder.forget()
                return self._launch(jars, daemon=daemon)
            if self._port and not running.remote.endswith(f":{self._port}"):
                raise SparkSessionError(
                    f"A Spark server is already running on {self._folder.path}, at {running.remote} and not on port "
                    f"{self._port}: stop it first, or use that address."
                )
            # Whoever started it may have been killed before it answered.
            self._wait_until_ready(int(running.remote.rpartition(":")[2]))
            return running

    def stop(self, *, timeout: float = 30.0) -> bool:
        """Stops the server, started by any process; returns whether it was running.

        Args:
            timeout: Seconds for the shutdown before it is killed.

        Raises:
            SparkSessionError: The process did not end, or another process is starting the server.
        """
        if not self._folder.path.is_dir():
            return False
        with self._folder.lock(_LOCK_SECONDS):
            return self._folder.stop(timeout)

    def status(self) -> SparkServerStatus | None:
        """The running server, started by any process; None if there is none.

        Raises:
            SparkSessionError: The state of the last start can't be read.
        """
        state = self._folder.running()
        if state is None:
            return None
        return SparkServerStatus(
            remote=f"sc://{LOCALHOST}:{state.ports['port']}",
            pid=state.process.pid,
            data_dir=self._folder.path,
            started_at=state.started_at,
        )

    def wait(self) -> None:
        """Waits until the server that this object started has ended.

        Raises:
            SparkSessionError: This object did not start it.
        """
        self._folder.wait()
        with self._folder.lock(_LOCK_SECONDS):
            self._folder.forget()

    def _launch(self, jars: Sequence[str], *, daemon: bool) -> SparkServerStatus:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in _OF_CLIENTS},
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            # Also for Spark's UI.
            "SPARK_LOCAL_IP": LOCALHOST,
        }
        self._folder.start(
            {"port": self._port},
            lambda ports: self._command(jars, ports["port"]),
            lambda ports: self._wait_until_ready(ports["port"]),
            daemon=daemon,
            environment=environment,
        )
        status = self.status()
        if status is None:
            msg = f"The Spark server on {self._folder.path} ended right after its start. {self._folder.last_words()}"
            raise SparkSessionError(msg)
        return status

    def _command(self, jars: Sequence[str], port: int) -> list[str]:
        settings = {
            **own_settings(),
            "spark.app.name": "dagster-kafka-flip",
            "spark.master": "local[*]",
            **files_setting(),
            **self._config,
            REDACTION: redaction_regex(self._config),
            # Not the Python of spark-defaults.conf or of the environment, which may lack pyspark.
            "spark.pyspark.driver.python": sys.executable,
            "spark.connect.grpc.binding.address": LOCALHOST,
            "spark.connect.grpc.binding.port": str(port),
        }
        settings = local_settings(settings, jars, is_new_jvm=True)
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        submit = spark_home() / "bin" / "spark-submit"
        if not submit.is_file():
            msg = f"There is no {submit}: unset SPARK_HOME to use pyspark's own Spark, or set it to a folder of Spark."
            raise SparkSessionError(msg)
        self._ready.unlink(missing_ok=True)
        return [str(submit), *conf, str(_DRIVER), str(self._ready)]

    def _wait_until_ready(self, port: int) -> None:
        # It accepts clients a moment before it has the session that theirs are made from.
        self._folder.wait_until_ready(
            lambda: self._ready.exists() and _accepts(port), f"{LOCALHOST}:{port}", self._timeout
        )

    @property
    def _ready(self) -> Path:
        return self._folder.path / "spark-server.ready"


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOCALHOST, port)) == 0
