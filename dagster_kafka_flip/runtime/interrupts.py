"""Interrupts that come while Python tidies up, and would be lost."""

from __future__ import annotations

import logging
import signal
import sys
import threading

_logger = logging.getLogger(__name__)

# By then the main thread has left the callback in which the interrupt was lost; if it is in another one, again.
_PAUSE_SECONDS = 0.05

_is_kept = False


def keep_interrupts() -> None:
    """Repeats each interrupt from here on that Python would otherwise drop. Does nothing the second time.

    A signal's handler runs wherever the main thread happens to be. What it raises inside a weak reference's callback or
    a `__del__` Python prints and forgets (`sys.unraisablehook`), and py4j has such a callback for every object of the
    JVM: of the interrupts in the seconds before a write one in three went there, and the run went on to its end.
    """
    global _is_kept  # noqa: PLW0603 - the hook is the process's too
    if _is_kept:
        return
    _is_kept = True
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not is_interrupt(unraisable.exc_type):
            before(unraisable)
            return
        _logger.info("an interrupt came while Python tidied up; it is repeated")
        again = threading.Timer(_PAUSE_SECONDS, _interrupt_main_thread)
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def is_interrupt(kind: type[BaseException]) -> bool:
    """Whether an exception of this class ends a run from outside, as KeyboardInterrupt and Dagster's own do."""
    return not issubclass(kind, Exception | GeneratorExit | SystemExit)


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
