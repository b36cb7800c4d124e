"""How much of a plan is read at once, and how a batch is spread over the topic partitions."""

from __future__ import annotations

import enum

from pydantic import Field

from dagster_kafka_flip.settings import Settings


class Spread(enum.Enum):
    """How a batch that can't hold everything is spread over the topic partitions."""

    BACKLOG = "backlog"
    """In proportion to what each has left, so that all reach their end together."""

    TIME = "time"
    """Up to the same record timestamp on each, so that event time advances evenly."""


class Limits(Settings):
    """How much to do at once.

    Attributes:
        max_records_per_batch: Largest number of offsets in one commit; None for no limit.
        max_bytes_per_batch: About the largest number of bytes of keys and values in one commit; None for no limit.
            Kafka tells no sizes, so it is kept by an estimate: the average record of batches before, or of a sample.
        max_batches: Largest number of commits in one run; None for no limit.
        spread: How a batch is spread over the topic partitions. Default: in proportion to their backlog.
    """

    max_records_per_batch: int | None = Field(default=None, ge=1)
    max_bytes_per_batch: int | None = Field(default=None, ge=1)
    max_batches: int | None = Field(default=None, ge=1)
    spread: Spread = Spread.BACKLOG

    def max_offsets(self, record_bytes: float | None) -> int | None:
        """The largest number of offsets in a batch; at least 1, so that a run gets on. None for no limit.

        Args:
            record_bytes: Estimated average size of a record; None if nothing is known of it.
        """
        by_bytes = (
            None
            if self.max_bytes_per_batch is None or record_bytes is None
            # Records without bytes, such as tombstones without keys, don't lift the limit: others may follow.
            else max(1, int(self.max_bytes_per_batch / max(1.0, record_bytes)))
        )
        limits = [limit for limit in (self.max_records_per_batch, by_bytes) if limit is not None]
        return min(limits, default=None)
