"""The source API: FLIP-27 in the shape that batch asks for.

A source is a set of logs whose records are numbered by offsets. It makes an enumerator; the enumerator fixes, for each
log, the range to read, and hands the ranges out in batches. Whoever runs the source (`ingest()`) reads and commits a
batch, keeps `snapshot_state()` with it, and the next run restores an enumerator from there. How a source's splits
become a DataFrame is registered with `reader.read`, because sources know no Spark.

The life of an enumerator in one run:

    enumerator = source.restore_enumerator(context, state)    # or create_enumerator, if there is no state
    enumerator.start()                                         # looks at the logs, fixes all ranges
    while (assignment := enumerator.assign(limits)) is not None:
        ...                                                    # read and commit, with enumerator.snapshot_state()
        enumerator.add_splits_back(assignment.plan.splits)     # only if that failed: as if never assigned
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.limits import Limits, Spread
from dagster_kafka_flip.source.serializer import SimpleVersionedSerializer
from dagster_kafka_flip.source.tasks import TaskPlan, plan_tasks
from dagster_kafka_flip.source.unreadable import within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.unreadable import UnreadableRecords

__all__ = [
    "Boundedness",
    "SimpleVersionedSerializer",
    "Source",
    "SplitAssignment",
    "SplitEnumerator",
    "SplitEnumeratorContext",
]


class Boundedness(enum.Enum):
    """Whether a source ends. Only bounded ones can be ingested in batches."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "continuous_unbounded"


@dataclass
class SplitEnumeratorContext:
    """What an enumerator is told about the run it works for.

    Attributes:
        current_parallelism: Number of tasks that can read at once.
        record_bytes: Average size of the stream's records so far, keys and values; None if nothing is known.
        tolerated: Errors that the enumerator does not raise: it goes on, and says so in the plan's incidents.
        aside: Ranges with records that Spark can't read, as far as the run has met any. The client reads them.
    """

    current_parallelism: int = 1
    record_bytes: float | None = None
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    aside: tuple[KafkaPartitionSplit, ...] = ()

    def assignment(self, plan: ReadPlan) -> SplitAssignment:
        """A batch, dealt out to tasks.

        Args:
            plan: The batch.
        """
        return SplitAssignment(plan, plan_tasks(plan.splits, self.current_parallelism), within(self.aside, plan.splits))


@dataclass(frozen=True)
class SplitAssignment:
    """A batch, ready to be read.

    Attributes:
        plan: What the batch reads, and where the stream stands after it.
        task_plan: Which task reads what.
        aside: Ranges within the splits that the client reads, because Spark can't; sorted, and apart from each other.
    """

    plan: ReadPlan
    task_plan: TaskPlan
    aside: tuple[KafkaPartitionSplit, ...] = ()


