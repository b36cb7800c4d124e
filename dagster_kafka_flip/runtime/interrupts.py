"""Preserves interrupts that arrive during Python's garbage collection and would be lost."""

from __future__ import annotations

import logging
import signal
import sys
import threading

_logger = logging.getLogger(__name__)

# Delay until the main thread has left the callback that lost the interrupt; repeated if it is in another one.
_PAUSE_SECONDS = 0.05

_is_kept = False


def keep_interrupts() -> None:
    """Repeats interrupts that Python would drop from now on. Safe to call twice.

    A signal handler runs anywhere in the main thread. Python only prints exceptions in a weak reference's callback or a
    `__del__` (`sys.unraisablehook`), and py4j has such a callback for every JVM object: one in three interrupts in the
    seconds before a write was lost this way, and the run continued to its end.
    """
    global _is_kept  # noqa: PLW0603 - the hook is global too
    if _is_kept:
        return
    _is_kept = True
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not is_interrupt(unraisable.exc_type):
            before(unraisable)
            return
        _logger.info("an interrupt arrived during Python's garbage collection; repeating it")
        again = threading.Timer(_PAUSE_SECONDS, _interrupt_main_thread)
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def is_interrupt(kind: type[BaseException]) -> bool:
    """Whether an exception class means an external interrupt, like KeyboardInterrupt and Dagster's own."""
    return not issubclass(kind, Exception | GeneratorExit | SystemExit)


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
