"""Plans a run and its batches like a real run, without reading or writing, and shows the plan, as text or JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.cli.output import console, print_fields, print_table
from dagster_kafka_flip.settings.names import counted, first_few
from dagster_kafka_flip.source.split import KafkaPartitionSplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.cli.plan_request import PlanRequest
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.plan import Limits, ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition

# Maximum number of batches to plan individually; only the number of further ones is estimated. A batch by time costs
# requests.
_MOST_BATCHES = 100


@dataclass(frozen=True)
class PlannedBatch:
    """One planned commit."""

    splits: int
    offsets: int
    tasks: int


@dataclass(frozen=True)
class PlannedRun:
    """A planned run.

    Attributes:
        plan: The plan of all unread records.
        splits: The splits of the run; fewer if the number of batches is limited.
        lag_after: Lag of each topic partition after the run.
        batches: The run's (first) batches.
        further_batches: Approximate number of further batches.
        tasks: Number of the batches' tasks that read each topic partition.
    """

    plan: ReadPlan
    splits: tuple[KafkaPartitionSplit, ...]
    lag_after: Mapping[TopicPartition, int]
    batches: tuple[PlannedBatch, ...]
    further_batches: int
    tasks: Mapping[TopicPartition, int]

    @property
    def offsets(self) -> int:
        """Number of offsets, and so the maximum number of records."""
        return sum(split.offset_span for split in self.splits)


def plan_run(enumerator: KafkaSourceEnumerator, limits: Limits) -> PlannedRun:
    """Plans a run and splits it into batches.

    Args:
        enumerator: An enumerator that was not started.
        limits: The limits.

    Raises:
        KafkaFlipError: A run would fail with this error.
    """
    plan = enumerator.start()
    batches: list[PlannedBatch] = []
    tasks: Counter[TopicPartition] = Counter()
    most = limits.max_batches or _MOST_BATCHES
    while not plan.is_empty and len(batches) < most:
        assignment = enumerator.assign(limits)
        if assignment is None:
            break
        read, assigned = assignment.plan, assignment.task_plan.tasks
        batches.append(PlannedBatch(len(read.splits), read.offset_span, len(assigned)))
        tasks.update(part.topic_partition for task in assigned for part in task)
    left = plan.offset_span - sum(batch.offsets for batch in batches)
    position = plan.state.position
    further = 0
    if left and limits.max_batches is not None:
        reached = enumerator.snapshot_state()
        position = position if reached is None else reached.position
    elif left:
        further = -(-left // max(batch.offsets for batch in batches))
    splits = tuple(
        KafkaPartitionSplit(split.topic_partition, split.starting_offset, position[split.topic_partition])
        for split in plan.splits
        if split.starting_offset < position[split.topic_partition]
    )
    return PlannedRun(
        plan=plan,
        splits=splits,
        lag_after={tp: max(0, end - position[tp]) for tp, end in plan.end_offsets.items()},
        batches=tuple(batches),
        further_batches=further,
        tasks=tasks,
    )


def _totals(run: PlannedRun) -> dict[str, Any]:
    plan = run.plan
    return {
        "splits": len(run.splits),
        "records_at_most": run.offsets,
        "lag_before": sum(plan.lag_before.values()),
        "lag_after": sum(run.lag_after.values()),
        "tasks": sum(batch.tasks for batch in run.batches),
        "batches": len(run.batches) + run.further_batches,
        "held_back": sum(plan.held_back.values()),
        "paused": sum(plan.paused.values()),
    }


def to_json(request: PlanRequest, run: PlannedRun, parallelism: int) -> dict[str, Any]:
    """Returns the plan as JSON."""

    def split_to_json(split: KafkaPartitionSplit) -> dict[str, Any]:
        tp = split.topic_partition
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": split.starting_offset,
            "stop": split.stopping_offset,
            "records_at_most": split.offset_span,
            "lag_after": run.lag_after[tp],
            "tasks": run.tasks[tp],
        }

    def by_name(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
        return {str(tp): count for tp, count in sorted(offsets.items())}

    plan = run.plan
    return {
        "asset": request.asset,
        "source": str(request.source),
        "bootstrap_servers": request.source.required_connection().bootstrap_servers,
        "cluster_id": plan.state.cluster_id,
        "position": {
            "text": request.position,
            "dagster_record": request.record,
            "start_overridden": request.source.overrides_position,
        },
        "formats": dict(request.formats),
        "reader_schemas": dict(request.reader_schemas),
        "parallelism": parallelism,
        "splits": [split_to_json(split) for split in run.splits],
        "totals": _totals(run),
        "batches": [
            {"splits": batch.splits, "records_at_most": batch.offsets, "tasks": batch.tasks} for batch in run.batches
        ],
        "batches_not_listed": run.further_batches,
        "held_back": by_name(plan.held_back),
        "paused": by_name(plan.paused),
        "new": [str(tp) for tp in plan.discovered],
        "removed": [str(tp) for tp in plan.removed],
        "incidents": [incident.to_json() for incident in plan.incidents],
    }


def show(request: PlanRequest, run: PlannedRun, limit_rows: int) -> None:
    """Prints the plan; of the splits, the largest."""
    out = console()
    plan = run.plan
    kafka = request.source.required_connection().bootstrap_servers
    print_fields(
        out,
        {
            **({} if request.asset is None else {"asset": request.asset}),
            "source": request.source,
            "kafka": f"{kafka}, cluster {plan.state.cluster_id or 'without an id'}",
            "position": request.position,
            **{f"{side} format": _format(request, side) for side in request.formats},
        },
    )
    out.print()
    if not run.splits:
        out.print(f"Nothing to read: {counted(len(plan.end_offsets), 'topic partition')} at the stop offset.")
    else:
        columns = ["topic partition", "start", "stop", "records at most", "lag after", "tasks"]
        largest = sorted(run.splits, key=lambda split: (-split.offset_span, split.topic_partition))
        rows: list[list[object]] = []
        for split in largest:
            tp = split.topic_partition
            rows.append(
                [
                    tp,
                    split.starting_offset,
                    split.stopping_offset,
                    split.offset_span,
                    run.lag_after[tp],
                    run.tasks[tp],
                ]
            )
        rest = sum(split.offset_span for split in largest[limit_rows:])
        print_table(out, columns, rows, most=limit_rows, rest=f", with {counted(rest, 'record')} at most")
    out.print()
    print_fields(out, _summary(run))


def _format(request: PlanRequest, side: str) -> str:
    schema = request.reader_schemas.get(side)
    return request.formats[side] + ("" if schema is None else f", read as {schema}")


def _summary(run: PlannedRun) -> dict[str, object]:
    totals = _totals(run)
    about = "about " if run.further_batches else ""
    shown: dict[str, object] = {
        "splits": f"{totals['splits']:,}",
        "records": f"{totals['records_at_most']:,} at most",
        "lag": f"{totals['lag_before']:,} before, {totals['lag_after']:,} after",
        "batches": f"{about}{totals['batches']:,}",
        "tasks": f"{totals['tasks']:,}" + (f" in the first {len(run.batches)} batches" if about else ""),
    }
    plan = run.plan
    if plan.held_back:
        shown["held back"] = (
            f"{totals['held_back']:,} offsets, by open transactions ({first_few(sorted(plan.held_back))})"
        )
    if plan.paused:
        shown["paused"] = f"{totals['paused']:,} offsets, ahead of the slowest by more than the maximum drift"
    if plan.discovered:
        shown["new"] = f"{len(plan.discovered):,}: {first_few(sorted(plan.discovered))}"
    if plan.removed:
        shown["removed"] = f"{len(plan.removed):,}: {first_few(sorted(plan.removed))}; their position is kept"
    if plan.incidents:
        shown["tolerated"] = "\n".join(incident.message for incident in plan.incidents)
    return shown
