"""Calls a function again and again while something else goes on."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Seconds to wait for a call that goes on when the block ends: one that hangs must not block the run.
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def repeatedly(call: Callable[[], None], name: str, interval_seconds: float) -> Generator[threading.Event]:
    """Calls a function after each interval, in a thread, until the end of the block.

    Args:
        call: The function. It must raise no error.
        name: The thread's name.
        interval_seconds: Seconds until the first call, and between calls.

    Yields:
        Whether the block is over, for a function that takes long.
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
