"""Spark's UI address, the progress of a write's read, and whether a cluster has given executors.

The only module that uses a session's context. Sessions without one, as with Spark Connect, provide less information,
without errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

# Name of a topic's read in Spark's plans, and its metric.
_SCAN = "BatchScan KafkaTable"
_RECORDS = "number of output rows"


def ui_address(spark: SparkSession) -> str | None:
    """The address of the session's Spark UI; None if there is none or it is unknown."""
    context = _context(spark)
    return None if context is None else context.uiWebUrl


@dataclass(frozen=True)
class Cluster:
    """A cluster, and what a session asks of it.

    Attributes:
        master: Its master.
        cores: The cores of one executor.
        memory: The memory of one executor.
    """

    master: str
    cores: str
    memory: str


def is_on_cluster(spark: SparkSession) -> bool:
    """Whether the session's driver is in this process, and its executors on a cluster."""
    context = _context(spark)
    return context is not None and not context._jsc.sc().isLocal()  # noqa: SLF001


def cluster_without_executors(spark: SparkSession) -> Cluster | None:
    """The cluster of a session whose tasks wait, because it has no executor; None if none waits for that."""
    context = _context(spark)
    # One of them is the driver.
    if not context.statusTracker().getActiveStageIds() or len(context._jsc.sc().statusTracker().getExecutorInfos()) > 1:  # noqa: SLF001
        return None
    return Cluster(
        master=context.master,
        cores=spark.conf.get("spark.executor.cores", None) or "all of a worker's, or 1",
        memory=spark.conf.get("spark.executor.memory", None) or "1g",
    )


def records_read(spark: SparkSession, tag: str) -> Callable[[], int | None]:
    """Returns a function for the number of records that a write has read; None while unknown.

    Running tasks report with their executor's heartbeat (`spark.executor.heartbeatInterval`). Unknown with Spark
    Connect.
    """
    context = _context(spark)
    return lambda: None if context is None else _records_of(context, spark, tag)


def _context(spark: SparkSession) -> Any:
    return getattr(spark, "sparkContext", None)


def _records_of(context: Any, session: Any, tag: str) -> int | None:
    # Data of Spark's own job and query pages, not a public interface. The public one for stages, the UI's REST API,
    # does not include running tasks with a local master.
    jobs, queries = context._jsc.sc().statusStore(), session._jsparkSession.sharedState().statusStore()  # noqa: SLF001
    counts: list[int] = []
    for number in context.statusTracker().getActiveJobsIds():
        found = jobs.jobWithAssociatedSql(number)
        job, query = found.productElement(0), found.productElement(1)
        if tag in job.jobTags().mkString(" ") and query.isDefined():
            counted = queries.executionMetrics(query.get())
            values = [counted.get(counter) for counter in _counters(queries.planGraph(query.get()))]
            counts += [int(value.get().replace(",", "")) for value in values if value.isDefined()]
    return sum(counts) if counts else None


def _counters(plan: Any) -> set[int]:
    """Ids of the metrics that count the records that a query reads from topics."""
    return {
        metric.accumulatorId()
        for node in _each(plan.allNodes())
        if node.name() == _SCAN
        for metric in _each(node.metrics())
        if metric.name() == _RECORDS
    }


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
