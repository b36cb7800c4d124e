"""Streams a query's rows to the driver, so that an interrupt stops the query, and a slow one does not block."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.job_tags import stop_jobs, tagged_jobs
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.sink.table_rows import TableRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

# Rows of a chunk, bytes of their values, and chunks that wait: enough that the two threads seldom wait for each other,
# and a bound for memory.
_ROWS = 2000
_BYTES = 4_000_000
_CHUNKS = 4

_VALUE = TableRow._fields.index("value")

# Seconds that a stopped query may take to end.
_PATIENCE_SECONDS = 30.0


class RowStream:
    """The rows of a query of `SegmentRows`, read by a thread of its own. Use as a context manager.

    Args:
        spark: The query's session.
        rows: The query.
        tag: Tag of its Spark jobs, unique among concurrent queries.
    """

    def __init__(self, spark: SparkSession, rows: DataFrame, tag: str) -> None:
        from pyspark import InheritableThread

        self._spark, self._rows, self._tag = spark, rows, tag
        self._queue: queue.Queue[list[tuple[Any, ...]] | BaseException | None] = queue.Queue(_CHUNKS)
        self._stopped = threading.Event()
        self._thread = InheritableThread(self._read, session=spark, name="dagster-kafka-flip-rows", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                stop_jobs(self._spark, self._tag)
            self._thread.join(_PATIENCE_SECONDS)

    def chunks(self, wait: float) -> Iterator[list[tuple[Any, ...]]]:
        """Yields the rows in chunks; an empty chunk if none came in time.

        Args:
            wait: Seconds to wait for a chunk.

        Raises:
            SparkSessionError: Spark has ended.
            Exception: The query's error.
        """
        while True:
            try:
                came = self._queue.get(timeout=wait)
            except queue.Empty:
                yield []
                continue
            if came is None:
                return
            if isinstance(came, BaseException):
                raise came
            yield came

    def _read(self) -> None:
        try:
            with dead_spark_as_error(), tagged_jobs(self._spark, self._tag):
                self._read_rows()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that takes the rows
            self._put(error)

    def _read_rows(self) -> None:
        chunk: list[tuple[Any, ...]] = []
        size = 0
        for row in self._rows.toLocalIterator():
            chunk.append(row)
            size += len(row[_VALUE] or b"")
            if len(chunk) == _ROWS or size > _BYTES:
                if not self._put(chunk):
                    return
                chunk, size = [], 0
        self._put(chunk)
        self._put(None)

    def _put(self, what: list[tuple[Any, ...]] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(what, timeout=0.2)
                return True
        return False
