"""The source API: FLIP-27, adapted to batch.

A source's enumerator fixes the range to read of each log and assigns the ranges in batches. `ingest()` reads and
commits each batch together with `snapshot_state()`; the next run restores an enumerator from this state.

The life of an enumerator in one run:

    enumerator = source.restore_enumerator(context, state)    # or create_enumerator, if there is no state
    enumerator.start()                                         # looks at the logs, fixes all ranges
    while (assignment := enumerator.assign(limits)) is not None:
        ...                                                    # read and commit, with enumerator.snapshot_state()
        enumerator.add_splits_back(assignment.plan.splits)     # only if that failed: as if never assigned
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.plan import Limits, Spread, TaskPlan, plan_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.telemetry.repeatedly import Log


@dataclass
class SplitEnumeratorContext:
    """Context of the run that an enumerator works for.

    Attributes:
        current_parallelism: Number of tasks that can read in parallel.
        record_bytes: Average size in bytes of the stream's records so far (key and value); None if unknown.
        tolerated: Errors that the enumerator does not raise: it continues and adds an incident to the plan.
        log: The run's log; None for the modules' own.
        table: The table, for commands in errors.
        stream: The stream, for the same.
    """

    current_parallelism: int = 1
    record_bytes: float | None = None
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    log: Log | None = None
    table: str = "<table>"
    stream: str = "<stream>"

    def assignment(self, plan: ReadPlan) -> SplitAssignment:
        """Assigns a batch to tasks."""
        return SplitAssignment(plan, plan_tasks(plan.splits, self.current_parallelism))


@dataclass(frozen=True)
class SplitAssignment:
    """A batch that is ready to be read."""

    plan: ReadPlan
    task_plan: TaskPlan


class SplitEnumerator(ABC):
    """Fixes the splits of a run and assigns them in batches. Subclasses plan; this class implements the life cycle."""

    def __init__(self, context: SplitEnumeratorContext, state: EnumeratorState | None = None) -> None:
        self._context = context
        self._state = state
        self._planned: ReadPlan | None = None
        self._pending: ReadPlan | None = None

    @abstractmethod
    def discover(self) -> None:
        """Checks that the source exists, without planning; raises the same errors as `start`."""

    @abstractmethod
    def plan(self, state: EnumeratorState | None) -> ReadPlan:
        """Plans all splits anew from a state, without side effects."""

    def start(self) -> ReadPlan:
        """Plans from the stream's current state. After a failure, plans again, including records that arrived since."""
        self._planned = self._pending = self.plan(self._state)
        self._state = replace(
            self._planned.state,
            position=self._planned.starting_position,
            watermark=self._planned.starting_watermark,
        )
        return self._planned

    @property
    def has_pending(self) -> bool:
        """Whether the plan has unassigned splits."""
        return self._pending is not None

    def assign(self, limits: Limits, until: Position | None = None) -> SplitAssignment | None:
        """Returns the next batch; None if the whole plan is assigned.

        The first batch of a plan is returned even if it has no splits: it stores the position of a stream that starts
        at the end.

        Args:
            limits: Limits of the batch.
            until: Offsets at which the batch stops if there is anything to read before them. Default: none.
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
        """State of the stream once all assigned splits are committed; None before the first `start`."""
        return self._state

    def add_splits_back(self, splits: Iterable[KafkaPartitionSplit]) -> None:
        """Returns splits of a batch that was not committed; they are assigned again together with later ones.

        Args:
            splits: Splits assigned since the last `start`; the last assigned ones of each topic partition.
        """
        if self._planned is None or self._state is None:
            raise ConfigurationError("splits can't be returned to an enumerator that was never started")
        position = dict(self._state.position)
        for split in sorted(splits, reverse=True):
            if position.get(split.topic_partition) != split.stopping_offset:
                msg = f"the split {split} can't be returned: the last assigned split ends at another offset"
                raise ConfigurationError(msg)
            position[split.topic_partition] = split.starting_offset
        self._state = replace(self._state, position=position, watermark=self._planned.starting_watermark)
        self._pending = self._planned.continued_at(position)

    def replay(self, splits: Iterable[KafkaPartitionSplit]) -> SplitAssignment:
        """Assigns given splits exactly as they were planned before.

        The enumerator's own state does not change: a replay covers the stream's past, or another table.
        """
        return self._context.assignment(self.plan_exactly(tuple(sorted(splits))))

    @abstractmethod
    def plan_exactly(self, splits: tuple[KafkaPartitionSplit, ...]) -> ReadPlan:
        """Returns a plan of exactly these splits, after checking that the logs still hold them."""

    @abstractmethod
    def cut_by_time(self, plan: ReadPlan, max_offsets: int) -> tuple[ReadPlan, ReadPlan | None]:
        """Splits off a batch in which every log advances to the same event time."""

    @abstractmethod
    def estimate_record_bytes(self, plan: ReadPlan) -> float | None:
        """Average record size of a plan in bytes, from a bounded sample; None if it has no records."""

    def _cut(self, plan: ReadPlan, limits: Limits) -> tuple[ReadPlan, ReadPlan | None]:
        if limits.max_bytes_per_batch is not None and self._context.record_bytes is None and not plan.is_empty:
            self._context.record_bytes = self.estimate_record_bytes(plan)
        max_offsets = limits.max_offsets(self._context.record_bytes)
        if max_offsets is None or plan.offset_span <= max_offsets or limits.spread is Spread.BACKLOG:
            return plan.take(max_offsets)
        return self.cut_by_time(plan, max_offsets)


def _before(plan: ReadPlan, offsets: Position) -> ReadPlan | None:
    """Returns the part of a plan before given offsets; None if it is empty."""
    cuts = {
        split.topic_partition: max(
            split.starting_offset,
            min(split.stopping_offset, offsets.get(split.topic_partition, split.stopping_offset)),
        )
        for split in plan.splits
    }
    batch, _ = plan.cut_at(cuts)
    return None if batch.is_empty else batch
