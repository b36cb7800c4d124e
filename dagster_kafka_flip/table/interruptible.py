"""Runs Spark's actions: an interrupt stops them, transient errors are tried again, and no wait is silent."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import ClusterUnreachableError, PublishFailedError, WriteFailedError
from dagster_kafka_flip.runtime.remote import stop_jobs, tagged_jobs
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.table.spark_error import error_summary, is_transient, unwrapped
from dagster_kafka_flip.telemetry.repeatedly import said_while_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.telemetry.repeatedly import Log

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


_T = TypeVar("_T")

TRIES = 5
_FIRST_WAIT_SECONDS = 1.0

# Their causes are Spark's errors.
_OF_SPARK = (PublishFailedError, WriteFailedError)

# An answer takes a second, or some on a busy machine. The clients of stores wait and retry for minutes, some for hours,
# and don't say so.
_SILENCE_SECONDS = 60.0


def retried(log: Log, what: str, ask: Callable[[], _T]) -> _T:
    tries = 1
    while True:
        try:
            return ask()
        except Exception as error:
            if not waits_for_another_try(log, what, tries, error):
                raise
        tries += 1


def waits_for_another_try(log: Log, what: str, tries: int, error: Exception) -> bool:
    """Whether an error is transient, after so many tries; then logs it, and waits 1, 2, 4 or 8 seconds."""
    cause = error.__cause__ if isinstance(error, _OF_SPARK) else error
    if tries >= TRIES or not (isinstance(error, ClusterUnreachableError) or is_transient(cause)):
        return False
    seconds = _FIRST_WAIT_SECONDS * 2 ** (tries - 1)
    log.warning(
        "%s failed with a transient error (try %d of %d); retrying in %.0f s: %s",
        what,
        tries,
        TRIES,
        seconds,
        cause if cause is None or isinstance(cause, ClusterUnreachableError) else error_summary(cause),
    )
    instants.sleep(seconds)
    return True


def warned_of_silence(log: Log, what: str) -> AbstractContextManager[None]:
    """Warns, again and again, as long as a request to a table's store or catalog has no answer."""
    why = (
        f"{what} has had no answer. Spark waits for the table's store or catalog, which may be down, slow or out of "
        "reach, or for executors. The run continues when there is an answer, and nothing is lost if you cancel it. If "
        "there is none, check the address and the network; the time-outs of the store's client decide when the run ends"
    )
    return said_while_waiting(log, lambda: why, _SILENCE_SECONDS)
