"""What `test_cancel` runs in a process of its own: one materialization whose records take for ever to write."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dagster import DagsterInstance, materialize
from dagster._utils.interrupts import setup_interrupt_handlers

from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, kafka_delta_asset
from tests.faults.ingesting import SPARK_CONFIG


def main(bootstrap_servers: str, topic: str, table: str, mark: str) -> None:
    """Materializes the asset; leaves a mark once Spark has a record in hand."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BooleanType

    @f.udf(BooleanType(), useArrow=False)
    def slow(_: bytes) -> bool:
        Path(mark).touch()
        time.sleep(600)
        return True

    @kafka_delta_asset(source=KafkaSource(topics=(topic,)), table=table)
    def landed(records):
        return records.where(slow("kafka_value"))

    resources = {
        "kafka": KafkaResource(bootstrap_servers=bootstrap_servers),
        "spark": SparkResource(master="local[1]", config=SPARK_CONFIG),
    }
    with DagsterInstance.ephemeral() as instance:
        result = materialize([landed], instance=instance, resources=resources, raise_on_error=False)
        print("success" if result.success else "no success", flush=True)
        for event in result.all_events:
            if event.is_step_failure:
                error = event.step_failure_data.error
                print(error.cls_name if error else None, error.message if error else None, flush=True)


if __name__ == "__main__":
    # As Dagster's own run workers do: SIGTERM, by which a container is stopped, cancels a run like SIGINT.
    setup_interrupt_handlers()
    main(*sys.argv[1:])
