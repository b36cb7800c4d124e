"""Assigns splits to Spark tasks: several tasks read a large split, one task reads many small ones.

A Spark job is as fast as its busiest core. With one task per topic partition, a single large topic partition would
leave the other cores idle, and thousands of small ones would spend more time on starting consumers than on reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit

# Below this, another task costs more (a consumer's start, another file) than it saves.
MIN_RECORDS_PER_TASK = 50_000
# Above this, a failed task repeats too much, and the last task delays the rest.
MAX_RECORDS_PER_TASK = 2_000_000
# Spark closes a task's consumers when the task ends, and each keeps the metadata of all partitions of its topic: of a
# thousand, 0.7 MB.
MAX_SPLITS_PER_TASK = 100
# Each task prefetches records of the next task at the end of its range, so more tasks cost more.
_TASKS_PER_CORE = 1


@dataclass(frozen=True)
class TaskPlan:
    """Assignment of a batch's splits to tasks.

    Attributes:
        divided: Splits that one or more tasks read, each at most `records_per_task` offsets.
        gathered: Groups of small splits; one task reads each group.
        records_per_task: Maximum number of offsets that a task of a divided split reads.
    """

    divided: tuple[KafkaPartitionSplit, ...]
    gathered: tuple[tuple[KafkaPartitionSplit, ...], ...]
    records_per_task: int

    @property
    def tasks(self) -> tuple[tuple[KafkaPartitionSplit, ...], ...]:
        """The parts that each task reads."""
        parts = tuple(
            (part,) for split in self.divided for part in split.divide(-(-split.offset_span // self.records_per_task))
        )
        return parts + self.gathered


def plan_tasks(splits: Sequence[KafkaPartitionSplit], parallelism: int) -> TaskPlan:
    """Assigns splits to tasks of about the same size.

    Args:
        splits: Non-empty splits, at most one per topic partition.
        parallelism: Number of tasks that can run in parallel.
    """
    total = sum(split.offset_span for split in splits)
    even = -(-total // max(1, parallelism * _TASKS_PER_CORE))
    records_per_task = min(max(even, MIN_RECORDS_PER_TASK), MAX_RECORDS_PER_TASK)
    thin = [split for split in splits if split.offset_span * 2 <= records_per_task]
    # Every split gets a core at once; a group would only run its splits one after the other.
    if len(splits) <= parallelism:
        thin = []
    gathered = _neighbours(thin, _groups(thin, records_per_task, parallelism))
    thin_ones = {split.topic_partition for split in thin}
    return TaskPlan(
        divided=tuple(split for split in splits if split.topic_partition not in thin_ones),
        gathered=gathered,
        records_per_task=records_per_task,
    )


def _groups(thin: Sequence[KafkaPartitionSplit], records_per_task: int, parallelism: int) -> int:
    by_size = -(-sum(split.offset_span for split in thin) // records_per_task)
    by_number = -(-len(thin) // MAX_SPLITS_PER_TASK)
    return min(len(thin), max(by_size, by_number, parallelism))


def _neighbours(splits: Sequence[KafkaPartitionSplit], groups: int) -> tuple[tuple[KafkaPartitionSplit, ...], ...]:
    """Groups of equal size, as `coalesce` creates them; Spark decides which splits form a group."""
    return tuple(
        tuple(splits[len(splits) * group // groups : len(splits) * (group + 1) // groups]) for group in range(groups)
    )
