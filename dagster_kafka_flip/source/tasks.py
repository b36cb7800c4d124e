"""Which task reads what: a fat split is read by several tasks, many thin ones by few.

A Spark job is as fast as its busiest core. One task for each topic partition would leave all cores but one idle where
one topic partition holds most of the records, and spend more time on starting consumers than on reading where thousands
hold a handful each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit

# Below this, a further task costs more (a consumer's start, a file of its own) than it saves.
MIN_RECORDS_PER_TASK = 50_000
# Above this, a task that fails has much to repeat, and the last one to end holds up the rest.
MAX_RECORDS_PER_TASK = 2_000_000
# At the end of its range each task has fetched ahead what another one reads, so that more of them are dearer.
_TASKS_PER_CORE = 1


@dataclass(frozen=True)
class TaskPlan:
    """How the splits of a batch are dealt out to tasks.

    Attributes:
        divided: Splits that are read by one task or more, each of at most `records_per_task` offsets.
        gathered: Splits that are too thin for a task of their own, in groups of neighbours, one for each task.
        records_per_task: Largest number of offsets that a task of a divided split reads.
    """

    divided: tuple[KafkaPartitionSplit, ...]
    gathered: tuple[tuple[KafkaPartitionSplit, ...], ...]
    records_per_task: int

    @property
    def tasks(self) -> tuple[tuple[KafkaPartitionSplit, ...], ...]:
        """What each task reads, part by part."""
        parts = tuple(
            (part,) for split in self.divided for part in split.divide(-(-split.offset_span // self.records_per_task))
        )
        return parts + self.gathered


def plan_tasks(splits: Sequence[KafkaPartitionSplit], parallelism: int) -> TaskPlan:
    """Deals splits out to tasks of about the same size.

    Args:
        splits: Not empty each, and at most one for each topic partition.
        parallelism: Number of tasks that can run at once.
    """
    total = sum(split.offset_span for split in splits)
    even = -(-total // max(1, parallelism * _TASKS_PER_CORE))
    records_per_task = min(max(even, MIN_RECORDS_PER_TASK), MAX_RECORDS_PER_TASK)
    thin = [split for split in splits if split.offset_span * 2 <= records_per_task]
    # Each of the few gets a core at once; gathering them would only make one wait for the other.
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
    return min(len(thin), max(by_size, parallelism))


def _neighbours(splits: Sequence[KafkaPartitionSplit], groups: int) -> tuple[tuple[KafkaPartitionSplit, ...], ...]:
    """Groups of equal number, as `coalesce` makes them; which ones it puts together is Spark's affair."""
    return tuple(
        tuple(splits[len(splits) * group // groups : len(splits) * (group + 1) // groups]) for group in range(groups)
    )
