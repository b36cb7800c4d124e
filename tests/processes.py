"""Looks at the processes that a program under test has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.class_archive import archive_options
from dagster_kafka_flip.runtime.spark_jars import fetch_jars

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

# Each commit to a local table starts a dozen small programs, such as chmod.
_JVM_OPTIONS = "-XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"

# A JVM that lives for a minute does not get back the time that the second compiler takes. Without that compiler Java
# reserves only 48 MB for code, which Spark fills: it would throw code away and compile it again.
QUICK_JVM_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m {_JVM_OPTIONS}"

# The session's JVM lives as long as its worker. With the second compiler it took as much CPU in its first two minutes
# as without, and a tenth less from then on. It compiles as late as in users' sessions.
LASTING_JVM_OPTIONS = _JVM_OPTIONS

# For PYSPARK_SUBMIT_ARGS. These options replace those that a session is made with, and so must name the archive.
QUICK_JVM = f'--driver-java-options "{" ".join([QUICK_JVM_OPTIONS, *archive_options(fetch_jars())])}" pyspark-shell'

# What tables of ten rows need none of, and what users have. Spark otherwise spends more on making code for each new
# plan, on planning anew between its stages, and on describing plans for a UI, than on the rows. These can be changed
# while a session runs: tests/conftest.py tells which tests have what users have, in what makes the rows.
HOW_ROWS_ARE_MADE = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
LIGHT_SPARK = {
    **HOW_ROWS_ARE_MADE,
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}

# Without a checksum beside each file: to write a second file, and to start two programs for it, took a tenth of the CPU
# of a small write. Processes that are killed write as users' do.
WITHOUT_CHECKSUMS = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}

# For PYSPARK_SUBMIT_ARGS of programs whose Spark is not what is tested.
LIGHT_JVM = " ".join(
    [*(f"--conf {name}={value}" for name, value in (LIGHT_SPARK | WITHOUT_CHECKSUMS).items()), QUICK_JVM]
)


@dataclass(frozen=True)
class Process:
    """A process; its command tells it from a later one with the same id."""

    pid: int
    parent: int
    command: str

    def is_alive(self) -> bool:
        return any((each.pid, each.command) == (self.pid, self.command) for each in all_processes())


class Servers:
    """Processes of a test that can be killed and started again, until the end of the block."""

    def heal(self) -> None:
        """Starts those that are not running, and waits for them."""
        raise NotImplementedError

    def end(self) -> None:
        """SIGKILL for all."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.heal()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


def descendants(pid: int) -> list[Process]:
    """All that a process started, and that those started, as far as they are running."""
    found: list[Process] = []
    parents = {pid}
    everyone = all_processes()
    while children := [each for each in everyone if each.parent in parents and each not in found]:
        found += children
        parents |= {each.pid for each in children}
    return found


def kill_all(process: subprocess.Popen[Any]) -> None:
    """SIGKILL for a process and all that it has started, as when its machine dies."""
    started = descendants(process.pid)
    process.kill()
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    process.wait()


def wait_until(condition: Callable[[], bool], *, seconds: float, every: float = 0.1) -> None:
    """Waits for a condition that a running process is to bring about.

    Args:
        condition: Whether it has done so.
        seconds: How long that may take.
        every: Seconds between two looks. More where a look is work for a process that has other work to do.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(every)


def all_processes() -> list[Process]:
    """All that run on this machine."""
    # Zombies have ended; who started them has only not asked yet.
    lines = subprocess.run(
        ["ps", "-ww", "-eo", "stat=,pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    fields = [line.split(maxsplit=3) for line in lines]
    return [
        Process(int(pid), int(parent), " ".join(command))
        for state, pid, parent, *command in fields
        if not state.startswith("Z")
    ]
