"""A stream's position and lag as a document; what `position set` moves, by asset or by table, and the move."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.answer import iso
from dagster_kafka_flip.cli.options import command_session, written
from dagster_kafka_flip.errors import KafkaFlipError, TopicNotFoundError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.state import position_to_json
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.cli.position_report import PositionReport
    from dagster_kafka_flip.ingestion.move_position import Move
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.anchor import Anchor


def partitions_still_there(connection: KafkaConnection, state: EnumeratorState) -> tuple[TopicPartition, ...]:
    """The topic partitions of a position that exist in a cluster."""
    names = sorted({tp.topic for tp in state.position})
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topics = cluster.describe_topics(names, skip_missing=True)
    return tuple(tp for topic in topics.values() for tp in topic.partitions if tp in state.position)


def lag_of(
    connection: KafkaConnection | None, source: KafkaSource | None, anchor: Anchor | None
) -> Mapping[TopicPartition, int] | KafkaFlipError | None:
    """The lag of a stream in offsets, the error if it is unknown, or None if nobody asks or there is no position."""
    state = None if anchor is None else anchor.state
    if connection is None or state is None:
        return None
    try:
        if source is None:
            there = partitions_still_there(connection, state)
            if not there:
                raise TopicNotFoundError(
                    f"none of the stream's topics is on {connection.bootstrap_servers}, or this client may not "
                    "describe them; check the address and the credentials"
                )
            source = KafkaSource(partitions=there)
        source = source.connected(connection)
        with contextlib.closing(source.restore_enumerator(SplitEnumeratorContext(), state)) as enumerator:
            return enumerator.plan(state).lag_before
    except KafkaFlipError as error:
        return error


def stream_to_json(report: PositionReport, lag: Mapping[TopicPartition, int] | KafkaFlipError | None) -> dict[str, Any]:
    """A stream's position and lag as a document."""
    state = None if report.anchor is None else report.anchor.state
    key = () if report.anchor is None or report.anchor.document is None else report.anchor.document.key
    anchor = None
    if report.anchor is not None and report.anchor_commit is not None:
        anchor = {
            "kind": report.anchor_kind,
            "version": report.anchor.version,
            "timestamp": iso(report.anchor_commit.timestamp_ms),
            "operation": report.anchor_commit.operation,
        }
    measured = None if lag is None or isinstance(lag, KafkaFlipError) else lag
    by_lag = sorted((measured or {}).items(), key=lambda item: (-item[1], item[0]))
    return {
        "stream": report.stream,
        "key": list(key),
        "position": None if state is None else position_to_json(state.position),
        "begins_at": "the source's starting_offsets" if state is None and report.error is None else None,
        "cluster_id": None if state is None else state.cluster_id,
        "topic_ids": None if state is None else dict(state.topic_ids),
        "low_watermark": None if state is None else iso(state.watermark),
        "anchor": anchor,
        "error": _error_to_json(report.error),
        "lag": None if measured is None else sum(measured.values()),
        "lag_by_partition": None if measured is None else {str(tp): count for tp, count in by_lag},
        "lag_error": _error_to_json(lag if isinstance(lag, KafkaFlipError) else None),
        "commits": [
            {
                "version": entry.commit.version,
                "timestamp": iso(entry.commit.timestamp_ms),
                "rows": entry.commit.rows_written,
                "records_at_most": sum(split.offset_span for split in entry.document.splits),
                "run_id": entry.document.run_id,
                "undone": entry.is_undone,
                "start_overridden": entry.document.overrides_start,
            }
            for entry in report.commits
        ],
    }


