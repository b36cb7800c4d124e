"""Starts Spark for a run, or joins a session that is there, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.ingestion.stopwatch import Clock
from dagster_kafka_flip.runtime.interrupts import keep_interrupts
from dagster_kafka_flip.runtime.session import parallelism
from dagster_kafka_flip.runtime.spark_status import ui_address
from dagster_kafka_flip.source.log_line import facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext


class SparkStart(NamedTuple):
    """A session, as a run began to use it.

    Attributes:
        session: To read and write with.
        seconds: How long it took until it was there.
        ui: Address of its UI, if it has one.
    """

    session: SparkSession
    seconds: float
    ui: str | None


def start_spark(spec: RunSpec[Source], context: SplitEnumeratorContext) -> SparkStart:
    """The session of a run.

    Args:
        spec: The run.
        context: Is told how many tasks can run at once.
    """
    clock = Clock()
    keep_interrupts()
    spec.log.info("starting Spark")
    session = spec.spark()
    seconds = clock.lap()
    context.current_parallelism = parallelism(session)
    ui = ui_address(session)
    spec.log.info("Spark started: %s", facts(ui=ui, parallelism=context.current_parallelism, seconds=seconds))
    return SparkStart(session, seconds, ui)
