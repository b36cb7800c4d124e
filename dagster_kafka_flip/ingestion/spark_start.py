"""Starts Spark for a run, or uses an existing session, and logs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.ingestion.stopwatch import Clock
from dagster_kafka_flip.runtime.interrupts import keep_interrupts
from dagster_kafka_flip.runtime.session import parallelism
from dagster_kafka_flip.runtime.spark_status import ui_address
from dagster_kafka_flip.telemetry.facts import log_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext


class SparkStart(NamedTuple):
    """A session at the start of a run.

    Attributes:
        session: The Spark session.
        seconds: Seconds until it was available.
        ui: Address of its UI, if any.
    """

    session: SparkSession
    seconds: float
    ui: str | None


def start_spark(spec: RunSpec[Source], context: SplitEnumeratorContext) -> SparkStart:
    """Returns the session of a run.

    Args:
        spec: The run.
        context: Context of the run; receives the number of parallel tasks.
    """
    clock = Clock()
    keep_interrupts()
    spec.log.info("starting Spark")
    session = spec.spark()
    seconds = clock.lap()
    context.current_parallelism = parallelism(session)
    ui = ui_address(session)
    log_facts(spec.log, "Spark started", ui=ui, parallelism=context.current_parallelism, seconds=seconds)
    return SparkStart(session, seconds, ui)
