"""The other end of `ingesting`: starts such processes, gives them orders, and makes sure that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from tests.faults.ordered_process import PATIENCE_SECONDS, OrderedProcess
from tests.processes import wait_until


class Ingester(OrderedProcess):
    """A process that ingests topics into tables when it is told to, with a Spark of its own or as a server's client.

    Args:
        folder: For its log and the note of the step that it has got to.
        name: Tells its files from those of others.
        bootstrap_servers: The broker.
        remote: The Spark Connect server. Default: a Spark of its own.
    """

    def __init__(self, folder: Path, name: str, *, bootstrap_servers: str, remote: str | None = None) -> None:
        self._note = folder / f"{name}.step"
        self._java: int | None = None
        arguments = [bootstrap_servers, str(self._note), *([remote] if remote else [])]
        super().__init__(folder / f"{name}.log", "tests.faults.ingesting", *arguments)

    def wait_until_ready(self) -> None:
        """Waits for its Spark."""
        answer = self.answer()
        assert answer is not None, f"it ended before Spark was there:\n{self.log()}"
        self._java = answer["java"]

    @property
    def java(self) -> int:
        """The process id of its JVM."""
        assert self._java is not None
        return self._java

    def order(
        self, topic: str, table: str, *, deadly_step: str = "", max_records: int | None = None, **more: Any
    ) -> None:
        """Starts a run, which is to end at a step if one is given.

        Args:
            topic: What to read.
            table: Where to.
            deadly_step: Where to end.
            max_records: Most offsets in a commit.
            more: Which kind of run, and what only that kind is told.
        """
        # It may have been killed a moment ago.
        with contextlib.suppress(BrokenPipeError):
            order = {"topic": topic, "table": table, "step": deadly_step, "max_records": max_records}
            self._write({**order, **more})

    def answer(self, *, timeout: float = PATIENCE_SECONDS) -> dict[str, Any] | None:
        """What the run came to; None if the process ended and did not say."""
        return self._answers.get(timeout=timeout)

    @property
    def step(self) -> str:
        """The step that its run has got to."""
        return self._note.read_text(encoding="utf-8").strip()

    def log(self) -> str:
        """The last of what it wrote to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def kill(self, *, java: bool = False) -> None:
        """SIGKILL for the Python process, or for its JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.java if java else self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP for the Python process: it knows nothing of the time until it is resumed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)

    def wait_until_gone(self) -> int:
        """Waits until it has ended and all that it had started, its JVM above all; returns how it ended."""
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        # The JVM and its workers have inherited standard output, so that it ends with the last of them.
        self._reader.join(timeout=60)
        assert not self._reader.is_alive(), f"something that it started is still running:\n{self.log()}"
        return code

    def end(self) -> None:
        """Ends it in any case."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.process.poll() is None:
            self.kill()
        with contextlib.suppress(AssertionError):
            self.wait_until_gone()
        if self._reader.is_alive() and self._java is not None:
            self.kill(java=True)
            wait_until(lambda: not self._reader.is_alive(), seconds=60)


class Ingesters:
    """Ingesters for one test after the other: the next one starts while a test is still at work with its own.

    Args:
        folder: For their files.
        bootstrap_servers: The broker.
        number: How many will be taken.
        remote: The Spark Connect server that they are clients of. Default: each has a Spark of its own.
    """

    def __init__(self, folder: Path, bootstrap_servers: str, number: int, remote: str | None = None) -> None:
        self._folder = folder
        self._bootstrap_servers = bootstrap_servers
        self._number = number
        self._remote = remote
        self._started = 0
        self._next: Ingester | None = self._start()

    def take(self) -> Ingester:
        """One that is on its way; the caller ends it."""
        taken, self._next = self._next or self._start(), None
        if self._started < self._number:
            self._next = self._start()
        return taken

    def end(self) -> None:
        """Ends the one that nobody has taken."""
        if self._next is not None:
            self._next.end()

    def _start(self) -> Ingester:
        self._started += 1
        return Ingester(
            self._folder, f"ingester-{self._started}", bootstrap_servers=self._bootstrap_servers, remote=self._remote
        )
