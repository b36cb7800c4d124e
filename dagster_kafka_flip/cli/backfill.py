"""`dagster-kafka-flip backfill`: replaces a time range of a table with the topic's records, in Dagster runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import (
    asset_options,
    check_can_ask,
    json_option,
    limit_rows_option,
    required_asset,
    written,
)
from dagster_kafka_flip.source import next_step
from dagster_kafka_flip.source.instants import instant

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from dagster import DagsterInstance, ExecuteInProcessResult

    from dagster_kafka_flip.assets.partitions import AssetPartitions
    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.cli.backfill_output import Backfill, FinishedRun, RunRequest
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.window import Window, Windows
    from dagster_kafka_flip.source.window_plan import WindowPlan


# The end of the calendar, after any window.
_NEVER_MS = 253_402_300_799_000

_CUT_OFF = "the run limits the offsets to the stream's position; the stream itself writes later records"


@click.command("backfill")
@asset_options
@click.option(
    "--from",
    "start",
    metavar="TIME",
    required=True,
    help="Start of the range, in ISO 8601 with a UTC offset, such as 2026-01-31T00:00:00Z.",
)
@click.option(
    "--to", "stop", metavar="TIME", required=True, help="End of the range (exclusive), in ISO 8601 with a UTC offset."
)
@click.option("--time-column", metavar="NAME", help="For a stream: the table's column with the record's timestamp.")
@click.option("--dry-run", is_flag=True, help="Show the plan without running it.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@limit_rows_option
@json_option
@click.pass_context
def backfill(
    context: click.Context,
    *,
    asset: str | None,
    start: str,
    stop: str,
    module_name: str | None,
    python_file: Path | None,
    time_column: str | None,
    dry_run: bool,
    yes: bool,
    limit_rows: int,
    as_json: bool,
) -> None:
    """Replace a time range of a table with the topic's records.

    For an asset with partitions: the partitions that are completely in the range. For a stream: the records with
    timestamps in the range, up to the stream's position, which does not change. Shows the plan, asks for confirmation,
    and launches the runs in this process; the instance of DAGSTER_HOME records them. The command stops at the first
    failed run.
    """
    asset = required_asset(context, asset, "the asset to backfill")
    from dagster_kafka_flip.cli.asset import dagster_instance
    from dagster_kafka_flip.cli.backfill_output import failure_text, show_plan, show_run, to_json
    from dagster_kafka_flip.cli.definitions import find_asset
    from dagster_kafka_flip.cli.output import waiting

    # Before the terminal check, because an invalid range fails in any case.
    span = _span(start, stop)
    check_can_ask(yes=yes or dry_run, as_json=as_json)
    with contextlib.ExitStack() as stack:
        instance = None if dry_run else stack.enter_context(dagster_instance())
        found = find_asset(asset, module_name=module_name, python_file=python_file)
        if time_column is not None and found.ingestion.partitions is not None:
            msg = f"--time-column is for a stream, but {asset} has partitions; its Windows set the window column"
            raise click.UsageError(msg)
        with waiting("Asking Kafka ..."):
            plan = plan_backfill(found, span, time_column)
        for window in plan.left_out:
            click.echo(f"The range covers only part of the window {window}; skipping it.", err=True)
        if not as_json:
            show_plan(plan, limit_rows)
        if instance is None:
            click.echo(json.dumps(to_json(plan, None)) if as_json else "Nothing was run (--dry-run).")
            return
        if not yes:
            click.confirm("Run the backfill?", abort=True, err=True)
        done: list[FinishedRun] = []
        for finished in _launch(found, plan, instance):
            done.append(finished)
            if not as_json:
                show_run(finished)
    if as_json:
        click.echo(json.dumps(to_json(plan, done)))
    if done[-1].error is not None:
        raise click.ClickException(failure_text(plan, done))


def _span(start: str, stop: str) -> Window:
    from dagster_kafka_flip.source.offsets import epoch_milliseconds
    from dagster_kafka_flip.source.window import Window

    for option, time in (("--from", start), ("--to", stop)):
        with written(option):
            epoch_milliseconds(time)
    with written():
        return Window.between(start, stop)


def plan_backfill(found: LandingAsset, span: Window, time_column: str | None = None) -> Backfill:
    """Plans a backfill from Kafka's metadata only.

    Args:
        found: The asset.
        span: The time range.
        time_column: For a stream: the table's column with the record's timestamp, if not the default.

    Raises:
        ConfigurationError: The range contains no window.
        KafkaFlipError: The runs would fail with this error.
    """
    from dagster_kafka_flip.cli.backfill_output import Backfill, RunRequest
    from dagster_kafka_flip.source.window import Windows, contiguous_groups

    partitions = found.ingestion.partitions
    source = found.source.connected(found.connection())
    if partitions is None:
        rules = Windows(repair=True, time_column=time_column)
        plans = _plans(source, found, rules, [(None, (span,))])
        windows, left_out = (span,), ()
        runs = (RunRequest(config=_replace_config(span, time_column)),)
    else:
        rules = partitions.rules
        keys, left_out = _windows_within(partitions, span)
        groups = partitions.groups(keys)
        every = {window for group in groups for window in group.windows}
        windows = tuple(sorted(every, key=lambda window: (window.start_ms, window.stop_ms, window.key)))
        _check_no_overlap(found, windows)
        plans = _plans(
            source,
            found,
            rules,
            [(group.topics, each) for group in groups for each in contiguous_groups(group.windows)],
        )
        runs = tuple(RunRequest(each) for each in _per_run(keys, len(windows), found.partitions_per_run))
    irregular = partitions.irregularities(windows) if partitions is not None else []
    return Backfill(
        asset=found.key.to_user_string(),
        span=span,
        windows=windows,
        plans=plans,
        runs=runs,
        left_out=left_out,
        notes=(*irregular, *((_CUT_OFF,) if rules.repair else ())),
        source=str(source),
        bootstrap_servers=source.required_connection().bootstrap_servers,
        table=str(found.target),
    )


def _plans(
    source: KafkaSource,
    found: LandingAsset,
    rules: Windows,
    groups: Sequence[tuple[Sequence[str] | None, Sequence[Window]]],
) -> tuple[WindowPlan, ...]:
    from dagster_kafka_flip.source.api import SplitEnumeratorContext

    about = SplitEnumeratorContext(tolerated=found.ingestion.tolerated)
    plans: list[WindowPlan] = []
    for topics, windows in groups:
        wanted = source if topics is None else source.only(topics)
        with contextlib.closing(wanted.window_enumerator(rules, about)) as enumerator:
            plans.append(enumerator.plan(windows))
    return tuple(plans)


def _replace_config(span: Window, time_column: str | None) -> dict[str, Any]:
    from dagster_kafka_flip.source.offsets import timestamp_text

    return {
        "start": timestamp_text(span.start_ms),
        "stop": timestamp_text(span.stop_ms),
        "mode": "replace",
        **({} if time_column is None else {"time_column": time_column}),
    }


def _windows_within(partitions: AssetPartitions, span: Window) -> tuple[list[str], tuple[Window, ...]]:
    """Partition keys that are completely in a time range, and windows that are only partly in it."""
    from dagster_kafka_flip.errors import ConfigurationError

    def windows_of(keys: list[str]) -> list[Window]:
        found = {window for group in partitions.groups(keys) for window in group.windows}
        return sorted(found, key=lambda window: window.start_ms)

    keys = partitions.keys_between(span.start_ms, span.stop_ms)
    within = windows_of(keys)
    if within and (within[0].start_ms, within[-1].stop_ms) == (span.start_ms, span.stop_ms):
        return keys, ()
    every = windows_of(partitions.keys_between(0, _NEVER_MS))
    asked = f"the range from {span.start} to {span.stop}"
    if not every:
        msg = f"{asked} contains no window: the asset has no partition yet"
        raise ConfigurationError(msg)
    if not within:
        before = [window for window in every if window.start_ms <= span.start_ms][-1:]
        after = [window for window in every if window.stop_ms >= span.stop_ms][:1]
        nearest = " and ".join(dict.fromkeys(str(window) for window in [*before, *after]))
        msg = f"{asked} contains no complete window of the asset's partitions; nearest: {nearest}"
        raise ConfigurationError(msg)
    overlapping = [window for window in every if window.start_ms < span.stop_ms and span.start_ms < window.stop_ms]
    return keys, tuple(
        window for window in overlapping if window.start_ms < span.start_ms or span.stop_ms < window.stop_ms
    )


def _check_no_overlap(found: LandingAsset, windows: Sequence[Window]) -> None:
    """Rejects partitions that overlap by definition, for example on a day that a time zone skips."""
    from dagster_kafka_flip.errors import ConfigurationError

    for before, after in itertools.pairwise(windows):
        if after.start_ms < before.stop_ms:
            behind = instant(max(before.stop_ms, after.stop_ms))
            one = next_step.materialize(found.key.to_user_string(), after.key, found.defined_in)
            msg = (
                f"the partitions {before} and {after} overlap by the asset's definition: a record with a timestamp in "
                "both would be written twice. Nothing was read. Backfill the time before them with --to "
                f"{before.start}, and the time after them with --from {behind}. Materialize only one of the two, by "
                f"its key: {one}"
            )
            raise ConfigurationError(msg)


def _per_run(keys: Sequence[str], windows: int, most: int | None) -> Iterator[tuple[str, ...]]:
    """Distributes partition keys over runs, each with a contiguous range.

    Args:
        keys: All keys, by topic, each in time order.
        windows: Number of windows per topic.
        most: Maximum number of partitions per run; None for no limit.
    """
    if most is None:
        yield tuple(keys)
        return
    for first in range(0, len(keys), windows):
        of_topic = keys[first : first + windows]
        yield from (tuple(of_topic[at : at + most]) for at in range(0, windows, most))


def _launch(found: LandingAsset, plan: Backfill, instance: DagsterInstance) -> Iterator[FinishedRun]:
    """Launches the runs one after the other, until one fails."""
    for run in plan.runs:
        with _answers_alone():
            result = found.materialize(instance, run.partition_keys, run.config)
        finished = _finished(instance, result, run)
        yield finished
        if finished.error is not None:
            return


@contextlib.contextmanager
def _answers_alone() -> Generator[None, None, None]:
    """Redirects a run's standard output to standard error, to keep the command's output clean.

    Works on the file descriptor, because Spark runs in its own process.
    """
    sys.stdout.flush()
    standard_output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(standard_output, 1)
        os.close(standard_output)


def _finished(instance: DagsterInstance, result: ExecuteInProcessResult, run: RunRequest) -> FinishedRun:
    from dagster import DagsterEventType

    from dagster_kafka_flip.assets.window_metadata import of_run
    from dagster_kafka_flip.cli.backfill_output import FinishedRun

    # From the instance, not the result: it also has what a failed run wrote before.
    entries = instance.all_logs(result.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    made = [entry.asset_materialization for entry in entries if entry.asset_materialization is not None]
    landed = {each.partition for each in made}
    written = of_run(made[-1].metadata, "delta/rows_written") if made else None
    rows = None if written is None else written.value
    return FinishedRun(
        run_id=result.run_id,
        partition_keys=tuple(key for key in run.partition_keys if key in landed),
        rows=rows if isinstance(rows, int) else None,
        error=None if result.success else _error_of(result),
    )


def _error_of(result: ExecuteInProcessResult) -> tuple[str, str]:
    """Class and message of the error that ended a run."""
    steps = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    runs = [event.job_failure_data.error for event in result.all_events if event.is_job_failure]
    error = next((error for error in [*steps, *runs] if error is not None), None)
    if error is None:
        return "unknown error", "see Dagster's log of the run"
    # Dagster wraps errors of a run in its own.
    while error.cause is not None and (error.cls_name or "").startswith("Dagster"):
        error = error.cause
    kind, _, text = error.message.partition(": ")
    # Spark's errors go on with a plan and a stack trace, which Dagster's log has.
    is_own = kind.startswith("dagster_kafka_flip.")
    return error.cls_name or "unknown error", text.strip() if is_own else text.strip().partition("\n")[0]
