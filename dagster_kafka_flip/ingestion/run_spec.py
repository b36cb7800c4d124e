"""RunSpec: all settings of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_kafka_flip.errors import SchemaNotFoundError
from dagster_kafka_flip.reader.read import read
from dagster_kafka_flip.source.api import Source
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.telemetry.metrics import Metrics

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.limits import Limits
    from dagster_kafka_flip.table.target import DeltaTarget

Source_co = TypeVar("Source_co", bound=Source, covariant=True)


@dataclass(frozen=True)
class RunSpec(Generic[Source_co]):
    """Source, target and options of one run.

    Attributes:
        source: The source, with a connection.
        target: The table.
        spark: Returns a Spark session; only called if there is something to do.
        decoder: Decodes records.
        transform: Function from the batch's records to the rows to write; None for no transform.
        dead_letters: Table for records that can't be decoded; None if they fail the run or are kept.
        limits: Limits of batches and runs.
        tolerated: Errors that don't fail the run.
        run_id: Run id for the commits.
        tries: Ids of all runs that are this one, tried again. If one of them committed rows from an overridden start,
            this run continues from the position.
        log: Logger for each step.
        read: Reads records; replaced if several runs share a read.
    """

    source: Source_co
    target: DeltaTarget
    spark: Callable[[], SparkSession]
    decoder: Decoder
    limits: Limits
    log: logging.Logger | logging.LoggerAdapter[Any]
    transform: Callable[[DataFrame], DataFrame] | None = None
    dead_letters: DeadLetters | None = None
    tolerated: frozenset[type[KafkaFlipError]] = frozenset()
    run_id: str = ""
    tries: frozenset[str] = frozenset()
    read: Callable[[Source, SparkSession, SplitAssignment], DataFrame] = read

    @property
    def metrics(self) -> Metrics:
        """The metrics of this stream's runs."""
        return Metrics({"table": str(self.target), "stream": self.target.stream})

    def bound(self) -> RunSpec[Source_co]:
        """The spec with the reader schemas of this run, from the registries of its formats.

        Raises:
            ConfigurationError: A reader schema is unknown or unusable.
            SchemaRegistryError: A registry does not answer, or has no such subject.
        """
        if not self.decoder.registered:
            return self
        may_lack = SchemaNotFoundError in self.tolerated
        return replace(self, decoder=self.decoder.bound(topics_of(self.source), may_lack=may_lack))


def topics_of(source: Source) -> set[str] | None:
    """The topics of a source; None if only the brokers know them."""
    if not isinstance(source, KafkaSource) or source.topic_pattern is not None:
        return None
    return set(source.topics or ()) | {topic_partition.topic for topic_partition in source.partitions or ()}
