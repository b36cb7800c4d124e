"""What a batch tells about its records while it is written, without a pass of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Observation

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

# Each watched topic partition costs an expression for every record; beyond this the watermark is not worth its price.
MAX_WATCHED_PARTITIONS = 256


@dataclass(frozen=True)
class Observed:
    """What was seen of a batch's records as they were read.

    Attributes:
        records: Records read.
        bytes: Bytes of their keys and values.
        rejected: Records that could not be decoded and were kept all the same.
        highest_timestamps: Highest record timestamp of each topic partition that was read; empty if too many of them
            were read at once to be watched.
    """

    records: int
    bytes: int
    rejected: int
    highest_timestamps: Mapping[TopicPartition, datetime] = field(default_factory=dict["TopicPartition", datetime])

    @property
    def watermark(self) -> datetime | None:
        """The lowest of the highest timestamps: on the topic partitions read, event time has got at least this far."""
        return min(self.highest_timestamps.values(), default=None)

    def to_json(self) -> dict[str, Any]:
        """For the document of the commit after this batch's."""
        watermark = self.watermark
        return {
            "records": self.records,
            "bytes": self.bytes,
            "rejected": self.rejected,
            "watermark": None if watermark is None else watermark.isoformat(),
        }


def observed_metrics(observation: Observation, patience: float) -> dict[str, Any]:
    """What an observation saw; nothing if Spark has nothing to tell in time.

    Args:
        observation: Of a DataFrame that has run.
        patience: Seconds to wait.
    """
    answer: dict[str, Any] = {}

    def ask() -> None:
        answer.update(observation.get)

    # Observation.get waits for ever for a plan that was never run as it was written.
    thread = threading.Thread(target=ask, daemon=True, name="observation")
    thread.start()
    thread.join(patience)
    return answer


class BatchObservation:
    """Watches one write of one batch.

    Args:
        splits: What the batch reads.
    """

    def __init__(self, splits: Sequence[KafkaPartitionSplit]) -> None:
        from pyspark.sql import Observation

        self._observation = Observation()
        self._watched = [split.topic_partition for split in splits] if len(splits) <= MAX_WATCHED_PARTITIONS else []

    def watch(self, staged: DataFrame, problem: Column) -> DataFrame:
        """The same DataFrame, watched when it runs.

        Args:
            staged: Records with Kafka's own column names.
            problem: What is wrong with a record, null if nothing is.
        """
        from pyspark.sql import functions as f

        size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
        highest = [
            f.max(
                f.when((f.col("partition") == partition) & (f.col("topic") == topic), f.unix_millis("timestamp"))
            ).alias(f"t{index}")
            for index, (topic, partition) in enumerate(self._watched)
        ]
        return staged.observe(
            self._observation,
            f.count(f.lit(1)).alias("records"),
            f.sum(size.cast("bigint")).alias("bytes"),
            f.count(problem).alias("rejected"),
            *highest,
        )

    def get(self, patience: float) -> Observed | None:
        """What was seen; None if Spark has nothing to tell. Call it only after a commit is known to have happened.

        The metrics are there when the commit is, give or take a moment; only a plan that Spark optimised away to
        nothing never yields any.

        Args:
            patience: Seconds to wait for them.
        """
        answer = observed_metrics(self._observation, patience)
        if "records" not in answer:
            return None
        highest = {
            topic_partition: datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
            for index, topic_partition in enumerate(self._watched)
            if (milliseconds := answer[f"t{index}"]) is not None
        }
        return Observed(
            records=answer["records"],
            bytes=answer["bytes"] or 0,
            rejected=answer["rejected"],
            highest_timestamps=highest,
        )
