"""RunSpec: one run, described once, and passed whole from whoever starts it to the commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_kafka_flip.reader.read import read
from dagster_kafka_flip.source.api import Source

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
    """What one run reads, where it lands that, and how.

    Attributes:
        source: What to read, connected.
        target: The table.
        spark: Gives a Spark session; called only if there is something to do.
        decoder: From bytes to columns.
        transform: From the batch's records to the rows to land; None for all as they are.
        dead_letters: Where records go that can't be decoded; None if they stop the run or are kept.
        limits: How much to do at once.
        tolerated: Errors that don't end the run.
        run_id: Kept in the commits.
        log: Where to report each step.
        read: How records are read; other than by itself where several runs share what is read.
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
    read: Callable[[Source, SparkSession, SplitAssignment], DataFrame] = read