class SplitEnumerator(ABC):
    """Fixes what a run reads, and hands it out in batches. Subclasses say what there is; the life cycle is here.

    Args:
        context: What is known of the run.
        state: Where the stream stands; None if it never ran.
    """

    def __init__(self, context: SplitEnumeratorContext, state: EnumeratorState | None = None) -> None:
        self._context = context
        self._state = state
        self._planned: ReadPlan | None = None
        self._pending: ReadPlan | None = None

    @abstractmethod
    def discover(self) -> None:
        """Looks whether there is anything to read from, without fixing what; raises the same errors as `start`."""

    @abstractmethod
    def plan(self, state: EnumeratorState | None) -> ReadPlan:
        """Looks at the logs anew, and fixes the range of each from where a state stands. Changes nothing."""

    def start(self) -> ReadPlan:
        """Plans from where the stream stands now; once more after a failure, with what has arrived since."""
        self._planned = self._pending = self.plan(self._state)
        self._state = replace(
            self._planned.state,
            position=self._planned.starting_position,
            watermark=self._planned.starting_watermark,
        )
        return self._planned

    @property
    def has_pending(self) -> bool:
        """Whether something of what was planned is not assigned yet."""
        return self._pending is not None

    def assign(self, limits: Limits, until: Position | None = None) -> SplitAssignment | None:
        """Hands out the next batch; None if all that was planned is assigned.

        The first batch of a plan is handed out even if it has no splits: it fixes the position of a stream that begins
        at the end.

        Args:
            limits: How large it may be.
            until: Offsets that it does not pass, as long as something is to be read before them. Default: none.
        """
        pending = self._pending
        if pending is None:
            return None
        before = None if until is None else _before(pending, until)
        batch, self._pending = self._cut(before or pending, limits)
        if before is not None:
            self._pending = pending.continued_at(batch.state.position)
        self._state = batch.state
        return self._context.assignment(batch)

    def snapshot_state(self) -> EnumeratorState | None:
        """Where the stream stands once all that was assigned is committed; None before the first `start`."""
        return self._state

    def add_splits_back(self, splits: Iterable[KafkaPartitionSplit]) -> None:
        """Takes splits back whose batch was not committed; they are assigned again, with what comes after them.

        Args:
            splits: Of assignments since the last `start`; of each topic partition the last assigned.

        Raises:
            ConfigurationError: A split was never assigned, or one after it is not handed back.
        """
        if self._planned is None or self._state is None:
            msg = "splits can't be handed back to an enumerator that was never started"
            raise ConfigurationError(msg)
        position = dict(self._state.position)
        for split in sorted(splits, reverse=True):
            if position.get(split.topic_partition) != split.stopping_offset:
                msg = f"the split {split} can't be handed back: the last one assigned ends elsewhere"
                raise ConfigurationError(msg)
            position[split.topic_partition] = split.starting_offset
        self._state = replace(self._state, position=position, watermark=self._planned.starting_watermark)
        self._pending = self._planned.continued_at(position)

    def replay(self, splits: Iterable[KafkaPartitionSplit]) -> SplitAssignment:
        """Assigns splits exactly as they were planned before, whatever has arrived since.

        The enumerator's own state stays as it is: what is replayed was the stream's past, or is landed elsewhere.

        Raises:
            KafkaFlipError: The logs don't hold them any longer.
        """
        return self._context.assignment(self.plan_exactly(tuple(sorted(splits))))

    @abstractmethod
    def plan_exactly(self, splits: tuple[KafkaPartitionSplit, ...]) -> ReadPlan:
        """A plan of just these splits, after making sure that the logs still hold them."""

    def check_same_logs(self, batch: ReadPlan) -> None:  # noqa: B027 - most sources' logs can't become others
        """Makes sure, once a batch was read, that the logs are still those that it was planned for.

        Args:
            batch: What was read.

        Raises:
            TopicRecreatedError: A topic was deleted and made again since.
            ClusterChangedError: Another cluster answers.
        """

    def cut_by_time(self, plan: ReadPlan, max_offsets: int) -> tuple[ReadPlan, ReadPlan | None]:
        """Cuts off a batch whose records are as far in event time on each log.

        Raises:
            ConfigurationError: The source's records can't be found by time.
        """
        msg = f"{type(self).__name__} can't spread {plan.offset_span} offsets by time ({max_offsets} at once)"
        raise ConfigurationError(msg)

    def estimate_record_bytes(self, plan: ReadPlan) -> float | None:
        """Average size of the records of a plan, by a bounded sample; None where the source has no way to take one."""
        del plan

    def reached_brokers(self, partitions: Collection[TopicPartition]) -> tuple[str, ...]:
        """Where the brokers say that they are; none where the source knows of no such thing.

        Args:
            partitions: What is asked for, so that it is known that all who have it can be reached.

        Raises:
            ClusterUnreachableError: Somebody does not answer.
        """
        del partitions
        return ()

    def unreadable_records(self, splits: Iterable[KafkaPartitionSplit]) -> UnreadableRecords | None:
        """The records of splits that Spark can't read; None where the source knows of no such records."""
        del splits

    def notify_checkpoint_complete(self) -> None:  # noqa: B027 - most sources have nobody to tell
        """All that was assigned is committed: the outside may be told. What fails here is for the record only.

        Raises:
            KafkaFlipError: The outside could not be told.
        """

    def close(self) -> None:  # noqa: B027 - most sources have nothing to let go
        """Lets go of connections."""

    def _cut(self, plan: ReadPlan, limits: Limits) -> tuple[ReadPlan, ReadPlan | None]:
        if limits.max_bytes_per_batch is not None and self._context.record_bytes is None and not plan.is_empty:
            self._context.record_bytes = self.estimate_record_bytes(plan)
        max_offsets = limits.max_offsets(self._context.record_bytes)
        if max_offsets is None or plan.offset_span <= max_offsets or limits.spread is Spread.BACKLOG:
            return plan.take(max_offsets)
        return self.cut_by_time(plan, max_offsets)


def _before(plan: ReadPlan, offsets: Position) -> ReadPlan | None:
    """What a plan reads before given offsets; None if that is nothing."""
    cuts = {
        split.topic_partition: max(
            split.starting_offset,
            min(split.stopping_offset, offsets.get(split.topic_partition, split.stopping_offset)),
        )
        for split in plan.splits
    }
    batch, _ = plan.cut_at(cuts)
    return None if batch.is_empty else batch


class Source(Protocol):
    """A description of what to read. Its text says it in a few words."""

    @property
    def boundedness(self) -> Boundedness:
        """Whether it ends."""
        ...

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        """An enumerator for a stream that never ran."""
        ...

    def restore_enumerator(self, context: SplitEnumeratorContext, state: EnumeratorState) -> SplitEnumerator:
        """An enumerator for a stream that stands somewhere."""
        ...
