"""The DAGs that tests/airflow/standalone.py has besides the example's. Not a test; Airflow's processes read it."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, PartitionedAssetTimetable, StartOfMonthMapper

from dagster_kafka_flip import KafkaColumns, Limits, StringFormat, Windows
from dagster_kafka_flip.airflow import KafkaToDeltaOperator, table_asset

LAKE = Path(os.environ["LAKE"])
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def held(records: Any) -> Any:
    """Stops at a value for which there is a file in the folder `hold`, as long as it is there."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType

    lake = str(LAKE)

    def value(text: str) -> str:
        hold = Path(lake, "hold", text)
        if hold.exists():
            with Path(lake, "held", text).open("a") as reported:
                reported.write("x")
        while hold.exists():
            time.sleep(0.1)
        return text

    return records.withColumn("kafka_value", functions.udf(value, StringType())(functions.col("kafka_value")))


def texts(**options: Any) -> KafkaToDeltaOperator:
    """Lands texts with their place in the log, some at a time."""
    return KafkaToDeltaOperator(
        task_id="land",
        value_format=StringFormat(),
        columns=KafkaColumns(fields=("partition", "offset")),
        transform=held,
        **options,
    )


with DAG("slow", schedule=None, start_date=START):
    texts(source="slow", table=str(LAKE / "slow"), limits=Limits(max_records_per_batch=4))

# Its worker is killed.
with DAG("killed", schedule=None, start_date=START, default_args={"retries": 1, "retry_delay": timedelta(seconds=1)}):
    texts(source="killed", table=str(LAKE / "killed"), limits=Limits(max_records_per_batch=4))

with DAG(
    "by_key",
    schedule=CronPartitionTimetable("@daily", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    # The run of a day's end has the day's key.
    start_date=START + timedelta(days=1),
    end_date=START + timedelta(days=2),
    catchup=True,
    max_active_runs=1,
):
    texts(source="by_key", table=str(LAKE / "by_key"), windows=Windows(max_lateness=None))

with DAG(
    "by_month",
    schedule=PartitionedAssetTimetable(
        assets=table_asset(str(LAKE / "by_key")),
        default_partition_mapper=StartOfMonthMapper(input_format="%Y-%m-%d", output_format="%Y-%m"),
    ),
    start_date=START,
    max_active_runs=1,
):
    texts(
        source="by_key",
        table=str(LAKE / "by_month"),
        windows=Windows(max_lateness=None),
        partition_keys=CronPartitionTimetable("@monthly", timezone="UTC", key_format="%Y-%m"),
    )
