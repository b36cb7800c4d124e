"""RunSpec: all settings of one run, what it reads of its source, and its start of Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SchemaNotFoundError
from dagster_kafka_flip.reader.kafka_reader import no_records, read
from dagster_kafka_flip.runtime.interrupts import keep_interrupts
from dagster_kafka_flip.runtime.session import check_alive, parallelism
from dagster_kafka_flip.runtime.session_settings import hide_from_logs
from dagster_kafka_flip.runtime.spark_status import ui_address, watch_executors
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.plan import Limits
    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.telemetry.repeatedly import Log


def nothing_written(commits: int, dead_letters: int | None = 0, before: int | None = 0) -> str:
    """The outcome of a run that fails after this number of commits, which `before` of the dead letters belong to."""
    has_letters = dead_letters is None or dead_letters != before
    nothing = "Nothing but dead letters was written" if has_letters else "Nothing was written"
    return f"{nothing} after {counted(commits, 'commit')} of this run" if commits else nothing


@dataclass(frozen=True)
class RunSpec:
    """Source (with a connection), target and options of one run; see `ingest`."""

    source: KafkaSource
    target: DeltaTarget
    # Only called if there is something to do.
    spark: Callable[[], SparkSession]
    decoder: Decoder
    limits: Limits
    log: Log
    transform: Callable[[DataFrame], DataFrame] | None = None
    dead_letters: DeadLetters | None = None
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    run_id: str = ""
    # Ids of all runs that are this one, tried again: if one has committed rows from an overridden start, this run
    # continues from the position.
    tries: frozenset[str] = frozenset()
    # Replaced if several runs share a read.
    read: Callable[[KafkaSource, SparkSession, SplitAssignment], DataFrame] = read

    @property
    def metrics(self) -> Metrics:
        return Metrics({"table": str(self.target), "stream": self.target.stream})

    def records(self, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
        return no_records(spark) if assignment.plan.is_empty else self.read(self.source, spark, assignment)

    def bound(self) -> RunSpec:
        if not self.decoder.registered:
            return self
        may_lack = SchemaNotFoundError in self.tolerated
        return replace(self, decoder=self.decoder.bound(topics_of(self.source), may_lack=may_lack))


def topics_of(source: KafkaSource) -> set[str] | None:
    """The topics of a source; None if only the brokers know them."""
    return None if source.topic_pattern is not None else set(source.subscription.named_topics)


@dataclass
class RunSource:
    """What a run reads: its source, and the same one with the start that the run's config sets, if any."""

    source: KafkaSource
    overriding: KafkaSource | None = None

    @property
    def first(self) -> KafkaSource:
        return self.overriding or self.source

    def stop_at(self, stop: Position) -> None:
        """Sets the stop offsets of later plans; topic partitions without one are not read."""
        # Not validated: the start that a user wrote may be after the end of a topic that was made again. Of the same
        # kind: the position may go back to a stop that nobody set.
        change = {"stopping_offsets": self.source.stopping_offsets.model_copy(update={"offsets": dict(stop)})}
        self.source = self.source.model_copy(update=change)
        if self.overriding is not None:
            self.overriding = self.overriding.model_copy(update=change)


def start_spark(spec: RunSpec, context: SplitEnumeratorContext) -> tuple[SparkSession, float, str | None]:
    """Returns the session of a run, the seconds until it was available, and the address of its UI, if any."""
    begun = time.monotonic()
    keep_interrupts()
    spec.log.info("starting Spark")
    hide_from_logs()
    session = spec.spark()
    # An earlier run in this process may have crashed its JVM, and anybody may have ended a Connect server.
    check_alive(session)
    seconds = time.monotonic() - begun
    context.current_parallelism = parallelism(session)
    ui = ui_address(session)
    log_with_fields(spec.log, "Spark started", ui=ui, parallelism=context.current_parallelism, seconds=seconds)
    watch_executors(session, spec.log)
    return session, seconds, ui
