"""The other end of `ingesting`: starts such processes, gives them orders, and makes sure that none is left."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.processes import wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_ROOT = Path(__file__).parents[2]

# A start of Spark on a machine that does five of them at once.
_PATIENCE_SECONDS = 240.0


class Ingester:
    """A process that ingests topics into tables when it is told to, with a Spark of its own.

    Args:
        folder: For its log and the note of the step that it has got to.
        name: Tells its files from those of others.
        bootstrap_servers: The broker.
    """

    def __init__(self, folder: Path, name: str, *, bootstrap_servers: str) -> None:
        self._note = folder / f"{name}.step"
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.ingesting", bootstrap_servers, str(self._note)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # A group of its own, so that a Ctrl-C in a terminal leaves it to whoever started it.
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._java: int | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

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

    def order(self, topic: str, table: str, *, deadly_step: str = "", max_records: int | None = None) -> None:
        """Starts a run, which is to end at a step if one is given."""
        assert self.process.stdin is not None
        order = {"topic": topic, "table": table, "step": deadly_step, "max_records": max_records}
        # It may have been killed a moment ago.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{json.dumps(order)}\n")
            self.process.stdin.flush()

    def answer(self, *, timeout: float = _PATIENCE_SECONDS) -> dict[str, Any] | None:
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

    def wait_until_gone(self) -> int:
        """Waits until it has ended and all that it had started, its JVM above all; returns how it ended."""
        code = self.process.wait(timeout=_PATIENCE_SECONDS)
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

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                self._answers.put(json.loads(line[1:]))
        self._answers.put(None)


class Ingesters:
    """Ingesters for one test after the other: the next one starts while a test is still at work with its own.

    Args:
        folder: For their files.
        bootstrap_servers: The broker.
    """

    def __init__(self, folder: Path, bootstrap_servers: str) -> None:
        self._folder = folder
        self._bootstrap_servers = bootstrap_servers
        self._started = 0
        self._next = self._start()

    def take(self) -> Ingester:
        """One that is on its way; the caller ends it."""
        taken, self._next = self._next, self._start()
        return taken

    def end(self) -> None:
        """Ends the one that nobody has taken."""
        self._next.end()

    def _start(self) -> Ingester:
        self._started += 1
        return Ingester(self._folder, f"ingester-{self._started}", bootstrap_servers=self._bootstrap_servers)
