"""Plan and results of `dagster-kafka-flip backfill`."""

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
    """One run to launch.

    Attributes:
        partition_keys: A contiguous range of partitions; empty for a stream.
        config: The run config.
    """

    partition_keys: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Backfill:
    """The plan of a backfill.

    Attributes:
        asset: The asset's key.
        span: The requested time range.
        windows: The windows in it, in time order; for a stream, the range itself.
        plans: The window plans.
        runs: The runs to launch, in order.
        left_out: Windows that are only partly in the range.
        notes: Notes for the user.
        source: The source, as text.
        bootstrap_servers: The bootstrap servers.
        table: The table.
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
        """The ranges to read of each topic partition."""
        return sorted(
            (split for plan in self.plans for split in plan.splits),
            key=lambda split: (split.topic_partition, split.starting_offset),
        )

    @property
    def incidents(self) -> list[Incident]:
        """Tolerated errors of all plans, without duplicates."""
        return list({incident.message: incident for plan in self.plans for incident in plan.incidents}.values())

    @property
    def partition_keys(self) -> list[str]:
        """All partitions, in run order."""
        return [key for run in self.runs for key in run.partition_keys]


@dataclass(frozen=True)
class FinishedRun:
    """Result of a run.

    Attributes:
        run_id: The run's id.
        partition_keys: The partitions that it wrote.
        rows: Number of rows that it wrote; None if unknown.
        error: Class and message of its error; None if it succeeded.
    """

    run_id: str
    partition_keys: tuple[str, ...]
    rows: int | None
    error: tuple[str, str] | None
