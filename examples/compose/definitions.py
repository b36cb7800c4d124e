"""A stream whose runs are processes of the container of its code location."""

from __future__ import annotations

import os

from dagster import Definitions, EnvVar, ScheduleDefinition, in_process_executor

from dagster_kafka_flip import (
    JsonFormat,
    KafkaResource,
    KafkaSource,
    SparkResource,
    build_kafka_delta_asset,
    kafka_topic_asset,
)

source = KafkaSource.builder().set_topics("flights").build()
flights = build_kafka_delta_asset(
    name="flights",
    source=source,
    value_format=JsonFormat("carrier STRING NOT NULL, flight INT"),
    table=f"{os.environ['LAKE']}/flights",
)

defs = Definitions(
    assets=[kafka_topic_asset(source), flights],
    schedules=[ScheduleDefinition(name="land_flights", target=[flights], cron_schedule="*/15 * * * *")],
    # One Spark for all assets of a run.
    executor=in_process_executor,
    resources={
        "kafka": KafkaResource(bootstrap_servers=EnvVar("KAFKA_BOOTSTRAP_SERVERS")),
        "spark": SparkResource(master="local[2]", config={"spark.driver.memory": "1g"}),
    },
)
