"""What `test_executors` runs: one topic landed in two tables, by a job for each executor.

Each row tells the process of its step and the Spark application that landed it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from dagster import (
    Definitions,
    EnvVar,
    define_asset_job,
    executor,
    multiple_process_executor_requirements,
    multiprocess_executor,
)
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)

from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, kafka_delta_asset
from tests.faults.ingesting import SPARK_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster import DagsterEvent


def _tell_origin(records):
    from pyspark.sql import functions as f

    application = records.sparkSession.conf.get("spark.app.id")
    return records.withColumns({"process": f.lit(os.getpid()), "application": f.lit(application)})


class FreshProcess(StepHandler):
    """Runs each step as a container would: in a process of its own, by Dagster's command line."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def name(self) -> str:
        return "FreshProcess"

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[DagsterEvent]:
        arguments = step_handler_context.execute_step_args
        (key,) = arguments.step_keys_to_execute or ("",)
        # Its first word is Dagster's command, which an environment that is not activated does not find.
        command = [sys.executable, "-m", "dagster", *arguments.get_command_args()[1:]]
        self._started[key] = subprocess.Popen(command)
        yield from ()

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        (key,) = step_handler_context.execute_step_args.step_keys_to_execute or ("",)
        code = self._started[key].poll()
        return CheckStepHealthResult.unhealthy(f"ended with {code}") if code else CheckStepHealthResult.healthy()

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[DagsterEvent]:
        (key,) = step_handler_context.execute_step_args.step_keys_to_execute or ("",)
        self._started[key].terminate()
        yield from ()


@executor(name="fresh_process", requirements=multiple_process_executor_requirements())
def fresh_process_executor(_: Any) -> StepDelegatingExecutor:
    """As k8s_job_executor, with a process in the place of a pod."""
    return StepDelegatingExecutor(
        FreshProcess(), retries=RetryMode.DISABLED, sleep_seconds=0.1, check_step_health_interval_seconds=1
    )


def _asset(name: str) -> Any:
    source = KafkaSource(topics=(os.environ["TEST_TOPIC"],))
    return kafka_delta_asset(name=name, source=source, table=f"{os.environ['TEST_FOLDER']}/{name}")(_tell_origin)


defs = Definitions(
    assets=[_asset("first"), _asset("second")],
    jobs=[
        define_asset_job("multiprocess", executor_def=multiprocess_executor),
        define_asset_job("fresh_process", executor_def=fresh_process_executor),
    ],
    resources={
        "kafka": KafkaResource(bootstrap_servers=EnvVar("KAFKA_BOOTSTRAP_SERVERS")),
        "spark": SparkResource(
            master="local[1]",
            config={**SPARK_CONFIG, "spark.ui.enabled": "true", "spark.ui.port": "0"},
            app_name=os.environ["TEST_APP_NAME"],
        ),
    },
)
