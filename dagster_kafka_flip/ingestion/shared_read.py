"""SharedRead: reads records from Kafka once for several tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.reader.read import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.api import Source, SplitAssignment
    from dagster_kafka_flip.source.split import KafkaPartitionSplit

    _Ranges = tuple[tuple[KafkaPartitionSplit, ...], tuple[KafkaPartitionSplit, ...]]


class SharedRead:
    """Like `reader.read`, but reads the same splits once while caching is on.

    Spark caches them in memory and on the executors' disks. If an executor is lost, its records are read again from the
    same offsets.
    """

    def __init__(self) -> None:
        self._kept: dict[_Ranges, DataFrame] | None = None

    def __call__(self, source: Source, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
        """The records of an assignment."""
        if self._kept is None:
            return read(source, spark, assignment)
        # Another way of reading is another DataFrame.
        ranges = (assignment.plan.splits, assignment.aside)
        if ranges not in self._kept:
            self._kept[ranges] = read(source, spark, assignment).persist()
        return self._kept[ranges]

    def keep(self) -> None:
        """Starts caching."""
        self._kept = {}

    def release(self) -> None:
        """Releases the cache."""
        for frame in (self._kept or {}).values():
            frame.unpersist()
        self._kept = None
