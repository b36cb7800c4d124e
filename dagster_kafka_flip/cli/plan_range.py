"""`dagster-kafka-flip plan --from --to`: shows what runs of Dagster would read to land a range of time again."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import written
from dagster_kafka_flip.cli.output import console, print_fields, print_table, waiting
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source import next_step
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.offsets import epoch_milliseconds, timestamp_text
from dagster_kafka_flip.source.window import Window, Windows, contiguous_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster_kafka_flip.assets.partitions import AssetPartitions
    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.window import WindowPlan


# The end of the calendar, after any window.
_NEVER_MS = 253_402_300_799_000

_CUT_OFF = "the run limits the offsets to the stream's position; the stream itself writes later records"


@dataclass(frozen=True)
class RangePlan:
    """What lands a range of time again.

    Attributes:
        asset: The asset.
        source: The source, with its connection.
        span: The requested time range.
        windows: The windows in it, in time order; for a stream, the range itself.
        plans: The window plans.
        runs: The partition keys of each run, in order; for a stream one run without any.
        config: The run's config; None for an asset with partitions.
        left_out: Windows that are only partly in the range.
        notes: Notes for the user.
    """

    asset: LandingAsset
    source: KafkaSource
    span: Window
    windows: tuple[Window, ...]
    plans: tuple[WindowPlan, ...]
    runs: tuple[tuple[str, ...], ...]
    config: Mapping[str, Any] | None
    left_out: tuple[Window, ...]
    notes: tuple[str, ...]

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
    def bootstrap_servers(self) -> str:
        """The cluster's address."""
        return self.source.required_connection().bootstrap_servers

    @property
    def command(self) -> str | None:
        """Dagster's command that lands the range; None if only a backfill of Dagster's does, as with several runs."""
        asset = self.asset
        name = asset.key.to_user_string()
        if self.config is not None:
            config = {"ops": {asset.op_name: {"config": self.config}}}
            return next_step.materialize(name, asset.defined_in, config=config)
        partitions, keys = asset.ingestion.partitions, self.runs[0]
        has_topics = partitions is not None and partitions.has_topics
        if len(self.runs) > 1 or (has_topics and len(keys) > 1):
            return None
        return next_step.materialize(name, asset.defined_in, partitions=keys)


def span_of(start: str, stop: str) -> Window:
    """The range of time that `--from` and `--to` give, in ISO 8601.

    Raises:
        click.UsageError: A time is invalid, or the range ends before it begins.
    """
    for option, time in (("--from", start), ("--to", stop)):
        with written(option):
            epoch_milliseconds(time)
    with written():
        return Window.between(start, stop)


def plan_range(found: LandingAsset, span: Window, time_column: str | None, limit_rows: int, *, as_json: bool) -> None:
    """Shows what would land a range of time again.

    Args:
        found: The asset.
        span: The range.
        time_column: For a stream: the table's column with the record's timestamp, if not the default.
        limit_rows: Most topic partitions to show.
        as_json: Whether to print JSON.

    Raises:
        ConfigurationError: The range contains no window, or its partitions overlap.
        KafkaFlipError: The runs would fail with this error.
    """
    partitions = found.ingestion.partitions
    if time_column is not None and partitions is not None:
        name = found.key.to_user_string()
        msg = f"--time-column is for a stream, but {name} has partitions; its Windows set the window column"
        raise click.UsageError(msg)
    with waiting("Asking Kafka ..."):
        plan = _of_stream(found, span, time_column) if partitions is None else _of_windows(found, partitions, span)
    for window in plan.left_out:
        click.echo(f"The range covers only part of the window {window}; skipping it.", err=True)
    if as_json:
        click.echo(json.dumps(_to_json(plan)))
    else:
        _show(plan, limit_rows)


def _of_stream(found: LandingAsset, span: Window, time_column: str | None) -> RangePlan:
    source = found.source.connected(found.connection())
    rules = Windows(repair=True, time_column=time_column)
    config = {
        "start": timestamp_text(span.start_ms),
        "stop": timestamp_text(span.stop_ms),
        "mode": "replace",
        **({} if time_column is None else {"time_column": time_column}),
    }
    plans = _plans(source, found, rules, [(None, (span,))])
    return RangePlan(found, source, span, (span,), plans, ((),), config, (), (_CUT_OFF,))


def _of_windows(found: LandingAsset, partitions: AssetPartitions, span: Window) -> RangePlan:
    source = found.source.connected(found.connection())
    keys, left_out = _windows_within(partitions, span)
    groups = partitions.groups(keys)
    every = {window for group in groups for window in group.windows}
    windows = tuple(sorted(every, key=lambda window: (window.start_ms, window.stop_ms, window.key)))
    _check_no_overlap(found, windows)
    rules = partitions.rules
    ranges = [(group.topics, each) for group in groups for each in contiguous_groups(group.windows)]
    plans = _plans(source, found, rules, ranges)
    runs = tuple(_per_run(keys, len(windows), found.partitions_per_run))
    notes = (*partitions.irregularities(windows), *((_CUT_OFF,) if rules.repair else ()))
    return RangePlan(found, source, span, windows, plans, runs, None, left_out, notes)


