"""A Spark cluster as large ones are, on this machine: a standalone master and its workers, each a process of its own.

It is started from the files of pyspark's package. All ports are free ones, which the processes choose and tell.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.processes import QUICK_JVM_OPTIONS, Process, Servers, descendants, kill_all, wait_until

_HOST = "127.0.0.1"
_HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+:\d+)")
_REGISTERED = re.compile(r"Successfully registered with master")
_PATIENCE_SECONDS = 240.0

# For sessions on this cluster: two small executors, which a dead worker's replacement finds room for.
EXECUTORS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM_OPTIONS,
    # Soon enough for a test that waits for the progress of running tasks.
    "spark.executor.heartbeatInterval": "1s",
}


class _Daemon:
    """A master or a worker."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        with self.log.open("wb") as output:
            # spark-class becomes the JVM.
            self.process = subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={
                    # Nothing that the tests say of their own Spark reaches the cluster's.
                    **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK"))},
                    "SPARK_HOME": str(_HOME),
                    "SPARK_LOCAL_IP": _HOST,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM_OPTIONS,
                    "SPARK_LOCAL_DIRS": str(self.folder / "local"),
                },
            )

    def reported(self, pattern: re.Pattern[str]) -> str:
        """What the log tells: the first group of a pattern."""
        found: list[str] = []

        def has_told() -> bool:
            text = self.log.read_text(encoding="utf-8", errors="replace")
            if self.process.poll() is not None:
                pytest.fail(f"{self.log.stem} ended with {self.process.returncode}:\n{text[-4000:]}")
            found.extend(match[match.re.groups] for match in pattern.finditer(text))
            return bool(found)

        wait_until(has_told, seconds=_PATIENCE_SECONDS)
        return found[0]

    def kill(self) -> None:
        """SIGKILL for it and all that it has started, as when its machine dies."""
        kill_all(self.process)


class StandaloneCluster(Servers):
    """A master with workers, until the end of the block.

    Args:
        folder: For their logs and working folders. Executors have theirs in it too, away from any driver's.
        workers: How many.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._wanted = workers
        self._started = 0
        self._workers: list[_Daemon] = []
        folder.mkdir(parents=True, exist_ok=True)
        ports = ("--host", _HOST, "--port", "0", "--webui-port", "0")
        self._master = _Daemon(folder, "master", "org.apache.spark.deploy.master.Master", *ports)

    @property
    def url(self) -> str:
        """The master's URL."""
        return self._master.reported(_MASTER)

    def heal(self) -> None:
        """Starts as many workers as are missing, and waits for them."""
        fresh: list[_Daemon] = []
        while len(self._workers) < self._wanted:
            self._started += 1
            name = f"worker-{self._started}"
            options = ("--host", _HOST, "--webui-port", "0", "--cores", "4", "--memory", "3g")
            place = ("--work-dir", str(self._folder / name / "work"))
            fresh.append(
                _Daemon(self._folder, name, "org.apache.spark.deploy.worker.Worker", *options, *place, self.url)
            )
            self._workers.append(fresh[-1])
        for worker in fresh:
            worker.reported(_REGISTERED)

    def executors(self) -> list[Process]:
        """All executors that are running."""
        return [
            process
            for worker in self._workers
            for process in descendants(worker.process.pid)
            if "CoarseGrainedExecutorBackend" in process.command
        ]

    def kill_worker_of(self, process: Process) -> None:
        """SIGKILL for the worker that runs a process, and all that it has started."""
        worker = next(each for each in self._workers if process in descendants(each.process.pid))
        worker.kill()
        self._workers.remove(worker)

    def jars(self) -> set[str]:
        """The names of all jars that executors were sent, and keep in their working folders."""
        return {path.name for path in self._folder.glob("worker-*/work/*/*/*.jar")}

    def end(self) -> None:
        """SIGKILL for all."""
        for daemon in (*self._workers, self._master):
            daemon.kill()