def _error_to_json(error: KafkaFlipError | None) -> dict[str, str] | None:
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def move_to_json(table: str, stream: str, move: Move) -> dict[str, Any]:
    """Returns the old and new position of each topic partition as a document, and the records in between."""
    before: Position = {} if move.before is None else move.before.position
    goes_on = "begin at starting_offsets" if move.before is None else "continue from the old position"
    offsets: list[dict[str, Any]] = [
        {
            "topic_partition": str(tp),
            "old": before.get(tp),
            "new": offset,
            "read_again": move.read_again.get(tp),
            "skipped": move.skipped.get(tp),
        }
        for tp, offset in sorted(move.after.position.items())
    ]
    offsets.sort(key=lambda row: -((row["read_again"] or 0) + (row["skipped"] or 0)))
    return {
        "table": table,
        "stream": stream,
        "without_the_move": f"runs {goes_on}" if move.problem is None else f"runs stop: {move.problem}",
        "read_again": _up_to(move, move.read_again),
        "skipped": _up_to(move, move.skipped),
        "given_up": [{"topic_partition": str(tp), "old": before.get(tp)} for tp in move.given_up],
        "note": "the next stream that reads what is given up must begin at the old offset, or records are duplicated"
        if move.given_up
        else None,
        "offsets": offsets,
    }


def _up_to(move: Move, records: Position) -> str:
    if move.unread is None:
        return "unknown, because the stream's position is"
    return f"up to {counted(sum(records.values()), 'record')}"


@dataclass(frozen=True)
class MoveRequest:
    """A stream whose position to move."""

    target: DeltaTarget
    connection: KafkaConnection
    found: LandingAsset | None
    flags: Mapping[str, Any]

    def session(self) -> AbstractContextManager[SparkSession]:
        """Context manager with a Spark session; stops the session if it started it."""
        open_session = command_session if self.found is None else self.found.session
        return open_session(self.flags["spark_master"], self.flags["spark_remote"])

    def source(self, spark: SparkSession) -> KafkaSource:
        """The stream's source."""
        group_id, topics = self.flags["group_id"], self.flags["topics"]
        if self.found is not None:
            source = self.found.source.connected(self.connection)
            return source if group_id is None else source.model_copy(update={"group_id": group_id})
        values: dict[str, Any] = {"connection": self.connection, "group_id": group_id}
        if topics:
            return KafkaSource(topics=topics, **values)
        table = DeltaTable(spark, self.target)
        last = table.last_document(table.history() or ())
        there = () if last is None else partitions_still_there(self.connection, last[1].state)
        if not there:
            raise click.UsageError(
                f"the stream {self.target.stream!r} of {self.target} has read no topic that exists on "
                f"{self.connection.bootstrap_servers}; set its topics with --topic"
            )
        return KafkaSource(partitions=there, **values)

    def update_dagster_record(self, version: int, reason: str, move: Move) -> str:
        """Invalidates Dagster's record of the position, or explains how to do it."""
        if self.found is None:
            return (
                "Dagster's record was not updated: until it is older than verify_after (24 hours), a run that finds "
                "nothing new by this record ends at once. Run once with verify: true, or use --asset."
            )
        return self.found.void_record(self.target.stream, version, reason, move.after)


def request_of_asset(flags: Mapping[str, Any]) -> MoveRequest:
    """Creates the request for an asset's stream."""
    from dagster_kafka_flip.cli.asset import find_asset

    if flags["stream"] is not None:
        with written("--stream"):
            DeltaTarget.of(DeltaTarget(table="a/b", stream=flags["stream"]))
    found = find_asset(flags["asset"], flags["python_file"])
    found.check_has_position()
    target = found.target.model_copy(update=_of_stream(flags, found.target.stream))
    return MoveRequest(target, found.connection(), found, flags)


def request_of_table(flags: Mapping[str, Any]) -> MoveRequest:
    """Creates the request for a table's stream."""
    if flags["bootstrap_servers"] is None:
        raise click.UsageError("set --bootstrap-servers, or select an asset with --asset")
    if flags["topics"]:
        # Validates the name before waiting for Spark.
        with written("--topic"):
            KafkaSource(topics=flags["topics"])
    with written():
        target = DeltaTarget.of(DeltaTarget(table=flags["table"], **_of_stream(flags, "main")))
        return MoveRequest(target, KafkaConnection(bootstrap_servers=flags["bootstrap_servers"]), None, flags)


def _of_stream(flags: Mapping[str, Any], stream: str) -> dict[str, Any]:
    # A command that does not write is no second writer.
    is_only_writer = bool(flags["runs_stopped"] or flags["dry_run"])
    return {"stream": stream if flags["stream"] is None else flags["stream"], "single_writer": is_only_writer}
