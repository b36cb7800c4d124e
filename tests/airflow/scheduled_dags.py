"""The DAGs that tests/airflow/standalone.py has besides the example's. Not a test; Airflow's processes read it."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from dagster_kafka_flip import KafkaColumns, Limits, StringFormat
from dagster_kafka_flip.airflow import KafkaToDeltaOperator

LAKE = Path(os.environ["LAKE"])
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def slow_while_told(records: Any) -> Any:
    """Takes a minute for each record, while there is a file that says so."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType

    told = str(LAKE / "slow")

    def value(text: str) -> str:
        if Path(told).exists():
            Path(f"{told}-began").touch()
            time.sleep(60)
        return text

    return records.withColumn("kafka_value", functions.udf(value, StringType())(functions.col("kafka_value")))


with DAG("idle", schedule=timedelta(seconds=20), start_date=START, catchup=False, max_active_runs=1):
    KafkaToDeltaOperator(task_id="land", source="flights", table=str(LAKE / "idle"))

with DAG("slow", schedule=None, start_date=START):
    KafkaToDeltaOperator(
        task_id="land",
        source="slow",
        table=str(LAKE / "slow_table"),
        value_format=StringFormat(),
        columns=KafkaColumns(fields=("partition", "offset")),
        limits=Limits(max_records_per_batch=4),
        transform=slow_while_told,
    )
