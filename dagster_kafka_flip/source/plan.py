"""ReadPlan: the splits of a run or of one of its batches, within limits, and the tasks that read them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import Field

from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.source.split import KafkaPartitionSplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


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
        max_bytes_per_batch: Approximate maximum number of bytes of keys and values in one commit, by the average of
            earlier batches or of a sample; None for no limit.
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


@dataclass(frozen=True)
class ReadPlan:
    """Splits with fixed offsets, and the cluster metadata that they are based on.

    Attributes:
        splits: The ranges to read, sorted and non-empty.
        state: The stream's state after the splits.
        end_offsets: End offset of each topic partition for the source's isolation level.
        high_watermarks: High watermark of each topic partition; above the end offset while a transaction is open.
        starting_position: The position before the splits.
        discovered: New topic partitions of a stream that already has a position.
        removed: Topic partitions of the position that no longer exist or are no longer in the source.
        paused: Number of offsets of each topic partition that a later run reads, because they are ahead of the slowest
            by more than the source's maximum drift.
        starting_watermark: The watermark of the state before the splits.
        incidents: Tolerated errors.
        beginning_offsets: Log start offset of each existing topic partition, if the source provides it.
        cut_off: Where logs were cut off before the position; None if unknown.
    """

    splits: tuple[KafkaPartitionSplit, ...]
    state: EnumeratorState
    end_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    starting_position: Position
    discovered: tuple[TopicPartition, ...] = ()
    removed: tuple[TopicPartition, ...] = ()
    paused: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    starting_watermark: int | None = None
    incidents: tuple[Incident, ...] = ()
    beginning_offsets: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    cut_off: Mapping[TopicPartition, int | None] = field(default_factory=dict["TopicPartition", "int | None"])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.splits

    def changes_nothing(self, state: EnumeratorState) -> bool:
        """Whether there is nothing to read, and a stream's state stays as it is."""
        return (
            self.is_empty
            and dict(self.state.position) == dict(state.position)
            and self.state.cluster_id == state.cluster_id
            and dict(self.state.topic_ids) == dict(state.topic_ids)
        )

    @property
    def offset_span(self) -> int:
        """Number of offsets in all splits, and so the maximum number of records."""
        return sum(split.offset_span for split in self.splits)

    @property
    def lag_before(self) -> dict[TopicPartition, int]:
        """Offsets between the starting position and the end offset, by topic partition."""
        return self._lag(self.starting_position)

    @property
    def lag_after(self) -> dict[TopicPartition, int]:
        """Offsets between the position after the splits and the end offset, by topic partition."""
        return self._lag(self.state.position)

    def _lag(self, position: Position) -> dict[TopicPartition, int]:
        return {tp: max(0, end - position[tp]) for tp, end in self.end_offsets.items()}

    def begun_without(self, known: Position) -> dict[TopicPartition, int]:
        """Where a run would begin without another start; discovered topic partitions begin at their log's beginning.

        Args:
            known: The stream's position before the plan.
        """
        discovered = {tp: self.beginning_offsets[tp] for tp in self.discovered if tp in self.beginning_offsets}
        return {**known, **discovered}

    @property
    def held_back(self) -> dict[TopicPartition, int]:
        """Offsets between the end offset and the high watermark that an open transaction holds back."""
        return {
            tp: self.high_watermarks[tp] - end for tp, end in self.end_offsets.items() if self.high_watermarks[tp] > end
        }

    def take(self, max_offsets: int | None) -> tuple[ReadPlan, ReadPlan | None]:
        """Splits off a first batch, distributed over the topic partitions in proportion to their backlog.

        Args:
            max_offsets: Maximum number of offsets in the batch, at least 1; None for no limit.

        Returns:
            The batch, and the rest of the plan (None if empty).
        """
        if max_offsets is None or self.offset_span <= max_offsets:
            return self, None
        shares = proportional_shares([split.offset_span for split in self.splits], max_offsets)
        return self.cut_at(
            {
                split.topic_partition: split.starting_offset + share
                for split, share in zip(self.splits, shares, strict=True)
            }
        )

    def cut_at(self, cuts: Position) -> tuple[ReadPlan, ReadPlan | None]:
        """Splits off a first batch at given offsets.

        Args:
            cuts: An offset within each split, including both ends.

        Returns:
            The batch, and the rest of the plan (None if empty).
        """
        batch_splits = (replace(split, stopping_offset=cuts[split.topic_partition]) for split in self.splits)
        rest = self.continued_at(cuts)
        if rest is None:
            return self, None
        batch = replace(
            self,
            splits=tuple(split for split in batch_splits if not split.is_empty),
            # The watermark is only reached once the whole plan is read.
            state=replace(self.state, position=rest.starting_position, watermark=self.starting_watermark),
        )
        return batch, rest

    def continued_at(self, position: Position) -> ReadPlan | None:
        """Returns the plan with the same stops and another start position; None if nothing is left to read."""
        starting_position = {**self.starting_position, **position}
        splits = tuple(
            KafkaPartitionSplit(tp, starting_position[tp], stop)
            for tp in sorted(self.end_offsets)
            if starting_position[tp] < (stop := self.state.position[tp])
        )
        if not splits:
            return None
        return replace(self, splits=splits, starting_position=starting_position, discovered=(), incidents=())


def proportional_shares(sizes: list[int], total: int) -> list[int]:
    """Distributes `total` in whole shares proportional to `sizes`, each at most its size, by largest remainder."""
    whole = sum(sizes)
    shares = [size * total // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda index: -(sizes[index] * total % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


# Assigns splits to Spark tasks: several tasks read a large split, one task reads many small ones.
#
# A Spark job is as fast as its busiest core. With one task per topic partition, a single large topic partition would
# leave the other cores idle, and thousands of small ones would spend more time on starting consumers than on reading.


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
    """Assigns splits to tasks of about the same size."""
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
