"""Logs the progress of a long read, and each minute that a write which reads nothing is still running."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.spark_status import records_read
from dagster_kafka_flip.telemetry.repeatedly import repeatedly

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.progress import ReadProgress

_logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0

SILENCE_SECONDS = 60.0

_STILL = (
    "the write has gone on for {:.0f} s, and has read no record in the last {:.0f} s, as far as is known here: Spark "
    "sorts, merges or writes the rows, or waits for Kafka, for the table's store or for executors (see Spark's UI)"
)


@contextlib.contextmanager
def read_watched(
    spark: SparkSession,
    tag: str,
    progress: ReadProgress,
    log: logging.Logger | logging.LoggerAdapter[Any],
    interval_seconds: float = INTERVAL_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
) -> Generator[None, None, None]:
    """Logs a write's progress at each interval, or that it is still running. Short writes log nothing.

    Errors of this log never affect the write.

    Args:
        spark: The session of the write.
        tag: The tag of the write's jobs.
        progress: Formats the progress.
        log: The log.
        interval_seconds: Seconds until the first line, and between lines.
        silence_seconds: Seconds without a line after which it logs that the write is still running.
    """
    begin = logged_at = time.monotonic()
    records_now = records_read(spark, tag)

    def log_progress() -> None:
        nonlocal logged_at
        try:
            records = records_now()
            now = time.monotonic()
            line = None if records is None else progress.line(records, now - begin)
            if line is None and now - logged_at >= silence_seconds:
                line = _STILL.format(now - begin, now - logged_at)
            if line is not None and not is_over.is_set():
                log.info("%s", line)
                logged_at = now
        except Exception as error:  # noqa: BLE001 - whatever it is, the write must not suffer from it
            _logger.debug("could not read Spark's progress: %s: %s", type(error).__name__, error)

    # The first query is after the first interval, so a short write has none.
    with repeatedly(log_progress, "dagster-kafka-flip-progress", interval_seconds) as is_over:
        yield
