"""ReadPlan: the splits of a run or of one of its batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.split import KafkaPartitionSplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


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
