"""The stream that `dagster-kafka-flip position set` moves: by asset, or by table and address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import command_session, written
from dagster_kafka_flip.cli.streams import partitions_still_there
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.cli.asset import LandingAsset
    from dagster_kafka_flip.ingestion.move_position import Move


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
        return self.found.void_record(self.target.stream, version, reason, move.after, move.document.anchor_version)


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
