"""A Spark Connect server on this machine: runs that use it do not wait for Spark to start."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime.jars import spark_submit
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.local_server import LOCALHOST, LocalServer
from dagster_kafka_flip.runtime.remote import files_setting
from dagster_kafka_flip.runtime.session_settings import REDACTION, local_settings, own_settings, redaction_regex
from dagster_kafka_flip.runtime.spark_jars import fetch_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DRIVER = Path(__file__).with_name("spark_server_driver.py")
# With these, the server's program would be a client of another server. A process that has been one passes them on.
_OF_CLIENTS = (
    "SPARK_REMOTE",
    "SPARK_LOCAL_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_CONNECT_MODE",
    "SPARK_API_MODE",
)


class SparkServer(LocalServer):
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

    name = "spark-server"
    what = "Spark server"
    error = SparkSessionError
    # That of the process, as for the tables that a session in it writes.
    umask = -1

    def __init__(
        self,
        data_dir: str | Path,
        *,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
        timeout: float = 120.0,
    ) -> None:
        self._config = dict(config or {})
        self._packages = tuple(packages)
        super().__init__(data_dir, {"port": port}, timeout, (self._config, self._packages))

    @property
    def remote(self) -> str:
        """The address for SparkResource.

        Raises:
            SparkSessionError: The server is not running.
        """
        return self.running().address

    def _program(self) -> list[str]:
        find_java()
        return fetch_jars(self._packages)

    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> list[str]:
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
            "spark.connect.grpc.binding.port": str(ports["port"]),
        }
        settings = local_settings(settings, program, is_new_jvm=True)
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        submit = str(spark_submit())
        self._ready.unlink(missing_ok=True)
        return [submit, *conf, str(_DRIVER), str(self._ready)]

    def _environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if name not in _OF_CLIENTS},
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            # Also for Spark's UI.
            "SPARK_LOCAL_IP": LOCALHOST,
        }

    def _address(self, port: int) -> str:
        return f"sc://{LOCALHOST}:{port}"

    def _answers(self, port: int) -> Callable[[], bool]:
        def answers() -> bool:
            # It accepts clients a moment before it has the session that theirs are made from.
            if not self._ready.exists():
                return False
            with socket.socket() as probe:
                return probe.connect_ex((LOCALHOST, port)) == 0

        return answers

    @property
    def _ready(self) -> Path:
        return self.data_dir / "spark-server.ready"
