"""Plans a run and its batches like a real run, without reading or writing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.split import KafkaPartitionSplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.limits import Limits
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.sample import SplitSample
    from dagster_kafka_flip.source.split import TopicPartition

# Maximum number of batches to plan individually; only the number of further ones is estimated. A batch by time costs
# requests.
_MOST_BATCHES = 100


@dataclass(frozen=True)
class PlannedBatch:
    """One planned commit."""

    splits: int
    offsets: int
    tasks: int


@dataclass(frozen=True)
class PlannedRun:
    """A planned run.

    Attributes:
        plan: The plan of all unread records.
        splits: The splits of the run; fewer if the number of batches is limited.
        lag_after: Lag of each topic partition after the run.
        batches: The run's (first) batches.
        further_batches: Approximate number of further batches.
        tasks: Number of the batches' tasks that read each topic partition.
        samples: Samples of each split, if requested.
    """

    plan: ReadPlan
    splits: tuple[KafkaPartitionSplit, ...]
    lag_after: Mapping[TopicPartition, int]
    batches: tuple[PlannedBatch, ...]
    further_batches: int
    tasks: Mapping[TopicPartition, int]
    samples: Mapping[TopicPartition, SplitSample] | None

    @property
    def offsets(self) -> int:
        """Number of offsets, and so the maximum number of records."""
        return sum(split.offset_span for split in self.splits)

    def bytes_of(self, split: KafkaPartitionSplit) -> int | None:
        """Approximate bytes of a split's keys and values, from its sample; None without one."""
        sample = (self.samples or {}).get(split.topic_partition)
        return None if sample is None else round(sample.bytes / sample.records * split.offset_span)

    @property
    def bytes(self) -> int | None:
        """Approximate bytes of all keys and values; None without samples."""
        sizes = [size for split in self.splits if (size := self.bytes_of(split)) is not None]
        return sum(sizes) if sizes else None


def plan_run(enumerator: KafkaSourceEnumerator, limits: Limits, *, sample: bool) -> PlannedRun:
    """Plans a run and splits it into batches.

    Args:
        enumerator: An enumerator that was not started.
        limits: The limits.
        sample: Whether to sample each split.

    Raises:
        KafkaFlipError: A run would fail with this error.
    """
    plan = enumerator.start()
    batches: list[PlannedBatch] = []
    tasks: Counter[TopicPartition] = Counter()
    most = limits.max_batches or _MOST_BATCHES
    while not plan.is_empty and len(batches) < most:
        assignment = enumerator.assign(limits)
        if assignment is None:
            break
        read, assigned = assignment.plan, assignment.task_plan.tasks
        batches.append(PlannedBatch(len(read.splits), read.offset_span, len(assigned)))
        tasks.update(part.topic_partition for task in assigned for part in task)
    left = plan.offset_span - sum(batch.offsets for batch in batches)
    position = plan.state.position
    further = 0
    if left and limits.max_batches is not None:
        reached = enumerator.snapshot_state()
        position = position if reached is None else reached.position
    elif left:
        further = -(-left // max(batch.offsets for batch in batches))
    splits = tuple(
        KafkaPartitionSplit(split.topic_partition, split.starting_offset, position[split.topic_partition])
        for split in plan.splits
        if split.starting_offset < position[split.topic_partition]
    )
    return PlannedRun(
        plan=plan,
        splits=splits,
        lag_after={tp: max(0, end - position[tp]) for tp, end in plan.end_offsets.items()},
        batches=tuple(batches),
        further_batches=further,
        tasks=tasks,
        samples=enumerator.sample(splits) if sample and splits else None,
    )