def _plans(
    source: KafkaSource,
    found: LandingAsset,
    rules: Windows,
    groups: Sequence[tuple[Sequence[str] | None, Sequence[Window]]],
) -> tuple[WindowPlan, ...]:
    about = SplitEnumeratorContext(tolerated=found.ingestion.tolerated)
    plans: list[WindowPlan] = []
    for topics, windows in groups:
        wanted = source if topics is None else source.only(topics)
        with contextlib.closing(wanted.window_enumerator(rules, about)) as enumerator:
            plans.append(enumerator.plan(windows))
    return tuple(plans)


def _windows_within(partitions: AssetPartitions, span: Window) -> tuple[list[str], tuple[Window, ...]]:
    """Partition keys that are completely in a time range, and windows that are only partly in it."""

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
        raise ConfigurationError(f"{asked} contains no window: the asset has no partition yet")
    if not within:
        before = [window for window in every if window.start_ms <= span.start_ms][-1:]
        after = [window for window in every if window.stop_ms >= span.stop_ms][:1]
        nearest = " and ".join(dict.fromkeys(str(window) for window in [*before, *after]))
        raise ConfigurationError(f"{asked} contains no complete window of the asset's partitions; nearest: {nearest}")
    overlapping = [window for window in every if window.start_ms < span.stop_ms and span.start_ms < window.stop_ms]
    return keys, tuple(
        window for window in overlapping if window.start_ms < span.start_ms or span.stop_ms < window.stop_ms
    )


def _check_no_overlap(found: LandingAsset, windows: Sequence[Window]) -> None:
    """Rejects partitions that overlap by definition, for example on a day that a time zone skips."""
    for before, after in itertools.pairwise(windows):
        if after.start_ms < before.stop_ms:
            behind = instant(max(before.stop_ms, after.stop_ms))
            one = next_step.materialize(found.key.to_user_string(), found.defined_in, partitions=[after.key])
            raise ConfigurationError(
                f"the partitions {before} and {after} overlap by the asset's definition: a record with a timestamp in "
                "both would be written twice",
                f"Land the time before them with --to {before.start}, and the time after them with --from {behind}. "
                f"Materialize only one of the two, by its key: {one}",
            )


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


def _show(plan: RangePlan, limit_rows: int) -> None:
    """Prints the plan; of the topic partitions, those with the most offsets."""
    out = console()
    keys = [window.key for window in plan.windows]
    cluster = plan.plans[0].state.cluster_id or "without an id"
    print_fields(
        out,
        {
            "asset": plan.asset.key.to_user_string(),
            "source": plan.source,
            "kafka": f"{plan.bootstrap_servers}, cluster {cluster}",
            "table": plan.asset.target,
            "range": f"from {plan.span.start} to {plan.span.stop}",
            **({} if plan.config is not None else {"windows": f"{len(keys):,}: {_named(keys)}"}),
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
        "to land it": plan.command or "a backfill of these partitions in Dagster's UI",
    }
    if plan.incidents:
        shown["tolerated"] = "\n".join(incident.message for incident in plan.incidents)
    if plan.notes:
        shown["note"] = "\n".join(plan.notes)
    print_fields(out, shown)
    out.print()


def _to_json(plan: RangePlan) -> dict[str, Any]:
    def windows(each: Sequence[Window]) -> list[dict[str, str]]:
        return [{"key": window.key, "start": window.start, "stop": window.stop} for window in each]

    return {
        "asset": plan.asset.key.to_user_string(),
        "source": str(plan.source),
        "bootstrap_servers": plan.bootstrap_servers,
        "cluster_id": plan.plans[0].state.cluster_id,
        "table": str(plan.asset.target),
        "from": plan.span.start,
        "to": plan.span.stop,
        "windows": windows(plan.windows) if plan.config is None else [],
        "left_out": windows(plan.left_out),
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
        "runs": [{"partitions": list(keys), "config": plan.config} for keys in plan.runs],
        "command": plan.command,
        "incidents": [incident.to_json() for incident in plan.incidents],
        "notes": list(plan.notes),
    }


def _runs(runs: Sequence[Sequence[str]], most: int) -> list[str]:
    lines = [
        f"  {_named(keys)} ({counted(len(keys), 'partition')})"
        if keys
        else "  replaces the rows of the range (mode: replace)"
        for keys in runs[:most]
    ]
    return lines + ([f"  ... and {len(runs) - most:,} more"] if len(runs) > most else [])


def _named(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
