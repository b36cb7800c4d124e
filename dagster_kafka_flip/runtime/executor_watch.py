"""Warns while a cluster gives Spark no executor: a job then waits without a word, for as long as that takes."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.spark_status import cluster_without_executors, is_on_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

# A cluster takes some seconds to start an executor, and some more where pods or nodes are made for it.
_INTERVAL_SECONDS = 30.0


class _ExecutorWatch:
    """The watch of this process: pyspark has one cluster per process, and runs follow each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._log: logging.Logger | logging.LoggerAdapter[Any] = _logger

    def begin(self, spark: SparkSession, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        with self._lock:
            self._log = log
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._watch, args=(spark,), daemon=True, name="dagster-kafka-flip-executors"
                )
                self._thread.start()

    def _watch(self, spark: SparkSession) -> None:
        since: float | None = None
        try:
            while True:
                time.sleep(_INTERVAL_SECONDS)
                cluster = cluster_without_executors(spark)
                if cluster is None:
                    since = None
                    continue
                if since is not None:
                    self._log.warning(
                        "Spark has tasks to run, but the cluster %s has given it no executor for %.0f s: check in the "
                        "cluster's UI whether it has workers, with as many free cores and as much free memory as one "
                        "executor asks for (spark.executor.cores=%s, spark.executor.memory=%s). The run waits, and "
                        "continues when there is one",
                        cluster.master,
                        time.monotonic() - since,
                        cluster.cores,
                        cluster.memory,
                    )
                since = time.monotonic() if since is None else since
        except Exception as error:  # noqa: BLE001 - a session that has ended; the runs must not suffer from the watch
            _logger.debug("the watch for executors ended: %s: %s", type(error).__name__, error)


_watch = _ExecutorWatch()


def watch_executors(spark: SparkSession, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
    """Warns, from now until the session ends, whenever tasks wait for a cluster that has given no executor.

    Args:
        spark: The session. One in this process only, and of Spark Connect, has nothing to watch.
        log: The log of the run that uses it now.
    """
    if is_on_cluster(spark):
        _watch.begin(spark, log)
