"""A real Spark Connect server, for tests: a process of its own on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from dagster_kafka_flip.runtime.class_archive import archive_options
from dagster_kafka_flip.runtime.spark_jars import fetch_jars
from tests.processes import QUICK_JVM_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

_STARTED = re.compile(r"Spark Connect server started at: .*?:(\d+)\s*$")


class ConnectServer:
    """A server that picks a free port itself and tells it in its log.

    Args:
        folder: For its log, and what Spark leaves.
        more: Further Spark settings.

    Attributes:
        process: The server's JVM.
        log: What it has written.
    """

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.master": "local[2]",
            "spark.driver.extraClassPath": os.pathsep.join(fetch_jars()),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join([QUICK_JVM_OPTIONS, *archive_options(fetch_jars())]),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **(more or {}),
        }
        home = Path(pyspark.__file__).parent
        command = [
            str(home / "bin" / "spark-submit"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        ]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        self.log = folder / "server.log"
        with self.log.open("wb") as output:
            # spark-submit becomes the server's JVM, so this is the server itself.
            self.process = subprocess.Popen(
                [*command, "spark-internal"],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
            )
        self._remote: str | None = None

    @property
    def remote(self) -> str:
        """Its address, once it has started."""
        if self._remote is None:
            self._remote = f"sc://127.0.0.1:{self._wait_for_port()}"
        return self._remote

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _wait_for_port(self) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            while True:
                line = lines.readline()
                found = _STARTED.search(line)
                if found:
                    return found[1]
                if not line and self.process.poll() is not None:
                    text = self.log.read_text(errors="replace")
                    pytest.fail(f"the server ended with {self.process.returncode}:\n{text[-4000:]}")
                if not line:
                    try:
                        # Waits for more of the log, or for the end of the process.
                        self.process.wait(0.1)
                    except subprocess.TimeoutExpired:
                        continue
