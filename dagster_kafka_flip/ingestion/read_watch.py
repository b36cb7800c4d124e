"""Telling of a long read in the run's log while it is under way."""

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

# An answer of Spark is a matter of milliseconds; one that hangs must not hold up the run.
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def read_watched(
    spark: SparkSession,
    tag: str,
    progress: ReadProgress,
    log: logging.Logger | logging.LoggerAdapter[Any],
    interval_seconds: float = INTERVAL_SECONDS,
) -> Generator[None, None, None]:
    """Tells of the read of a write at each interval, as long as the write goes on. A short one is not told of.

    Nothing that goes wrong with it reaches the write.

    Args:
        spark: The session that writes.
        tag: A tag that the write's jobs bear.
        progress: Makes a line of what Spark tells.
        log: Where to tell it.
        interval_seconds: Time to the first line, and between lines.
    """
    is_over = threading.Event()
    begin = time.monotonic()
    records_now = records_read(spark, tag)

    def tell() -> None:
        try:
            records = records_now()
            line = None if records is None else progress.line(records, time.monotonic() - begin)
            if line is not None and not is_over.is_set():
                log.info("%s", line)
        except Exception as error:  # noqa: BLE001 - whatever it is, the write must not suffer from it
            _logger.debug("Spark did not tell how far the read is: %s: %s", type(error).__name__, error)

    def keep_telling() -> None:
        # Spark is not asked before the first interval is over: for a short write, not at all.
        while not is_over.wait(interval_seconds):
            tell()

    thread = threading.Thread(target=keep_telling, daemon=True, name="dagster-kafka-flip-progress")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_PATIENCE_SECONDS)
