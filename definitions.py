"""The example project, as `workspace.yaml` loads it."""

from dagster import AssetSelection, Definitions, EnvVar, ScheduleDefinition, define_asset_job, in_process_executor

from assets.flights import flights, flights_checks, flights_daily, flights_raw, flights_topic
from dagster_kafka_flip import KafkaResource, SparkResource

# Excludes the checks, some of which start Spark even without new records.
land_flights = define_asset_job(
    "land_flights",
    selection=AssetSelection.assets(flights_topic, flights_raw, flights) - AssetSelection.checks(*flights_checks),
)
check_flights = define_asset_job("check_flights", selection=AssetSelection.checks(*flights_checks))

defs = Definitions(
    assets=[flights_topic, flights_raw, flights, flights_daily],
    asset_checks=flights_checks,
    jobs=[land_flights, check_flights],
    schedules=[ScheduleDefinition(job=check_flights, cron_schedule="0 6 * * *")],
    # One process for the steps of a run, so that they share one Spark session.
    executor=in_process_executor,
    resources={"kafka": KafkaResource(bootstrap_servers=EnvVar("KAFKA_BOOTSTRAP_SERVERS")), "spark": SparkResource()},
)
