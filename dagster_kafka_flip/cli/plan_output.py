"""Output of `dagster-kafka-flip plan`, as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.cli.output import console, iso, print_fields, print_table, utc
from dagster_kafka_flip.settings.names import counted, first_few

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.cli.plan_request import PlanRequest
    from dagster_kafka_flip.cli.planned_run import PlannedRun
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition


def _totals(run: PlannedRun) -> dict[str, Any]:
    plan = run.plan
    return {
        "splits": len(run.splits),
        "records_at_most": run.offsets,
        "approximate_bytes": run.bytes,
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
        line: dict[str, Any] = {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": split.starting_offset,
            "stop": split.stopping_offset,
            "records_at_most": split.offset_span,
            "lag_after": run.lag_after[tp],
            "tasks": run.tasks[tp],
        }
        if run.samples is not None:
            sample = run.samples.get(tp)
            line |= {
                "approximate_bytes": run.bytes_of(split),
                "first_timestamp": iso(None if sample is None else sample.first_timestamp),
                "last_timestamp": iso(None if sample is None else sample.last_timestamp),
            }
        return line

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
        sampled = run.samples is not None
        largest = sorted(run.splits, key=lambda split: (-split.offset_span, split.topic_partition))
        rows: list[list[object]] = []
        for split in largest:
            tp = split.topic_partition
            row: list[object] = [
                tp,
                split.starting_offset,
                split.stopping_offset,
                split.offset_span,
                run.lag_after[tp],
                run.tasks[tp],
            ]
            sample = (run.samples or {}).get(tp)
            if sampled and sample is not None:
                row += [run.bytes_of(split), utc(sample.first_timestamp), utc(sample.last_timestamp)]
            rows.append(row)
        columns += ["bytes about", "first record", "last record"] if sampled else []
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
        **({} if run.bytes is None else {"bytes": f"about {run.bytes:,}, by a sample"}),
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
