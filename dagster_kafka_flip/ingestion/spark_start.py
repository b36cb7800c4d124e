"""Starts Spark for a run, or uses an existing session, and logs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.ingestion.stopwatch import Clock
from dagster_kafka_flip.runtime.interrupts import keep_interrupts
from dagster_kafka_flip.runtime.session import check_alive, parallelism
from dagster_kafka_flip.runtime.spark_status import ui_address, watch_executors
from dagster_kafka_flip.telemetry.log_fields import log_with_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext


def start_spark(spec: RunSpec[Source], context: SplitEnumeratorContext) -> tuple[SparkSession, float, str | None]:
    """Returns the session of a run, the seconds until it was available, and the address of its UI, if any.

    Args:
        spec: The run.
        context: Context of the run; receives the number of parallel tasks.

    Raises:
        SparkSessionError: The session has ended.
    """
    clock = Clock()
    keep_interrupts()
    spec.log.info("starting Spark")
    session = spec.spark()
    # An earlier run in this process may have crashed its JVM, and anybody may have ended a Connect server.
    check_alive(session)
    seconds = clock.lap()
    context.current_parallelism = parallelism(session)
    ui = ui_address(session)
    log_with_fields(spec.log, "Spark started", ui=ui, parallelism=context.current_parallelism, seconds=seconds)
    watch_executors(session, spec.log)
    return session, seconds, ui
