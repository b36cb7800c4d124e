"""Calls a function again and again while something else goes on."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Generator
    from typing import TypeAlias

    Log: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]

# Seconds to wait for a call that goes on when the block ends: one that hangs must not block the run.
_PATIENCE_SECONDS = 5.0

# Whoever looks at a run's log is to see within this time what it waits for.
_SILENCE_SECONDS = 10.0


@contextlib.contextmanager
def repeatedly(call: Callable[[], None], name: str, interval_seconds: float) -> Generator[threading.Event]:
    """Calls a function, which must raise no error, after each interval in a thread, until the end of the block.

    Yields whether the block is over, for a function that takes long.
    """
    is_over = threading.Event()

    def call_repeatedly() -> None:
        while not is_over.wait(interval_seconds):
            call()

    thread = threading.Thread(target=call_repeatedly, daemon=True, name=name)
    thread.start()
    try:
        yield is_over
    finally:
        is_over.set()
        thread.join(_PATIENCE_SECONDS)


@contextlib.contextmanager
def said_while_waiting(log: Log, what: Callable[[], str], first: float | None = None) -> Generator[None]:
    """Warns after 10 seconds, or others, twice and four times as many, then each minute, until the end of the block.

    `what` is called in another thread.
    """
    begin, every = time.monotonic(), first or _SILENCE_SECONDS
    calls, due = itertools.count(1), 1

    def warn() -> None:
        nonlocal due
        if next(calls) >= due:
            due += max(1, min(due, int(60 / every)))
            log.warning("waiting for %.0f s: %s", time.monotonic() - begin, what())

    with repeatedly(warn, "dagster-kafka-flip-waits", every):
        yield
