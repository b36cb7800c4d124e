"""ReadPlan: what a run or one of its batches reads, within limits, and the tasks that read them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import Field

from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.source.split import splits_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


# Kafka's default for the largest record batch of a topic (message.max.bytes).
LARGE_RECORD = 1024 * 1024


class Limits(Settings):
    """Limits of batches and runs; None is no limit.

    Attributes:
        max_records_per_batch: Maximum number of offsets in one commit.
        max_bytes_per_batch: Approximate maximum number of bytes of keys and values in one commit: by the average of the
            batch before, or else 1 MiB for each record.
        max_batches: Maximum number of commits in one run.
    """

    max_records_per_batch: int | None = Field(default=None, ge=1)
    max_bytes_per_batch: int | None = Field(default=None, ge=1)
    max_batches: int | None = Field(default=None, ge=1)

    def max_offsets(self, record_bytes: float | None) -> int | None:
        """Maximum number of offsets in a batch, at least 1 so that a run makes progress. None for no limit."""
        limits = [] if self.max_records_per_batch is None else [self.max_records_per_batch]
        if self.max_bytes_per_batch is not None:
            # Records without bytes, such as tombstones without keys, do not lift the limit: later ones may be larger.
            size = LARGE_RECORD if record_bytes is None else max(1.0, record_bytes)
            limits.append(max(1, int(self.max_bytes_per_batch / size)))
        return min(limits, default=None)


@dataclass(frozen=True)
class ReadPlan:
    """Where a read starts and stops, and the cluster metadata that this is based on.

    Attributes:
        state: The stream's state after the read.
        end_offsets: End offset of each topic partition for the source's isolation level.
        high_watermarks: High watermark of each topic partition; above the end offset while a transaction is open.
        discovered: New topic partitions of a stream that already has a position.
        removed: Topic partitions of the position that no longer exist or are no longer in the source.
        paused: Number of offsets of each topic partition that a later run reads, because they are ahead of the slowest
            by more than the source's maximum drift.
        beginning_offsets: Log start offset of each existing topic partition, if the source provides it.
        cut_off: Where logs were cut off before the furthest position; None if unknown.
    """

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

    @functools.cached_property
    def splits(self) -> tuple[KafkaPartitionSplit, ...]:
        """The ranges to read, sorted and non-empty."""
        return splits_between(self.starting_position, {tp: self.state.position[tp] for tp in self.end_offsets})

    @property
    def is_empty(self) -> bool:
        return not self.splits

    def changes_nothing(self, state: EnumeratorState) -> bool:
        """Whether there is nothing to read, and a stream's state stays as it is."""
        return self.is_empty and replace(self.state, watermark=state.watermark) == state

    @property
    def offset_span(self) -> int:
        """Number of offsets in all splits, and so the maximum number of records."""
        return sum(split.offset_span for split in self.splits)

    @property
    def lag_before(self) -> dict[TopicPartition, int]:
        """Offsets between the starting position and the end offset, by topic partition."""
        return {tp: max(0, end - self.starting_position[tp]) for tp, end in self.end_offsets.items()}

    @property
    def lag_after(self) -> dict[TopicPartition, int]:
        """Offsets between the position after the splits and the end offset, by topic partition."""
        return {tp: max(0, end - self.state.position[tp]) for tp, end in self.end_offsets.items()}

    def begun_without(self, known: Position) -> dict[TopicPartition, int]:
        """Where a run from the known position would begin; discovered topic partitions begin where their logs do."""
        discovered = {tp: self.beginning_offsets[tp] for tp in self.discovered if tp in self.beginning_offsets}
        return {**known, **discovered}

    @property
    def held_back(self) -> dict[TopicPartition, int]:
        """Offsets between the end offset and the high watermark that an open transaction holds back."""
        return {
            tp: self.high_watermarks[tp] - end for tp, end in self.end_offsets.items() if self.high_watermarks[tp] > end
        }

    @property
    def starting_state(self) -> EnumeratorState:
        return replace(self.state, position=self.starting_position, watermark=self.starting_watermark)

    def take(self, max_offsets: int | None) -> ReadPlan:
        """A first batch of at most so many offsets, distributed in proportion to the backlogs; None for no limit."""
        if max_offsets is None or self.offset_span <= max_offsets:
            return self
        shares = proportional_shares([split.offset_span for split in self.splits], max_offsets)
        taken = zip(self.splits, shares, strict=True)
        return self.cut_at({split.topic_partition: split.starting_offset + share for split, share in taken})

    def before(self, offsets: Position) -> ReadPlan:
        """The part of the plan before given offsets; the whole plan if there is nothing to read before them."""
        cuts = {split.topic_partition: split.within(offsets.get(split.topic_partition)) for split in self.splits}
        batch = self.cut_at(cuts)
        return self if batch.is_empty else batch

    def cut_at(self, cuts: Position) -> ReadPlan:
        """A first batch up to an offset within each split. What is left is `continued_at` the batch's position."""
        rest = self.continued_at(cuts)
        # The watermark is only reached once the whole plan is read.
        return self if rest is None else replace(self, state=rest.starting_state)

    def continued_at(self, position: Position) -> ReadPlan | None:
        """The plan with the same stops from another position on; None if nothing is left to read."""
        start = {**self.starting_position, **position}
        rest = replace(self, starting_position=start, discovered=(), incidents=())
        return None if rest.is_empty else rest


