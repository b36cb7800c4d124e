"""What a run tells while it runs: the progress of a long read, a write that reads nothing, and metrics."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.spark_status import records_read
from dagster_kafka_flip.telemetry.repeatedly import repeatedly

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.result import IngestResult
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.telemetry.repeatedly import Log

# The rate is averaged over this many readings, because single ones fluctuate with Spark's updates.
_READINGS = 6

# Thresholds for minutes and hours, in seconds and minutes.
_LONG = 90


class ReadProgress:
    """One read, from its first reading on."""

    def __init__(self, offsets: int) -> None:
        self._offsets = offsets
        self._seen: deque[tuple[float, int]] = deque(maxlen=_READINGS)

    def line(self, records: int, seconds: float) -> str | None:
        """Returns the progress text; None if nothing changed since the last call."""
        # A repeated task counts twice.
        done, whole = min(records, self._offsets), self._offsets
        before = self._seen[-1][1] if self._seen else 0
        if whole == 0 or done == before:
            return None
        if done < before:
            self._seen.clear()
        self._seen.append((seconds, done))
        read = f"read {done:,} of at most {whole:,} records ({100 * done // whole} %)"
        return ", ".join([read, *self._pace(done, whole)])

    def _pace(self, done: int, whole: int) -> list[str]:
        (begin, before), (now, _) = self._seen[0], self._seen[-1]
        # Excludes Spark's warm-up before the first reading.
        if now <= begin:
            return []
        rate = (done - before) / (now - begin)
        pace = [f"{rate:,.0f} records/s"]
        if whole > done:
            pace.append(f"about {_duration((whole - done) / rate)} left")
        return pace


def _duration(seconds: float) -> str:
    if seconds < _LONG:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < _LONG else f"{minutes // 60} h {minutes % 60} min"


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
    log: Log,
    interval_seconds: float = INTERVAL_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
) -> Generator[None, None, None]:
    """Logs a write's progress at each interval, or that it still runs. Errors of this never affect the write."""
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


def measure_incidents(spec: RunSpec, incidents: Iterable[Incident]) -> None:
    for incident in incidents:
        spec.metrics.record("incidents", 1, error_type=incident.error)
        spec.metrics.record("lost_offsets", incident.lost_offsets, error_type=incident.error)


def measure_result(spec: RunSpec, result: IngestResult) -> None:
    measure_incidents(spec, result.incidents)
    lag: Counter[str] = Counter()
    for tp, end in result.plan.end_offsets.items():
        lag[tp.topic] += max(0, end - result.position_of(tp))
    for topic, offsets in lag.items():
        spec.metrics.record("lag", offsets, topic=topic)
    if result.watermark is not None:
        spec.metrics.record("watermark", result.watermark / 1000)
