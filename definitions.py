"""The example project, as `workspace.yaml` loads it."""

from dagster import Definitions, EnvVar, ScheduleDefinition, define_asset_job, in_process_executor

from assets.flights import flights, flights_daily, flights_raw, flights_topic
from dagster_kafka_flip import KafkaResource, SparkResource

land_flights = define_asset_job("land_flights", selection=[flights_topic, flights_raw, flights])

defs = Definitions(
    assets=[flights_topic, flights_raw, flights, flights_daily],
    jobs=[land_flights],
    schedules=[ScheduleDefinition(job=land_flights, cron_schedule="*/15 * * * *")],
    # One process for the steps of a run, so that they share one Spark.
    executor=in_process_executor,
    resources={"kafka": KafkaResource(bootstrap_servers=EnvVar("KAFKA_BOOTSTRAP_SERVERS")), "spark": SparkResource()},
)
