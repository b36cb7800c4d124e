"""Runs a Spark action so that an interrupt stops it, not only the wait for it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.remote import stop_jobs, tagged_jobs
from dagster_kafka_flip.table.spark_error import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

# Seconds to wait for a stopped action. It may be in Delta's commit, which can't be interrupted.
_PATIENCE_SECONDS = 30.0

# Seconds between two attempts to stop it. An action starts one job after another.
_EVERY_SECONDS = 1.0

# Seconds that the exiting process waits for it again. Spark's JVM, and so the action, ends with the process.
_PATIENCE_AT_EXIT_SECONDS = 60.0


def write_tag(attempt: str) -> str:
    return f"dagster-kafka-flip-{attempt}"


class Hold:
    """A shared resource, such as a lock, that is released when its last user is done."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._sharing = 1
        self._counting = threading.Lock()

    def share(self) -> None:
        with self._counting:
            self._sharing += 1

    def let_go(self) -> None:
        """Removes a user; the last one releases the resource."""
        with self._counting:
            self._sharing -= 1
            is_last = self._sharing == 0
        if is_last:
            self._release()


@contextlib.contextmanager
def held(lock: AbstractContextManager[object]) -> Generator[Hold]:
    """Holds a lock for the block, and longer if another thread still uses it."""
    stack = contextlib.ExitStack()
    stack.enter_context(lock)
    hold = Hold(stack.close)
    try:
        yield hold
    finally:
        hold.let_go()


def run_interruptibly(spark: SparkSession, action: Callable[[], None], tag: str, hold: Hold) -> None:
    """Runs an action in its own thread, and stops its Spark jobs if the calling thread is interrupted.

    An interrupt during a call would leave an unread answer on the connection to the JVM, and the next call would read
    it as its own. So the interruptible thread waits for a thread, not for Spark. `hold` stays until the action has
    ended, even if this function returns earlier.
    """
    from pyspark import InheritableThread

    failures: list[BaseException] = []
    is_interrupted, has_ended = threading.Event(), threading.Event()

    def act() -> None:
        try:
            with tagged_jobs(spark, tag):
                # An interrupt before the first job finds no jobs to stop.
                if not is_interrupted.is_set():
                    action()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            failures.append(unwrapped(error))
        finally:
            hold.let_go()
            has_ended.set()

    thread = InheritableThread(act, session=spark, name="dagster-kafka-flip-write", daemon=True)
    hold.share()
    try:
        # An interrupt may also arrive during the start, when the thread already runs.
        thread.start()
        has_ended.wait()
    except RuntimeError:
        # The process can't start another thread.
        hold.let_go()
        raise
    except BaseException:
        is_interrupted.set()
        _logger.warning("interrupted; stopping the Spark jobs of the batch")
        try:
            _stop(spark, tag, has_ended)
        finally:
            # Also on repeated interrupts.
            if not has_ended.is_set():
                _logger.warning(
                    "the write is still running and may be committed. The table stays locked for other runs until the "
                    "write ends; this process waits up to %.0f s for it",
                    _PATIENCE_AT_EXIT_SECONDS,
                )
                atexit.register(has_ended.wait, _PATIENCE_AT_EXIT_SECONDS)
        raise
    if failures:
        raise failures[0]


def _stop(spark: SparkSession, tag: str, has_ended: threading.Event) -> None:
    """Stops the jobs of an action until it has ended, or does not end in time."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not has_ended.is_set() and (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(Exception):
            stop_jobs(spark, tag)
        has_ended.wait(min(left, _EVERY_SECONDS))
