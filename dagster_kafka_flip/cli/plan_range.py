"""`dagster-kafka-flip plan --from --to`: shows what runs of Dagster would read to land a range of time again."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import click

from dagster_kafka_flip.cli.answer import answer, waiting
from dagster_kafka_flip.cli.options import written
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source import next_step
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.source.offsets import epoch_milliseconds, timestamp_text
from dagster_kafka_flip.source.window import Window, Windows, contiguous_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster_kafka_flip.assets.partitions import AssetPartitions
    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.window import WindowPlan


# The end of the calendar, after any window.
_NEVER_MS = 253_402_300_799_000

_CUT_OFF = "the run limits the offsets to the stream's position; the stream itself writes later records"


def span_of(start: str, stop: str) -> Window:
    """The range of time that `--from` and `--to` give, in ISO 8601."""
    for option, time in (("--from", start), ("--to", stop)):
        with written(option):
            epoch_milliseconds(time)
    with written():
        return Window.between(start, stop)


def plan_range(found: LandingAsset, span: Window, time_column: str | None, limit_rows: int, *, as_json: bool) -> None:
    """Shows what would land a range of time again."""
    partitions, name = found.ingestion.partitions, found.key.to_user_string()
    if time_column is not None and partitions is not None:
        msg = f"--time-column is for a stream, but {name} has partitions; its Windows set the window column"
        raise click.UsageError(msg)
    with waiting("Asking Kafka ..."):
        source = found.source.connected(found.connection())
        config, windows, left_out = None, (), ()
        if partitions is None:
            rules = Windows(repair=True, time_column=time_column)
            config = {"start": timestamp_text(span.start_ms), "stop": timestamp_text(span.stop_ms), "mode": "replace"}
            config |= {} if time_column is None else {"time_column": time_column}
            plans = _plans(source, found, rules, [(None, (span,))])
            runs, notes = [()], [_CUT_OFF]
            run_config = {"ops": {found.op_name: {"config": config}}}
            command = next_step.materialize(name, found.located, config=run_config)
        else:
            keys, left_out = _windows_within(partitions, span)
            groups, rules = partitions.groups(keys), partitions.rules
            every = {window for group in groups for window in group.windows}
            windows = tuple(sorted(every, key=lambda window: (window.start_ms, window.stop_ms, window.key)))
            _check_no_overlap(found, windows)
            ranges = [(group.topics, each) for group in groups for each in contiguous_groups(group.windows)]
            plans = _plans(source, found, rules, ranges)
            runs = list(_per_run(keys, len(windows), found.partitions_per_run))
            notes = [*partitions.irregularities(windows), *([_CUT_OFF] if rules.repair else [])]
            command = None
            if len(runs) > 1 or (partitions.has_topics and len(keys) > 1):
                notes.append("a backfill of these partitions in Dagster's UI lands them")
            else:
                command = next_step.materialize(name, found.located, partitions=runs[0])
    for window in left_out:
        click.echo(f"The range covers only part of the window {window}; skipping it.", err=True)
    splits = sorted(
        (split for plan in plans for split in plan.splits),
        key=lambda split: (-split.offset_span, split.topic_partition, split.starting_offset),
    )
    if not splits:
        notes.append("the topics have no records in the range; rows of the table in it are removed")
    incidents = {incident.message: incident.to_json() for plan in plans for incident in plan.incidents}
    document = {
        "asset": name,
        "source": str(source),
        "bootstrap_servers": source.required_connection().bootstrap_servers,
        "cluster_id": plans[0].state.cluster_id,
        "table": str(found.target),
        "from": span.start,
        "to": span.stop,
        "windows": [_window_to_json(window) for window in windows],
        "left_out": [_window_to_json(window) for window in left_out],
        "splits": [
            {
                "topic": split.topic_partition.topic,
                "partition": split.topic_partition.partition,
                "start": split.starting_offset,
                "stop": split.stopping_offset,
                "records_at_most": split.offset_span,
            }
            for split in splits
        ],
        "records_at_most": sum(split.offset_span for split in splits),
        "config": config,
        "runs": [{"partitions": list(keys)} for keys in runs],
        "command": command,
        "incidents": list(incidents.values()),
        "notes": notes,
    }
    answer(document, as_json=as_json, limit_rows=limit_rows)


def _window_to_json(window: Window) -> dict[str, str]:
    return {"key": window.key, "start": window.start, "stop": window.stop}


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
            one = next_step.materialize(found.key.to_user_string(), found.located, partitions=[after.key])
            raise ConfigurationError(
                f"the partitions {before} and {after} overlap by the asset's definition: a record with a timestamp in "
                "both would be written twice",
                f"Land the time before them with --to {before.start}, and the time after them with --from {behind}. "
                f"Materialize only one of the two, by its key: {one}",
            )


def _per_run(keys: Sequence[str], windows: int, most: int | None) -> Iterator[tuple[str, ...]]:
    """Distributes partition keys, by topic and in time order, over runs: each has a contiguous range."""
    if most is None:
        yield tuple(keys)
        return
    for first in range(0, len(keys), windows):
        of_topic = keys[first : first + windows]
        yield from (tuple(of_topic[at : at + most]) for at in range(0, windows, most))
