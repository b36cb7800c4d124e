"""Running a Spark action so that an interrupt ends it, and not only the wait for it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

# How long an action that was told to stop is waited for. It may be in Delta's commit, which nothing interrupts.
_PATIENCE_SECONDS = 30.0

# How long the end of the process waits for it once more. Spark's JVM ends with the process, and the action with it.
_PATIENCE_AT_EXIT_SECONDS = 60.0


def write_tag(attempt: str) -> str:
    """The tag of the Spark jobs of one attempt to write."""
    return f"dagster-kafka-flip-{attempt}"


class Hold:
    """Something that is held, such as a lock, until all who share it have let go.

    Args:
        release: Lets go of it.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._sharing = 1
        self._counting = threading.Lock()

    def share(self) -> None:
        """One more has to let go of it."""
        with self._counting:
            self._sharing += 1

    def let_go(self) -> None:
        """One less needs it; the last one releases it."""
        with self._counting:
            self._sharing -= 1
            is_last = self._sharing == 0
        if is_last:
            self._release()


@contextlib.contextmanager
def held(lock: AbstractContextManager[object]) -> Generator[Hold]:
    """Holds a lock as long as the block runs, and longer if it was shared with somebody who is not done then.

    Args:
        lock: The lock, which any thread may release.
    """
    stack = contextlib.ExitStack()
    stack.enter_context(lock)
    hold = Hold(stack.close)
    try:
        yield hold
    finally:
        hold.let_go()


def run_interruptibly(spark: SparkSession, action: Callable[[], None], tag: str, hold: Hold) -> None:
    """Runs an action in a thread of its own, and stops its Spark jobs if this thread is interrupted meanwhile.

    An interrupt in the middle of a call would leave the connection to the JVM with an answer that nobody has read, and
    the next call would take it for its own. So the thread that may be interrupted waits for a thread, not for Spark.

    Args:
        spark: The session that the action uses.
        action: What to do.
        tag: For the action's Spark jobs; no other action that runs at the same time has it.
        hold: What is held until the action has really ended, even if this function ends before it.

    Raises:
        BaseException: What the action raised, or what interrupted this thread (KeyboardInterrupt, Dagster's own).
    """
    from pyspark import InheritableThread

    failures: list[BaseException] = []
    is_interrupted, has_ended = threading.Event(), threading.Event()

    def act() -> None:
        try:
            spark.addTag(tag)
            # An interrupt finds no jobs to stop as long as there are none.
            if not is_interrupted.is_set():
                action()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            failures.append(error)
        finally:
            with contextlib.suppress(Exception):
                spark.removeTag(tag)
            hold.let_go()
            has_ended.set()

    thread = InheritableThread(act, session=spark, name="dagster-kafka-flip-write", daemon=True)
    hold.share()
    try:
        # An interrupt may come in the middle of the start too, when the thread runs already.
        thread.start()
        has_ended.wait()
    except RuntimeError:
        # There is no room for another thread.
        hold.let_go()
        raise
    except BaseException:
        is_interrupted.set()
        _logger.warning("interrupted; stopping the Spark jobs of the batch")
        with contextlib.suppress(Exception):
            spark.interruptTag(tag)
        try:
            has_ended.wait(_PATIENCE_SECONDS)
        finally:
            # Also where whoever interrupts grows impatient, and does it again.
            if not has_ended.is_set():
                _logger.warning(
                    "the write has not stopped yet, and may still be committed. The table stays locked for other runs "
                    "until the write has ended; this process waits up to %.0f s for it before it ends",
                    _PATIENCE_AT_EXIT_SECONDS,
                )
                atexit.register(has_ended.wait, _PATIENCE_AT_EXIT_SECONDS)
        raise
    if failures:
        raise failures[0]
