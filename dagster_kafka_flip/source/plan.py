"""ReadPlan: what one run, or one batch of it, is going to read."""

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
    """Splits with numeric offsets, and all that was seen of the cluster when they were fixed.

    Attributes:
        splits: The ranges to read, sorted, none of them empty.
        state: Where the stream stands after the splits.
        end_offsets: End offset of each under the source's isolation level.
        high_watermarks: High watermark of each; above the end offset while a transaction is open.
        starting_position: Where each topic partition stood before the splits.
        discovered: Topic partitions that the stream had not seen before, although it had a position.
        removed: Topic partitions of the position that no longer exist, or that the source no longer asks for.
        paused: Offsets of each topic partition that are left for a later run, because reading them now would take it
            further ahead of the slowest than the source's maximum drift.
        starting_watermark: The state's watermark before the splits.
        incidents: What would have ended the run here, and is tolerated.
        beginning_offsets: Log start offset of each topic partition that exists; those that the source does not tell
            are not in it.
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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.splits

    @property
    def offset_span(self) -> int:
        """Number of offsets in all splits, and so the largest number of records that can be read."""
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

    @property
    def held_back(self) -> dict[TopicPartition, int]:
        """Offsets between the end offset and the high watermark, where an open transaction holds any back."""
        return {
            tp: self.high_watermarks[tp] - end for tp, end in self.end_offsets.items() if self.high_watermarks[tp] > end
        }

    def take(self, max_offsets: int | None) -> tuple[ReadPlan, ReadPlan | None]:
        """Cuts off a first batch, spread over the topic partitions in proportion to what each has left.

        Args:
            max_offsets: Largest number of offsets in the batch, at least 1; None for no limit.

        Returns:
            The batch, and what is left of the plan after it (None if nothing is).
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
        """Cuts off a first batch at given offsets.

        Args:
            cuts: An offset within each split, both its ends included.

        Returns:
            The batch, and what is left of the plan after it (None if nothing is).
        """
        batch_splits = (replace(split, stopping_offset=cuts[split.topic_partition]) for split in self.splits)
        rest = self.continued_at(cuts)
        if rest is None:
            return self, None
        batch = replace(
            self,
            splits=tuple(split for split in batch_splits if not split.is_empty),
            # The watermark is reached when the whole plan is read, and not before.
            state=replace(self.state, position=rest.starting_position, watermark=self.starting_watermark),
        )
        return batch, rest

    def continued_at(self, position: Position) -> ReadPlan | None:
        """The same plan, to its same stops, with other offsets to go on from; None if nothing is left to read."""
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
    """Whole shares of `total` in proportion to `sizes`, each at most its size, by largest remainder."""
    whole = sum(sizes)
    shares = [size * total // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda index: -(sizes[index] * total % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares
