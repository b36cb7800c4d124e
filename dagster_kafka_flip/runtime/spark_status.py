"""Spark's UI address, the progress of a write's read, and a warning while a cluster gives no executors.

The only module that uses a session's context. Sessions without one, as with Spark Connect, provide less information,
without errors.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

# Name of a topic's read in Spark's plans, and its metric.
_SCAN = "BatchScan KafkaTable"
_RECORDS = "number of output rows"

# A cluster takes some seconds to start an executor, and some more where pods or nodes are made for it.
_INTERVAL_SECONDS = 30.0


def ui_address(spark: SparkSession) -> str | None:
    """The address of the session's Spark UI; None if there is none or it is unknown."""
    context = _context(spark)
    return None if context is None else context.uiWebUrl


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


class _ExecutorWatch:
    """The watch of this process: pyspark has one cluster per process, and runs follow each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._context: Any = None
        self._log: logging.Logger | logging.LoggerAdapter[Any] = _logger

    def begin(self, spark: SparkSession, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        with self._lock:
            self._log = log
            if self._thread is None or not self._thread.is_alive() or self._context is not _context(spark):
                self._context = _context(spark)
                self._thread = threading.Thread(
                    target=self._watch, args=(spark,), daemon=True, name="dagster-kafka-flip-executors"
                )
                self._thread.start()

    def _watch(self, spark: SparkSession) -> None:
        since: float | None = None
        try:
            while True:
                time.sleep(_INTERVAL_SECONDS)
                context = _context(spark)
                # One of the executors is the driver.
                is_served = len(context._jsc.sc().statusTracker().getExecutorInfos()) > 1  # noqa: SLF001
                if is_served or not context.statusTracker().getActiveStageIds():
                    since = None
                    continue
                if since is not None:
                    self._log.warning(
                        "Spark has tasks to run, but the cluster %s has given it no executor for %.0f s: check in the "
                        "cluster's UI whether it has workers, with as many free cores and as much free memory as one "
                        "executor asks for (spark.executor.cores=%s, spark.executor.memory=%s). The run waits, and "
                        "continues when there is one",
                        context.master,
                        time.monotonic() - since,
                        spark.conf.get("spark.executor.cores", None) or "all of a worker's, or 1",
                        spark.conf.get("spark.executor.memory", None) or "1g",
                    )
                since = time.monotonic() if since is None else since
        except Exception as error:  # noqa: BLE001 - a session that has ended; the runs must not suffer from the watch
            _logger.debug("the watch for executors ended: %s: %s", type(error).__name__, error)


_watch = _ExecutorWatch()


def watch_executors(spark: SparkSession, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
    """Warns, until the session ends, whenever tasks wait for a cluster that has given no executor.

    A session in this process only, and of Spark Connect, has nothing to watch.
    """
    context = _context(spark)
    if context is not None and not context._jsc.sc().isLocal():  # noqa: SLF001
        _watch.begin(spark, log)
