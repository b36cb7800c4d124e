"""Plans a run and its batches like a real run, without reading or writing."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.split import KafkaPartitionSplit

if TYPE_CHECKING:
    from dagster_kafka_flip.cli.plan_request import PlanRequest
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.plan import Limits
    from dagster_kafka_flip.source.split import TopicPartition

# Maximum number of batches to plan individually; only the number of further ones is estimated. A batch by time costs
# requests.
_MOST_BATCHES = 100


def planned_run(request: PlanRequest, parallelism: int) -> dict[str, Any]:
    """The plan of a run as a document; of the splits, the largest first."""
    about = SplitEnumeratorContext(parallelism, request.record_bytes, request.tolerated)
    with contextlib.closing(
        request.source.create_enumerator(about)
        if request.state is None
        else request.source.restore_enumerator(about, request.state)
    ) as enumerator:
        plan = enumerator.start()
        batches, tasks = ([], Counter()) if plan.is_empty else _batches(enumerator, request.limits)
        left = plan.offset_span - sum(batch["records_at_most"] for batch in batches)
        position, further = plan.state.position, 0
        if left and request.limits.max_batches is not None:
            reached = enumerator.snapshot_state()
            position = position if reached is None else reached.position
        elif left:
            further = -(-left // max(batch["records_at_most"] for batch in batches))
        splits = [
            KafkaPartitionSplit(split.topic_partition, split.starting_offset, position[split.topic_partition])
            for split in plan.splits
            if split.starting_offset < position[split.topic_partition]
        ]
    lag_after = {tp: max(0, end - position[tp]) for tp, end in plan.end_offsets.items()}
    largest = sorted(splits, key=lambda split: (-split.offset_span, split.topic_partition))
    return {
        "asset": request.asset,
        "source": str(request.source),
        "bootstrap_servers": request.source.required_connection().bootstrap_servers,
        "cluster_id": plan.state.cluster_id,
        "position": request.position,
        "dagster_record": request.record,
        "start_overridden": request.source.overrides_position,
        "formats": dict(request.formats),
        "reader_schemas": dict(request.reader_schemas),
        "parallelism": parallelism,
        "splits": [
            {
                "topic": (tp := split.topic_partition).topic,
                "partition": tp.partition,
                "start": split.starting_offset,
                "stop": split.stopping_offset,
                "records_at_most": split.offset_span,
                "lag_after": lag_after[tp],
                "tasks": tasks[tp],
            }
            for split in largest
        ],
        "totals": {
            "topic_partitions": len(plan.end_offsets),
            "splits": len(splits),
            "records_at_most": sum(split.offset_span for split in splits),
            "lag_before": sum(plan.lag_before.values()),
            "lag_after": sum(lag_after.values()),
            "tasks": sum(batch["tasks"] for batch in batches),
            "batches": len(batches) + further,
            "held_back": sum(plan.held_back.values()),
            "paused": sum(plan.paused.values()),
        },
        "batches": batches,
        "batches_not_listed": further or None,
        "held_back_by_transactions": {str(tp): count for tp, count in sorted(plan.held_back.items())},
        "paused_by_alignment": {str(tp): count for tp, count in sorted(plan.paused.items())},
        "new": [str(tp) for tp in plan.discovered],
        "removed": [str(tp) for tp in plan.removed],
        "incidents": [incident.to_json() for incident in plan.incidents],
    }


def _batches(enumerator: KafkaSourceEnumerator, limits: Limits) -> tuple[list[dict[str, int]], Counter[TopicPartition]]:
    """The run's (first) batches, and how many of their tasks read each topic partition."""
    batches: list[dict[str, int]] = []
    tasks: Counter[TopicPartition] = Counter()
    while len(batches) < (limits.max_batches or _MOST_BATCHES):
        assignment = enumerator.assign(limits)
        if assignment is None:
            break
        read, assigned = assignment.plan, assignment.task_plan.tasks
        batches.append({"splits": len(read.splits), "records_at_most": read.offset_span, "tasks": len(assigned)})
        tasks.update(part.topic_partition for task in assigned for part in task)
    return batches, tasks
