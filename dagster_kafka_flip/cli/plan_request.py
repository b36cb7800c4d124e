"""What `dagster-kafka-flip plan` plans, from options or from an asset, and the plan: like a run's, without reading."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import written
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.run_spec import topics_of
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.table.creation import check_path_is_free, has_log, is_free, looking_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.anchor import Anchor

_SUBSCRIPTIONS = {"topics": "--topic", "topic_pattern": "--topic-pattern", "partitions": "--partition"}


@dataclass(frozen=True)
class PlanRequest:
    """Input of a plan: of a stream with a state, or None if it has none yet.

    `position` tells people where the state is from; formats and reader schemas are by `key` and `value`.
    """

    source: KafkaSource
    limits: Limits
    state: EnumeratorState | None
    position: str
    record_bytes: float | None = None
    asset: str | None = None
    record: Mapping[str, Any] | None = None
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    formats: Mapping[str, str] = field(default_factory=dict)
    reader_schemas: Mapping[str, str] = field(default_factory=dict)


def request_of_flags(flags: Mapping[str, Any]) -> PlanRequest:
    """Creates the plan of a new stream from options."""
    given = [option for name, option in _SUBSCRIPTIONS.items() if flags[name]]
    if len(given) != 1:
        raise click.UsageError(
            "select what to read: --topic, --topic-pattern or --partition, or an asset with --asset"
            + (f"; {' and '.join(given)} can't be combined" if given else "")
        )
    if flags["bootstrap_servers"] is None:
        raise click.UsageError("set --bootstrap-servers or KAFKA_BOOTSTRAP_SERVERS")
    start, stop = _ends(flags)
    for option, initializer in (("--start", start), ("--stop", stop)):
        if initializer is not None and initializer.needs_group and flags["group_id"] is None:
            raise click.UsageError(f"{option} {initializer} needs --group-id, the group with the committed offsets")

    with written("--bootstrap-servers"):
        connection = KafkaConnection(bootstrap_servers=flags["bootstrap_servers"])
    with written("--partition"):
        partitions = tuple(map(TopicPartition.parse, flags["partitions"]))
    values: dict[str, Any] = {
        "connection": connection,
        "partitions": partitions or None,
        "topics": flags["topics"] or None,
        "topic_pattern": flags["topic_pattern"] or None,
        "starting_offsets": start,
        "stopping_offsets": stop,
        "group_id": flags["group_id"],
        "isolation_level": flags["isolation_level"],
    }
    with written():
        source = KafkaSource(**{name: value for name, value in values.items() if value is not None})
    return PlanRequest(source, _limits(flags), None, f"none; a new stream, which starts at {source.starting_offsets}")


def request_of_asset(found: LandingAsset, flags: Mapping[str, Any], *, ask_table: bool = False) -> PlanRequest:
    """Creates the plan of an asset's next run, from the table (with Spark) or Dagster's record."""
    from dagster_kafka_flip.cli.asset import DagsterRecord

    start, stop = _ends(flags)
    name = found.key.to_user_string()
    if found.ingestion.partitions is not None:
        raise found.no_position()
    with written():
        source = found.source.with_overrides(start, stop)
    advice = "" if ask_table else ". To read the table's position: --ask-table"
    new_stream = f"a new stream, which starts at {found.source.starting_offsets}"
    if ask_table:
        anchor = _position_in_table(found)
        record = DagsterRecord(None, "" if anchor is None else f"the table's version {anchor.table_version}")
        state, position = None, f"none in the table; {new_stream}"
        if anchor is not None and anchor.state is not None:
            state, position = anchor.state, record.text
        elif anchor is not None and anchor.undone_start is not None:
            state = anchor.undone_start
            position = "none in the table; a RESTORE undid the stream's commits, so it begins again where it began"
    else:
        record = found.record()
        state = None if record.known is None else record.known.state
        position = record.text if record.run_id is None else f"{record.text}, by run {record.run_id}"
        path = found.target.local_path
        if state is None:
            with looking_at(found.target):
                is_there = path is not None and has_log(path)
            if not is_there:
                check_path_is_free(found.target)
        if state is None and start is None:
            if path is None or not is_free(path):
                raise ConfigurationError(
                    f"the position of {name} is not known without the table: {record.text}",
                    "Read the table with --ask-table, which starts Spark; or set --start",
                )
            position, advice = f"none; there is no table at {path} yet, so it is {new_stream}", ""
    if start is not None:
        position = f"{start}, by --start, instead of the position ({position})"
    known = record.known
    return PlanRequest(
        source=source.connected(found.connection()),
        limits=_limits(flags, found.ingestion.limits),
        state=state,
        position=position + advice,
        record_bytes=None if known is None else known.record_bytes,
        asset=name,
        record=None
        if known is None
        else {
            "run_id": record.run_id,
            "verified_at": known.verified_at.isoformat(),
            "table_version": known.table_version,
        },
        tolerated=found.ingestion.tolerated,
        formats={side: type(form).__name__ for side, form in found.ingestion.decoder.formats.items()},
        reader_schemas=_reader_schemas(found),
    )


def _reader_schemas(found: LandingAsset) -> dict[str, str]:
    """Asks the registries, as a run does, for what records would be read as."""
    decoder = found.ingestion.decoder
    if not decoder.registered:
        return {}
    with contextlib.closing(found.with_registries().decoder.bound(topics_of(found.source))) as bound:
        return bound.reader_schemas


def _position_in_table(found: LandingAsset) -> Anchor | None:
    """The stream's position in the table; None if there is no table."""
    from dagster_kafka_flip.cli.answer import waiting
    from dagster_kafka_flip.table.delta_table import DeltaTable

    with waiting("Starting Spark ...") as status, found.session() as spark:
        status.update("Reading the table's history ...")
        # Only reads, so single_writer does not matter.
        target = found.target.model_copy(update={"single_writer": True})
        return DeltaTable(spark, target, found.ingestion.tolerated).anchor()


def _ends(flags: Mapping[str, Any]) -> tuple[OffsetsInitializer | None, OffsetsInitializer | None]:
    with written("--start"):
        start = None if flags["start"] is None else OffsetsInitializer.parse(flags["start"])
    with written("--stop"):
        stop = None if flags["stop"] is None else OffsetsInitializer.parse(flags["stop"])
    return start, stop


def _limits(flags: Mapping[str, Any], of_asset: Limits | None = None) -> Limits:
    names = ("max_records_per_batch", "max_bytes_per_batch")
    overrides = {name: flags[name] for name in names if flags[name] is not None}
    return Limits(**{**({} if of_asset is None else of_asset.model_dump()), **overrides})


# Maximum number of batches to plan individually; only the number of further ones is estimated.
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
