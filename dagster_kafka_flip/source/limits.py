"""Batch limits, and how a batch is distributed over the topic partitions."""

from __future__ import annotations

import enum

from pydantic import Field

from dagster_kafka_flip.settings.base import Settings


class Spread(enum.Enum):
    """How a limited batch is distributed over the topic partitions."""

    BACKLOG = "backlog"
    """In proportion to each backlog, so that all topic partitions reach their end together."""

    TIME = "time"
    """Up to the same record timestamp on each, so that event time advances evenly."""


class Limits(Settings):
    """Limits of batches and runs.

    Attributes:
        max_records_per_batch: Maximum number of offsets in one commit; None for no limit.
        max_bytes_per_batch: Approximate maximum number of bytes of keys and values in one commit; None for no limit.
            Kafka does not report sizes, so the average record size of earlier batches, or of a sample, is used.
        max_batches: Maximum number of commits in one run; None for no limit.
        spread: How a batch is distributed over the topic partitions. Default: in proportion to their backlog.
    """

    max_records_per_batch: int | None = Field(default=None, ge=1)
    max_bytes_per_batch: int | None = Field(default=None, ge=1)
    max_batches: int | None = Field(default=None, ge=1)
    spread: Spread = Spread.BACKLOG

    def max_offsets(self, record_bytes: float | None) -> int | None:
        """Maximum number of offsets in a batch, at least 1 so that a run makes progress. None for no limit.

        Args:
            record_bytes: Estimated average record size in bytes; None if unknown.
        """
        by_bytes = (
            None
            if self.max_bytes_per_batch is None or record_bytes is None
            # Records without bytes, such as tombstones without keys, do not lift the limit: later records may be
            # larger.
            else max(1, int(self.max_bytes_per_batch / max(1.0, record_bytes)))
        )
        limits = [limit for limit in (self.max_records_per_batch, by_bytes) if limit is not None]
        return min(limits, default=None)
