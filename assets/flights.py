from datetime import timedelta

from dagster import AutomationCondition, DailyPartitionsDefinition, FreshnessPolicy

from dagster_kafka_flip import (
    DeltaTarget,
    JsonFormat,
    KafkaSource,
    OffsetsInitializer,
    StringFormat,
    build_kafka_delta_asset,
    kafka_delta_asset,
    kafka_delta_checks,
    kafka_topic_asset,
)

flights_source = KafkaSource.builder().set_topics("flights").set_starting_offsets(OffsetsInitializer.earliest()).build()

flight = JsonFormat(
    "carrier STRING NOT NULL, flight INT NOT NULL, tailnum STRING, origin STRING NOT NULL, dest STRING NOT NULL, "
    "distance DOUBLE, dep_delay DOUBLE, arr_delay DOUBLE, air_time DOUBLE"
)

# Once default_automation_condition_sensor is on, Dagster observes the topic every five minutes and materializes new
# records.
flights_topic = kafka_topic_asset(
    flights_source,
    description="Flights out of New York, as JSON, keyed by carrier.",
    group_name="flights",
    owners=["team:flights"],
    automation_condition=AutomationCondition.on_cron("*/5 * * * *"),
)

# Unchanged records: nothing is decoded, so nothing can be rejected.
flights_raw = build_kafka_delta_asset(
    name="flights_raw",
    source=flights_source,
    table="warehouse/flights_raw",
    description="The records as they are in the topic.",
    group_name="flights",
    owners=["team:flights"],
    tags={"layer": "bronze"},
    automation_condition=AutomationCondition.eager(),
)


@kafka_delta_asset(
    source=flights_source,
    key_format=StringFormat(),
    value_format=flight,
    table=DeltaTarget(table="warehouse/flights", cluster_by=("departure",)),
    group_name="flights",
    owners=["team:flights"],
    tags={"layer": "silver"},
    automation_condition=AutomationCondition.eager(),
    freshness_policy=FreshnessPolicy.time_window(fail_window=timedelta(days=2), warn_window=timedelta(days=1)),
)
def flights(records):
    """Each flight with its scheduled departure in UTC; a missing delay means a cancelled flight."""
    return records.withColumnRenamed("kafka_timestamp", "departure").withColumn(
        "cancelled", records["dep_delay"].isNull()
    )


flights_checks = kafka_delta_checks(flights, max_lag=200_000)

# The same by day, in UTC: any day can be materialized again, which replaces its rows.
flights_daily = build_kafka_delta_asset(
    name="flights_daily",
    source=flights_source,
    value_format=flight,
    table="warehouse/flights_daily",
    partitions_def=DailyPartitionsDefinition("2013-01-01", end_date="2014-01-02"),
    description="Each flight, by the day of its scheduled departure in UTC.",
    group_name="flights",
    owners=["team:flights"],
    tags={"layer": "silver"},
)
