"""Logs the progress of a long read while it runs."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.spark_status import records_read

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.progress import ReadProgress

_logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0

# Seconds to wait for Spark. It usually answers in milliseconds; a hanging call must not block the run.
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def read_watched(
    spark: SparkSession,
    tag: str,
    progress: ReadProgress,
    log: logging.Logger | logging.LoggerAdapter[Any],
    interval_seconds: float = INTERVAL_SECONDS,
) -> Generator[None, None, None]:
    """Logs the progress of a write's read at each interval. Short reads are not logged.

    Errors of this log never affect the write.

    Args:
        spark: The session of the write.
        tag: The tag of the write's jobs.
        progress: Formats the progress.
        log: The log.
        interval_seconds: Seconds until the first line, and between lines.
    """
    is_over = threading.Event()
    begin = time.monotonic()
    records_now = records_read(spark, tag)

    def log_progress() -> None:
        try:
            records = records_now()
            line = None if records is None else progress.line(records, time.monotonic() - begin)
            if line is not None and not is_over.is_set():
                log.info("%s", line)
        except Exception as error:  # noqa: BLE001 - whatever it is, the write must not suffer from it
            _logger.debug("could not read Spark's progress: %s: %s", type(error).__name__, error)

    def log_repeatedly() -> None:
        # The first query is after the first interval, so a short write has none.
        while not is_over.wait(interval_seconds):
            log_progress()

    thread = threading.Thread(target=log_repeatedly, daemon=True, name="dagster-kafka-flip-progress")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_PATIENCE_SECONDS)
