"""What Spark tells of itself while it works: where its UI is, and how far the read of a write is.

The one module that asks a session's context. A session without one, as through Spark Connect, tells less, and nothing
fails for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

# As Spark's plans name the read of a topic, and what it counts.
_SCAN = "BatchScan KafkaTable"
_RECORDS = "number of output rows"


def ui_address(spark: SparkSession) -> str | None:
    """The address of the session's Spark UI, as Spark tells it; None if there is none, or none that is known here."""
    context = _context(spark)
    return None if context is None else context.uiWebUrl


def records_read(spark: SparkSession, tag: str) -> Callable[[], int | None]:
    """A function that says how many records a write has read; None as long as Spark tells nothing of it.

    What running tasks have read is as old as their executor's last heartbeat (`spark.executor.heartbeatInterval`).
    Through Spark Connect nothing is told.

    Args:
        spark: The session that writes.
        tag: A tag that the write's jobs bear.
    """
    context = _context(spark)
    return lambda: None if context is None else _records_of(context, spark, tag)


def _context(spark: SparkSession) -> Any:
    return getattr(spark, "sparkContext", None)


def _records_of(context: Any, session: Any, tag: str) -> int | None:
    # What Spark's own pages of jobs and queries are made of, and no public interface. The one for stages, which the
    # UI's REST interface makes public, knows nothing of running tasks under a local master.
    jobs, queries = context._jsc.sc().statusStore(), session._jsparkSession.sharedState().statusStore()  # noqa: SLF001
    told: list[int] = []
    for number in context.statusTracker().getActiveJobsIds():
        found = jobs.jobWithAssociatedSql(number)
        job, query = found.productElement(0), found.productElement(1)
        if tag in job.jobTags().mkString(" ") and query.isDefined():
            counted = queries.executionMetrics(query.get())
            values = [counted.get(counter) for counter in _counters(queries.planGraph(query.get()))]
            told += [int(value.get().replace(",", "")) for value in values if value.isDefined()]
    return sum(told) if told else None


def _counters(plan: Any) -> set[int]:
    """Ids of what counts the records that a query's plan reads from topics."""
    return {
        metric.accumulatorId()
        for node in _each(plan.allNodes())
        if node.name() == _SCAN
        for metric in _each(node.metrics())
        if metric.name() == _RECORDS
    }


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
