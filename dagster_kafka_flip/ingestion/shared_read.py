"""SharedRead: what several tables land is read from Kafka once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.reader.read import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.api import Source, SplitAssignment
    from dagster_kafka_flip.source.split import KafkaPartitionSplit

    _Ranges = tuple[tuple[KafkaPartitionSplit, ...], tuple[KafkaPartitionSplit, ...]]


class SharedRead:
    """Reads like `reader.read`; while it is told to keep, the records of the same splits are read once.

    Spark keeps them in memory, and on the executors' disks as far as they don't fit. What an executor takes with it is
    read again from the same offsets.
    """

    def __init__(self) -> None:
        self._kept: dict[_Ranges, DataFrame] | None = None

    def __call__(self, source: Source, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
        """The records of an assignment."""
        if self._kept is None:
            return read(source, spark, assignment)
        # What is read in another way is another DataFrame.
        ranges = (assignment.plan.splits, assignment.aside)
        if ranges not in self._kept:
            self._kept[ranges] = read(source, spark, assignment).persist()
        return self._kept[ranges]

    def keep(self) -> None:
        """From now on what is read is kept."""
        self._kept = {}

    def release(self) -> None:
        """Lets go of what is kept."""
        for frame in (self._kept or {}).values():
            frame.unpersist()
        self._kept = None
