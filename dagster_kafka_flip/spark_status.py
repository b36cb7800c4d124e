"""What Spark tells of itself while it works: where its UI is, and how far the read of a write is.

The one module that asks a session's context. A session without one, as through Spark Connect, tells less, and nothing
fails for it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.progress import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from pyspark.sql import SparkSession


def ui_address(spark: SparkSession) -> str | None:
    """The address of the session's Spark UI, as Spark tells it; None if there is none, or none that is known here."""
    context = _context(spark)
    return None if context is None else context.uiWebUrl


@contextlib.contextmanager
def readings(spark: SparkSession, tag: str) -> Generator[Callable[[], Reading | None], None, None]:
    """Gives a function that says how far a write's read is; None as long as Spark does not read.

    Args:
        spark: The session that writes.
        tag: A tag that the write's jobs bear.
    """
    context = _context(spark)
    if context is not None:
        yield lambda: _reading_of(context, tag)
        return
    latest: list[Reading | None] = [None]

    # Its thread waits for answers to the write, and does nothing else meanwhile: no other operation gets in between.
    def take_up(stages: Iterable[Any] | None, **_: Any) -> None:
        # It is called in the middle of the write.
        with contextlib.suppress(Exception):
            latest[0] = _reading_of_stages(stages or ())

    spark.registerProgressHandler(take_up)
    try:
        yield lambda: latest[0]
    finally:
        spark.removeProgressHandler(take_up)


def _context(spark: SparkSession) -> Any:
    return getattr(spark, "sparkContext", None)


def _reading_of(context: Any, tag: str) -> Reading | None:
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
            return Reading(
                records=sum(stage.inputRecords() for stage in reading),
                tasks=sum(stage.numTasks() for stage in reading),
                completed_tasks=sum(stage.numCompleteTasks() for stage in reading),
            )
    return None


def _reading_of_stages(stages: Iterable[Any]) -> Reading | None:
    for stage in stages:
        if not stage.done and not stage.num_bytes_read:
            return Reading(records=None, tasks=stage.num_tasks, completed_tasks=stage.num_completed_tasks)
    return None
