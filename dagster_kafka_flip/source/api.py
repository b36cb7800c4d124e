"""What goes into an enumerator and comes out of it: FLIP-27's names, adapted to batch.

FLIP-27's splits and states may have any type. Here records have offsets in logs, a state is a position and a split a
range, so document, fence, overlap check, lag and metadata are written once; sources without offsets don't fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.next_step import SERVERS
from dagster_kafka_flip.source.plan import ReadPlan, TaskPlan, plan_tasks

if TYPE_CHECKING:
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.telemetry.repeatedly import Log


@dataclass
class SplitEnumeratorContext:
    """Context of the run that an enumerator works for.

    `record_bytes` is the average size of the stream's records so far, key and value. Errors that are `tolerated` become
    incidents of the plan. `table`, `stream` and `servers` are for commands in errors.
    """

    current_parallelism: int = 1
    record_bytes: float | None = None
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    log: Log | None = None
    table: str = "<table>"
    stream: str = "<stream>"
    servers: str = SERVERS

    def assignment(self, plan: ReadPlan) -> SplitAssignment:
        return SplitAssignment(plan, plan_tasks(plan.splits, self.current_parallelism))


@dataclass(frozen=True)
class SplitAssignment:
    """A batch that is ready to be read."""

    plan: ReadPlan
    task_plan: TaskPlan
