"""What `dagster-kafka-flip backfill` is about to do, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.source.window_plan import WindowPlan


@dataclass(frozen=True)
class RunRequest:
    """One run to be launched.

    Attributes:
        partition_keys: Its partitions, without a gap; none for a stream.
        config: What is set for it.
    """

    partition_keys: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Backfill:
    """What is landed again, and how.

    Attributes:
        asset: The asset's key.
        span: The range of time that was asked for.
        windows: The windows in it, in order of time; of a stream the range itself.
        plans: What is read for them.
        runs: What is launched, in this order.
        left_out: Windows that the range holds only a part of.
        notes: What is not as it may seem.
        source: What is read, as text.
        bootstrap_servers: Where from.
        table: Where to.
    """

    asset: str
    span: Window
    windows: tuple[Window, ...]
    plans: tuple[WindowPlan, ...]
    runs: tuple[RunRequest, ...]
    left_out: tuple[Window, ...]
    notes: tuple[str, ...]
    source: str
    bootstrap_servers: str
    table: str

    @property
    def splits(self) -> list[KafkaPartitionSplit]:
        """What is read of each topic partition."""
        return sorted(
            (split for plan in self.plans for split in plan.splits),
            key=lambda split: (split.topic_partition, split.starting_offset),
        )

    @property
    def incidents(self) -> list[Incident]:
        """What would end the runs, and is tolerated; each once."""
        return list({incident.message: incident for plan in self.plans for incident in plan.incidents}.values())

    @property
    def partition_keys(self) -> list[str]:
        """All partitions, in the order in which they are landed."""
        return [key for run in self.runs for key in run.partition_keys]


@dataclass(frozen=True)
class FinishedRun:
    """What became of a run.

    Attributes:
        run_id: The run.
        partition_keys: The partitions that it landed.
        rows: The rows that it wrote; None if that is not known.
        error: Why it failed: class and message; None if it did not.
    """

    run_id: str
    partition_keys: tuple[str, ...]
    rows: int | None
    error: tuple[str, str] | None
