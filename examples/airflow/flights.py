"""Three DAGs: one lands a topic, one runs whenever the table has new rows, and one lands a table of days.

Airflow finds them if this file is in its folder of DAGs. They need a connection `kafka_default`, and the folder of the
tables in the environment variable LAKE:

    export AIRFLOW_CONN_KAFKA_DEFAULT='{"conn_type": "kafka", "extra": {"bootstrap.servers": "localhost:9092"}}'
    export LAKE=/data/lake
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from dagster_kafka_flip import JsonFormat, Windows
from dagster_kafka_flip.airflow import KafkaLagSensor, KafkaToDeltaOperator, SparkSettings, table_asset

LAKE = os.environ["LAKE"]
FLIGHTS = f"{LAKE}/flights"
SPARK = SparkSettings(config={"spark.driver.memory": "1g"})
FORMAT = JsonFormat("carrier STRING, flight INT, dep_delay INT")
RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=10)}

with DAG(
    "flights",
    schedule=timedelta(minutes=1),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
):
    wait = KafkaLagSensor(
        task_id="wait_for_records", source="flights", table=FLIGHTS, deferrable=True, poke_interval=5, timeout=3600
    )
    land = KafkaToDeltaOperator(task_id="land", source="flights", table=FLIGHTS, value_format=FORMAT, spark=SPARK)
    _ = wait >> land

with DAG("flights_seen", schedule=[table_asset(FLIGHTS)], start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)):

    @task
    def tell(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Returns what the events tell: rows, version, lag and position."""
        events = [event for events in triggering_asset_events.values() for event in events]
        for event in events:
            print(event.extra["delta/rows_written"], "rows in version", event.extra["delta/version"])
        return [event.extra for event in events]

    tell()

with DAG(
    "flights_by_day",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    end_date=datetime(2026, 1, 3, tzinfo=timezone.utc),
    catchup=True,
    max_active_runs=1,
    default_args=RETRIES,
):
    KafkaToDeltaOperator(
        task_id="land_day",
        source="flights",
        table=f"{LAKE}/flights_by_day",
        value_format=FORMAT,
        spark=SPARK,
        windows=Windows(max_lateness=None),
    )
