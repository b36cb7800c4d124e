"""The stream that `dagster-kafka-flip position set` moves: by asset, or by table and address."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import command_session, written
from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError, TopicNotFoundError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
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
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState


def partitions_still_there(connection: KafkaConnection, state: EnumeratorState) -> tuple[TopicPartition, ...]:
    """The topic partitions of a position that exist in a cluster."""
    names = sorted({tp.topic for tp in state.position})
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topics = cluster.describe_topics(names, skip_missing=True)
    return tuple(tp for topic in topics.values() for tp in topic.partitions if tp in state.position)


class LagMeter:
    """Measures the lag of streams in one cluster.

    Args:
        connection: The Kafka connection.
        sources: Known sources of streams. For others, the topic partitions of their position are used.
    """

    def __init__(self, connection: KafkaConnection, sources: Mapping[str, KafkaSource]) -> None:
        self._connection = connection
        self._sources = sources
        self._unreachable: ClusterUnreachableError | None = None

    def measure(self, stream: str, state: EnumeratorState) -> dict[TopicPartition, int]:
        """Lag in offsets, by topic partition.

        Raises:
            KafkaFlipError: The position does not match the log, or the cluster does not answer.
        """
        # Waits for an unreachable cluster only once.
        if self._unreachable is not None:
            raise self._unreachable
        try:
            source = self._sources.get(stream) or self._source_of(state)
            source = source.connected(self._connection)
            with contextlib.closing(source.restore_enumerator(SplitEnumeratorContext(), state)) as enumerator:
                return enumerator.plan(state).lag_before
        except ClusterUnreachableError as error:
            self._unreachable = error
            raise

    def _source_of(self, state: EnumeratorState) -> KafkaSource:
        there = partitions_still_there(self._connection, state)
        if not there:
            raise TopicNotFoundError(
                f"none of the stream's topics is on {self._connection.bootstrap_servers}, or this client may not "
                "describe them; check the address and the credentials"
            )
        return KafkaSource(partitions=there)


def lag_or_error(
    meter: LagMeter | None, stream: str, state: EnumeratorState | None
) -> dict[TopicPartition, int] | KafkaFlipError | None:
    """The lag of a stream, the error if unknown, or None if not requested or without a position."""
    if meter is None or state is None:
        return None
    try:
        return meter.measure(stream, state)
    except KafkaFlipError as error:
        return error


@dataclass(frozen=True)
class MoveRequest:
    """A stream whose position to move."""

    target: DeltaTarget
    connection: KafkaConnection
    found: LandingAsset | None
    topics: tuple[str, ...]
    group_id: str | None
    master: str | None
    remote: str | None

    def session(self) -> AbstractContextManager[SparkSession]:
        """Context manager with a Spark session; stops the session if it started it."""
        if self.found is None:
            return command_session(self.master, self.remote)
        return self.found.session(self.master, self.remote)

    def source(self, spark: SparkSession) -> KafkaSource:
        """The stream's source."""
        if self.found is not None:
            source = self.found.source.connected(self.connection)
            return source if self.group_id is None else source.model_copy(update={"group_id": self.group_id})
        values: dict[str, Any] = {"connection": self.connection, "group_id": self.group_id}
        if self.topics:
            return KafkaSource(topics=self.topics, **values)
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
        return self.found.void_record(self.target.stream, version, reason, move.after, move.fence)


def _is_only_writer(flags: Mapping[str, Any]) -> bool:
    """Whether the command is the table's only writer, or does not write."""
    return bool(flags["runs_stopped"] or flags["dry_run"])


def request_of_asset(flags: Mapping[str, Any]) -> MoveRequest:
    """Creates the request for an asset's stream.

    Raises:
        click.UsageError: A value is invalid.
        ConfigurationError: The asset does not exist, or can't be loaded.
    """
    from dagster_kafka_flip.cli.asset import find_asset

    stream = flags["stream"]
    if stream is not None:
        with written("--stream"):
            DeltaTarget.of(DeltaTarget(table="a/b", stream=stream))
    found = find_asset(flags["asset"], module_name=flags["module_name"], python_file=flags["python_file"])
    found.check_has_position()
    stream = found.target.stream if stream is None else stream
    return MoveRequest(
        target=found.target.model_copy(update={"stream": stream, "single_writer": _is_only_writer(flags)}),
        connection=found.connection(),
        found=found,
        topics=(),
        group_id=flags["group_id"],
        master=flags["spark_master"],
        remote=flags["spark_remote"],
    )


def request_of_table(flags: Mapping[str, Any]) -> MoveRequest:
    """Creates the request for a table's stream."""
    if flags["bootstrap_servers"] is None:
        raise click.UsageError("set --bootstrap-servers, or select an asset with --asset")
    if flags["topics"]:
        # Validates the name before waiting for Spark.
        with written("--topic"):
            KafkaSource(topics=flags["topics"])
    with written():
        stream = "main" if flags["stream"] is None else flags["stream"]
        single = _is_only_writer(flags)
        target = DeltaTarget.of(DeltaTarget(table=flags["table"], stream=stream, single_writer=single))
        connection = KafkaConnection(bootstrap_servers=flags["bootstrap_servers"])
    return MoveRequest(
        target=target,
        connection=connection,
        found=None,
        topics=flags["topics"],
        group_id=flags["group_id"],
        master=flags["spark_master"],
        remote=flags["spark_remote"],
    )
