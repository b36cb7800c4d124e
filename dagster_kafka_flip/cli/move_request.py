"""Which stream `dagster-kafka-flip position set` moves: an asset's, or that of a table and an address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from dagster_kafka_flip.cli.options import written
from dagster_kafka_flip.cli.position_source import partitions_still_there
from dagster_kafka_flip.cli.spark_session import command_session
from dagster_kafka_flip.ingestion.result import KnownPosition
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
    """A stream whose position is to be moved.

    Attributes:
        target: The table and the stream.
        connection: Where Kafka is.
        found: The asset, if one was named.
        topics: What the stream reads, if that was said.
        group_id: The group whose offsets count, if one was named.
        master: Master URL, if one was named.
        remote: Spark Connect server, if one was named.
    """

    target: DeltaTarget
    connection: KafkaConnection
    found: LandingAsset | None
    topics: tuple[str, ...]
    group_id: str | None
    master: str | None
    remote: str | None

    def session(self) -> AbstractContextManager[SparkSession]:
        """A Spark session, ended afterwards if it was started for this."""
        if self.found is None:
            return command_session(self.master, self.remote)
        return self.found.session(self.master, self.remote)

    def source(self, spark: SparkSession) -> KafkaSource:
        """What the stream reads.

        Raises:
            click.UsageError: That can't be told.
        """
        if self.found is not None:
            source = self.found.source.connected(self.connection)
            return source if self.group_id is None else source.model_copy(update={"group_id": self.group_id})
        values: dict[str, Any] = {"connection": self.connection, "group_id": self.group_id}
        if self.topics:
            return KafkaSource(topics=self.topics, **values)
        table = DeltaTable(spark, self.target)
        state = table.last_state(table.history() or ())
        there = () if state is None else partitions_still_there(self.connection, state)
        if not there:
            msg = (
                f"the stream {self.target.stream!r} of {self.target} has read no topic that is on "
                f"{self.connection.bootstrap_servers}; say with --topic what it reads"
            )
            raise click.UsageError(msg)
        return KafkaSource(partitions=there, **values)

    def tell_dagster(self, version: int, reason: str, move: Move) -> str:
        """Makes Dagster's record of the position void, and says so; or says how that can be done."""
        if self.found is None:
            return (
                "Dagster does not know of it: until its record of the asset is older than verify_after (24 hours), a "
                "run that sees nothing new by that record ends at once. Run once with verify: true, or use --asset."
            )
        moved = KnownPosition(
            stream=self.target.stream,
            table=self.target.identity,
            state=move.after,
            verified_at=datetime.now(tz=timezone.utc),
            table_version=version,
            anchor_version=version,
            transaction_version=move.fence,
        )
        return self.found.void_record(version, reason, moved)


def request_of_asset(flags: Mapping[str, Any]) -> MoveRequest:
    """The stream of an asset.

    Raises:
        click.UsageError: A value can't be.
        ConfigurationError: There is no such asset, or it can't be loaded.
    """
    from dagster_kafka_flip.cli.asset import find_asset

    if flags["stream"]:
        with written("--stream"):
            DeltaTarget(table="a/b", stream=flags["stream"])
    found = find_asset(flags["asset"], module_name=flags["module_name"], python_file=flags["python_file"])
    return MoveRequest(
        target=found.target.model_copy(update={"stream": flags["stream"] or found.target.stream}),
        connection=found.connection(),
        found=found,
        topics=(),
        group_id=flags["group_id"],
        master=flags["spark_master"],
        remote=flags["spark_remote"],
    )


def request_of_table(flags: Mapping[str, Any]) -> MoveRequest:
    """A stream of a table.

    Raises:
        click.UsageError: There is no address, or a value can't be.
    """
    if flags["bootstrap_servers"] is None:
        msg = "say where Kafka is: --bootstrap-servers, or an asset with --asset"
        raise click.UsageError(msg)
    if flags["topics"]:
        # A name that can't be is not worth waiting for Spark.
        with written("--topic"):
            KafkaSource(topics=flags["topics"])
    with written():
        target = DeltaTarget(table=flags["table"], stream=flags["stream"] or "main")
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
