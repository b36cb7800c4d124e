"""Run as a process of its own: its JVM is killed, and it tells what its session is told as then."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from dagster import build_init_resource_context

from dagster_kafka_flip import SparkResource
from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime.session import build_session
from tests.processes import descendants, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def _tell(ask: Callable[[], SparkSession]) -> None:
    try:
        ask()
    except SparkSessionError as error:
        print(error)


if __name__ == "__main__":
    resource = SparkResource(master="local[1]", config={"spark.ui.enabled": "false"})
    resource.session()
    jvms = [each for each in descendants(os.getpid()) if "pyspark-shell" in each.command]
    for jvm in jvms:
        os.kill(jvm.pid, signal.SIGKILL)
    wait_until(lambda: not any(jvm.is_alive() for jvm in jvms), seconds=60)
    _tell(resource.session)
    _tell(SparkResource().session)
    _tell(build_session)
    # It has nothing to end, and hides no other error by one of its own.
    resource.teardown_after_execution(build_init_resource_context())
    print("ended")