def proportional_shares(sizes: list[int], total: int) -> list[int]:
    """Distributes `total` in whole shares proportional to `sizes`, each at most its size, by largest remainder."""
    whole = sum(sizes)
    shares = [size * total // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda index: -(sizes[index] * total % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


# Several tasks read a large split, and one task reads many small ones, because a Spark job is as fast as its busiest
# core: with one task per topic partition, a single large one would leave the other cores idle, and thousands of small
# ones would spend more time on starting consumers than on reading.

# Below this, another task costs more (a consumer's start, another file) than it saves.
MIN_RECORDS_PER_TASK = 50_000
# Above this, a failed task repeats too much, and the last task delays the rest.
MAX_RECORDS_PER_TASK = 2_000_000
# Spark closes a task's consumers when the task ends, and each keeps the metadata of all partitions of its topic: of a
# thousand, 0.7 MB.
MAX_SPLITS_PER_TASK = 100


@dataclass(frozen=True)
class TaskPlan:
    """A batch's splits by tasks: several may read a divided one; one task reads each gathered group of small ones."""

    divided: tuple[KafkaPartitionSplit, ...]
    gathered: tuple[tuple[KafkaPartitionSplit, ...], ...]
    records_per_task: int

    @property
    def tasks(self) -> tuple[tuple[KafkaPartitionSplit, ...], ...]:
        parts = tuple(
            (part,) for split in self.divided for part in split.divide(-(-split.offset_span // self.records_per_task))
        )
        return parts + self.gathered


def plan_tasks(splits: Sequence[KafkaPartitionSplit], parallelism: int) -> TaskPlan:
    # Not more than one task a core: each prefetches records of the next task at the end of its range.
    even = -(-sum(split.offset_span for split in splits) // max(1, parallelism))
    size = min(max(even, MIN_RECORDS_PER_TASK), MAX_RECORDS_PER_TASK)
    # If every split gets a core at once, a group would only run its splits one after the other.
    is_thin = [len(splits) > parallelism and split.offset_span * 2 <= size for split in splits]
    thin = [split for split, thin in zip(splits, is_thin, strict=True) if thin]
    by_size = -(-sum(split.offset_span for split in thin) // size)
    groups = min(len(thin), max(by_size, -(-len(thin) // MAX_SPLITS_PER_TASK), parallelism))
    return TaskPlan(
        divided=tuple(split for split, thin in zip(splits, is_thin, strict=True) if not thin),
        # Of equal size, as `coalesce` creates them; Spark decides which splits form a group.
        gathered=tuple(
            tuple(thin[len(thin) * group // groups : len(thin) * (group + 1) // groups]) for group in range(groups)
        ),
        records_per_task=size,
    )
