"""What Spark tells of itself while it works: where its UI is, and how far the read of a write is.

The one module that asks a session's context. A session without one, as through Spark Connect, tells less, and nothing
fails for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def ui_address(spark: SparkSession) -> str | None:
    """The address of the session's Spark UI, as Spark tells it; None if there is none, or none that is known here."""
    context = _context(spark)
    return None if context is None else context.uiWebUrl


def records_read(spark: SparkSession, tag: str) -> Callable[[], int | None]:
    """A function that says how many records a write has read; None as long as Spark tells nothing of it.

    A task's records are surely counted when it ends. Through Spark Connect nothing is told.

    Args:
        spark: The session that writes.
        tag: A tag that the write's jobs bear.
    """
    context = _context(spark)
    return lambda: None if context is None else _records_of(context, tag)


def _context(spark: SparkSession) -> Any:
    return getattr(spark, "sparkContext", None)


def _records_of(context: Any, tag: str) -> int | None:
    tracker = context.statusTracker()
    # The tracker knows tasks alone. What it is told by, which is no public interface, also knows records.
    store = context._jsc.sc().statusStore()  # noqa: SLF001
    for job in tracker.getActiveJobsIds():
        if tag not in store.job(job).jobTags().mkString(" "):
            continue
        stages = [store.lastStageAttempt(stage) for stage in tracker.getJobInfo(job).stageIds]
        # Kafka's records come without bytes. What comes with them are files: Delta's log, or what a transform joins.
        reading = [stage for stage in stages if stage.inputRecords() and not stage.inputBytes()]
        if reading:
            return sum(stage.inputRecords() for stage in reading)
    return None
