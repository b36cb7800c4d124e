"""ReadPlan: what one run, or one batch of it, is going to read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


@dataclass(frozen=True)
class ReadPlan:
    """Splits with numeric offsets, and all that was seen of the cluster when they were fixed.

    Attributes:
        splits: The ranges to read, sorted, none of them empty.
        state: Where the stream stands after the splits.
        beginning_offsets: Log start offset of each topic partition that exists.
        end_offsets: End offset of each under the source's isolation level.
        high_watermarks: High watermark of each; above the end offset while a transaction is open.
        starting_position: Where each topic partition stood before the splits.
        discovered: Topic partitions that the stream had not seen before, although it had a position.
        removed: Topic partitions of the position that no longer exist, or that the source no longer asks for.
    """

    splits: tuple[KafkaPartitionSplit, ...]
    state: EnumeratorState
    beginning_offsets: Mapping[TopicPartition, int]
    end_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    starting_position: Position
    discovered: tuple[TopicPartition, ...] = ()
    removed: tuple[TopicPartition, ...] = ()

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

    def take(self, max_records: int | None) -> tuple[ReadPlan, ReadPlan | None]:
        """Cuts off a first batch, spread over the topic partitions in proportion to what each has left.

        Args:
            max_records: Largest number of offsets in the batch; None for no limit.

        Returns:
            The batch, and what is left of the plan after it (None if nothing is).

        Raises:
            ConfigurationError: The limit is below 1.
        """
        if max_records is None or self.offset_span <= max_records:
            return self, None
        if max_records < 1:
            msg = f"a batch of at most {max_records} records can't be: the limit is at least 1"
            raise ConfigurationError(msg)
        spans = [split.offset_span for split in self.splits]
        first: list[KafkaPartitionSplit] = []
        rest: list[KafkaPartitionSplit] = []
        for split, share in zip(self.splits, _proportional_shares(spans, max_records), strict=True):
            cut = split.starting_offset + share
            if share:
                first.append(replace(split, stopping_offset=cut))
            if share < split.offset_span:
                rest.append(replace(split, starting_offset=cut))
        position = {**self.state.position, **{split.topic_partition: split.starting_offset for split in rest}}
        state = replace(self.state, position=position)
        return (
            replace(self, splits=tuple(first), state=state),
            replace(self, splits=tuple(rest), starting_position=position, discovered=()),
        )


def _proportional_shares(sizes: list[int], total: int) -> list[int]:
    """Whole shares of `total` in proportion to `sizes`, each at most its size, by largest remainder."""
    whole = sum(sizes)
    shares = [size * total // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda index: -(sizes[index] * total % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares
