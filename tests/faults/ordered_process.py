"""A process that takes orders as lines of JSON, and answers with lines of JSON that begin with `@`: this end of it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_ROOT = Path(__file__).parents[2]

# A start of Spark on a machine that does several of them at once.
PATIENCE_SECONDS = 240.0


class OrderedProcess:
    """A module of the tests that runs in a process of its own.

    Args:
        log: Where its standard error goes.
        module: The module.
        arguments: Its arguments.
    """

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                # A group of its own, so that a Ctrl-C in a terminal leaves it to whoever started it.
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Ends it in any case."""
        raise NotImplementedError

    def _write(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(order)}\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                self._answers.put(json.loads(line[1:]))
        self._answers.put(None)
