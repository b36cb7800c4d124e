"""What `test_start_interrupted` runs in a process of its own: a session whose start is interrupted."""

from __future__ import annotations

import sys

from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._utils.interrupts import raise_interrupts_as, setup_interrupt_handlers

from dagster_kafka_flip import SparkResource
from tests.faults.ingesting import SPARK_CONFIG


def main() -> None:
    """Starts a session as a run does; says how that ended, and goes on until standard input ends."""
    try:
        with raise_interrupts_as(DagsterExecutionInterruptedError):
            SparkResource(master="local[1]", config=SPARK_CONFIG).session()
        print("started", flush=True)
    except DagsterExecutionInterruptedError:
        print("interrupted", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    setup_interrupt_handlers()
    main()
