"""Plan and results of `dagster-kafka-flip backfill`, and its output, as text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.output import console, print_fields, print_table
from dagster_kafka_flip.settings.names import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.source.window_plan import WindowPlan


@dataclass(frozen=True)
class RunRequest:
    """One run to launch.

    Attributes:
        partition_keys: A contiguous range of partitions; empty for a stream.
        config: The run config.
    """

    partition_keys: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Backfill:
    """The plan of a backfill.

    Attributes:
        asset: The asset's key.
        span: The requested time range.
        windows: The windows in it, in time order; for a stream, the range itself.
        plans: The window plans.
        runs: The runs to launch, in order.
        left_out: Windows that are only partly in the range.
        notes: Notes for the user.
        source: The source, as text.
        bootstrap_servers: The bootstrap servers.
        table: The table.
    """

    asset: str
    span: Window
    windows: tuple[Window, ...]
    plans: tuple[WindowPlan, ...]
    runs: tuple[RunRequest, ...]
    left_out: tuple[Window, ...]
    notes: tuple[str, ...]
    source: str
    bootstrap_servers: str
    table: str

    @property
    def splits(self) -> list[KafkaPartitionSplit]:
        """The ranges to read of each topic partition."""
        return sorted(
            (split for plan in self.plans for split in plan.splits),
            key=lambda split: (split.topic_partition, split.starting_offset),
        )

    @property
    def incidents(self) -> list[Incident]:
        """Tolerated errors of all plans, without duplicates."""
        return list({incident.message: incident for plan in self.plans for incident in plan.incidents}.values())

    @property
    def partition_keys(self) -> list[str]:
        """All partitions, in run order."""
        return [key for run in self.runs for key in run.partition_keys]


@dataclass(frozen=True)
class FinishedRun:
    """Result of a run.

    Attributes:
        run_id: The run's id.
        partition_keys: The partitions that it wrote.
        rows: Number of rows that it wrote; None if unknown.
        error: Class and message of its error; None if it succeeded.
    """

    run_id: str
    partition_keys: tuple[str, ...]
    rows: int | None
    error: tuple[str, str] | None


def show_plan(plan: Backfill, limit_rows: int) -> None:
    """Prints the plan; of the topic partitions, those with the most offsets."""
    out = console()
    cluster = plan.plans[0].state.cluster_id or "without an id"
    print_fields(
        out,
        {
            "asset": plan.asset,
            "source": plan.source,
            "kafka": f"{plan.bootstrap_servers}, cluster {cluster}",
            "table": plan.table,
            "range": f"from {plan.span.start} to {plan.span.stop}",
            **({"windows": _windows(plan.windows)} if plan.partition_keys else {}),
        },
    )
    out.print()
    splits = sorted(plan.splits, key=lambda split: (-split.offset_span, split.topic_partition))
    if splits:
        columns = ["topic partition", "start", "stop", "offsets"]
        print_table(
            out,
            columns,
            [
                (split.topic_partition, split.starting_offset, split.stopping_offset, split.offset_span)
                for split in splits
            ],
            most=limit_rows,
            rest=f", with {sum(split.offset_span for split in splits[limit_rows:]):,} offsets",
        )
    else:
        out.print("The topics have no records in the range; any rows of the table in it will be removed.")
    out.print()
    shown: dict[str, object] = {
        "records": f"{sum(split.offset_span for split in splits):,} at most",
        "runs": "\n".join([f"{len(plan.runs):,}", *_runs(plan.runs, limit_rows)]),
    }
    if plan.incidents:
        shown["tolerated"] = "\n".join(incident.message for incident in plan.incidents)
    if plan.notes:
        shown["note"] = "\n".join(plan.notes)
    print_fields(out, shown)
    out.print()


def show_run(run: FinishedRun) -> None:
    """Prints one line about a run."""
    landed = [
        *([] if run.rows is None else [counted(run.rows, "row")]),
        *(
            [f"{counted(len(run.partition_keys), 'partition')}: {_named(run.partition_keys)}"]
            if run.partition_keys
            else []
        ),
    ]
    became = "failed" if run.error is not None else "succeeded"
    click.echo(f"The run {run.run_id} {became}; wrote {' in '.join(landed) or 'nothing that it reported'}.")


def failure_text(plan: Backfill, done: Sequence[FinishedRun]) -> str:
    """The error of the failed run, and the progress so far."""
    failed = done[-1]
    name, message = failed.error or ("", "")
    text = f"the run {failed.run_id} failed: {name}" + (f": {message}" if message else "")
    if not plan.partition_keys:
        return text
    keys, missing = _done_and_not(plan, done)
    return f"{text}\nDone: {_listed(plan, keys) or 'none'}.\nNot done: {_listed(plan, missing) or 'none'}."


def to_json(plan: Backfill, done: Sequence[FinishedRun] | None) -> dict[str, Any]:
    """Returns plan and results as JSON.

    Args:
        plan: The plan.
        done: Results of the runs; None if none was launched.
    """
    document: dict[str, Any] = {
        "asset": plan.asset,
        "source": plan.source,
        "bootstrap_servers": plan.bootstrap_servers,
        "cluster_id": plan.plans[0].state.cluster_id,
        "table": plan.table,
        "from": plan.span.start,
        "to": plan.span.stop,
        "windows": [_window_to_json(window) for window in plan.windows] if plan.partition_keys else [],
        "left_out": [_window_to_json(window) for window in plan.left_out],
        "splits": [
            {
                "topic": split.topic_partition.topic,
                "partition": split.topic_partition.partition,
                "start": split.starting_offset,
                "stop": split.stopping_offset,
                "records_at_most": split.offset_span,
            }
            for split in plan.splits
        ],
        "records_at_most": sum(split.offset_span for split in plan.splits),
        "runs": [{"partitions": list(run.partition_keys), "config": run.config} for run in plan.runs],
        "incidents": [incident.to_json() for incident in plan.incidents],
        "notes": list(plan.notes),
        "results": None,
    }
    if done is not None:
        keys, missing = _done_and_not(plan, done)
        document |= {
            "results": [
                {
                    "run_id": run.run_id,
                    "success": run.error is None,
                    "partitions": list(run.partition_keys),
                    "rows_written": run.rows,
                    "error": None if run.error is None else {"error": run.error[0], "message": run.error[1]},
                }
                for run in done
            ],
            "partitions_done": keys,
            "partitions_not_done": missing,
        }
    return document


def _done_and_not(plan: Backfill, done: Sequence[FinishedRun]) -> tuple[list[str], list[str]]:
    landed = {key for run in done for key in run.partition_keys}
    keys = plan.partition_keys
    return [key for key in keys if key in landed], [key for key in keys if key not in landed]


def _window_to_json(window: Window) -> dict[str, str]:
    return {"key": window.key, "start": window.start, "stop": window.stop}


def _windows(windows: Sequence[Window]) -> str:
    return f"{len(windows):,}: {_named([window.key for window in windows])}"


def _runs(runs: Sequence[RunRequest], most: int) -> list[str]:
    lines = [
        f"  {_named(run.partition_keys)} ({counted(len(run.partition_keys), 'partition')})"
        if run.partition_keys
        else "  replaces the rows of the range (mode: replace)"
        for run in runs[:most]
    ]
    return lines + ([f"  ... and {len(runs) - most:,} more"] if len(runs) > most else [])


def _named(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"


def _listed(plan: Backfill, keys: Sequence[str]) -> str:
    """Formats contiguous keys as a range, others one by one."""
    if len(keys) < 3:  # noqa: PLR2004
        return ", ".join(keys)
    at = plan.partition_keys.index(keys[0])
    is_gapless = plan.partition_keys[at : at + len(keys)] == list(keys)
    return f"{_named(keys)} ({counted(len(keys), 'partition')})" if is_gapless else ", ".join(keys)
