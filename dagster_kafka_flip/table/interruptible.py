"""Running a Spark action so that an interrupt ends it, and not only the wait for it."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

# How long an action that was told to stop is waited for. It may be in Delta's commit, which nothing interrupts.
_PATIENCE_SECONDS = 30.0


def write_tag(attempt: str) -> str:
    """The tag of the Spark jobs of one attempt to write."""
    return f"dagster-kafka-flip-{attempt}"


def run_interruptibly(spark: SparkSession, action: Callable[[], None], tag: str) -> None:
    """Runs an action in a thread of its own, and stops its Spark jobs if this thread is interrupted meanwhile.

    An interrupt in the middle of a call would leave the connection to the JVM with an answer that nobody has read, and
    the next call would take it for its own. So the thread that may be interrupted waits for a thread, not for Spark.

    Args:
        spark: The session that the action uses.
        action: What to do.
        tag: For the action's Spark jobs; no other action that runs at the same time has it.

    Raises:
        BaseException: What the action raised, or what interrupted this thread (KeyboardInterrupt, Dagster's own).
    """
    from pyspark import InheritableThread

    failures: list[BaseException] = []

    def act() -> None:
        try:
            spark.addTag(tag)
            action()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            failures.append(error)
        finally:
            with contextlib.suppress(Exception):
                spark.removeTag(tag)

    thread = InheritableThread(act, session=spark, name="dagster-kafka-flip-write", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        _logger.warning("interrupted; stopping the Spark jobs of the batch")
        with contextlib.suppress(Exception):
            spark.interruptTag(tag)
        thread.join(_PATIENCE_SECONDS)
        raise
    if failures:
        raise failures[0]
