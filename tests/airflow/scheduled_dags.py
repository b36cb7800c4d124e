"""The DAGs that tests/airflow/standalone.py has besides the example's. Not a test; Airflow's processes read it."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import (
    DAG,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    StartOfMonthMapper,
    task,
)

from dagster_kafka_flip import (
    DeltaSource,
    DeltaTarget,
    JsonSerializer,
    KafkaColumns,
    KafkaSink,
    Limits,
    StringFormat,
    Windows,
)
from dagster_kafka_flip.airflow import DeltaToKafkaOperator, KafkaToDeltaOperator, table_asset, topic_asset
from dagster_kafka_flip.errors import RowTooLargeError

LAKE = Path(os.environ["LAKE"])
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
RETRY = {"retries": 1, "retry_delay": timedelta(seconds=1)}


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


def held_partition(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
    """The topic partition of a row; stops, as `held` does, in the middle of a transaction."""
    del topic, key
    row = json.loads(value or b"")
    hold = LAKE / "hold" / f"publishing-{row['kafka_value']}"
    if hold.exists():
        with (LAKE / "held" / hold.name).open("a") as reported:
            reported.write("x")
    while hold.exists():
        time.sleep(0.1)
    return row["kafka_partition"] % partitions


with DAG("idle", schedule=timedelta(seconds=20), start_date=START, catchup=False, max_active_runs=1):
    KafkaToDeltaOperator(task_id="land", source="flights", table=str(LAKE / "idle"))

with DAG("slow", schedule=None, start_date=START):
    texts(source="slow", table=str(LAKE / "slow"), limits=Limits(max_records_per_batch=4))

# Its worker is killed; its table goes back to Kafka.
with DAG("killed", schedule=None, start_date=START, default_args={"retries": 1, "retry_delay": timedelta(seconds=1)}):
    texts(
        source="killed",
        table=DeltaTarget(table=str(LAKE / "killed"), properties={"delta.enableChangeDataFeed": "true"}),
        tolerate=["RetentionOvertookPositionError"],
        limits=Limits(max_records_per_batch=4),
    )

with DAG("published", schedule=[table_asset(str(LAKE / "killed"))], start_date=START, max_active_runs=1):
    DeltaToKafkaOperator(
        task_id="publish",
        source=str(LAKE / "killed"),
        sink=KafkaSink(
            topic="published",
            transactional_id_prefix="published",
            key=JsonSerializer(columns=("kafka_partition", "kafka_offset")),
            tolerate=(RowTooLargeError,),
            dead_letter_topic="too_large",
        ),
    )

# The worker that publishes is killed. Each version of the table has one row of each key.
with DAG("sent", schedule=None, start_date=START, default_args=RETRY):
    _ = texts(
        source="sent",
        table=DeltaTarget(table=str(LAKE / "sent"), properties={"delta.enableChangeDataFeed": "true"}),
        limits=Limits(max_records_per_batch=2),
    ) >> DeltaToKafkaOperator(
        task_id="publish",
        source=DeltaSource(table=str(LAKE / "sent"), start=0, content="appended_rows"),
        sink=KafkaSink(
            topic="sent_on",
            transactional_id_prefix="sent-on",
            key=JsonSerializer(columns=("kafka_partition",)),
            partitioner=held_partition,
        ),
        limits=Limits(max_records_per_batch=4),
    )

with DAG("told", schedule=[topic_asset("published")], start_date=START, max_active_runs=1):

    @task
    def tell(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Returns what the events tell."""
        return [event.extra for events in triggering_asset_events.values() for event in events]

    tell()

# Days that may run at once, but each only after the one before.
with DAG(
    "in_order",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=START,
    end_date=START + timedelta(days=2),
    catchup=True,
    max_active_runs=3,
    default_args={"depends_on_past": True},
):
    texts(source="in_order", table=str(LAKE / "in_order"), windows=Windows(max_lateness=None))

# A task that is mapped starts two runs at once of one DAG; topic and table are only in their conf.
with DAG("starter", schedule=None, start_date=START):
    TriggerDagRunOperator.partial(task_id="start", trigger_dag_id="started").expand(
        conf=[{"topic": "at_once", "table": "at_once", "number": number} for number in range(2)]
    )

with DAG("started", schedule=None, start_date=START, max_active_runs=2, default_args=RETRY):
    texts(
        source="{{ dag_run.conf['topic'] }}",
        table=str(LAKE / "{{ dag_run.conf['table'] }}"),
        dead_letter=str(LAKE / "rejected"),
        limits=Limits(max_records_per_batch=4),
    )

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
