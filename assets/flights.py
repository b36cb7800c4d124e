from dagster import DailyPartitionsDefinition

from dagster_kafka_flip import (
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

flights_topic = kafka_topic_asset(flights_source, group_name="flights")

# The records as they are: nothing is decoded, so nothing can be rejected.
flights_raw = build_kafka_delta_asset(
    name="flights_raw",
    source=flights_source,
    table="warehouse/flights_raw",
    group_name="flights",
)


@kafka_delta_asset(
    source=flights_source,
    key_format=StringFormat(),
    value_format=flight,
    table="warehouse/flights",
    cluster_by=["departure"],
    group_name="flights",
)
def flights(records):
    """Each flight with its scheduled departure in UTC; a missing delay means that it was cancelled."""
    return records.withColumnRenamed("kafka_timestamp", "departure").withColumn(
        "cancelled", records["dep_delay"].isNull()
    )


flights_checks = kafka_delta_checks(flights, max_lag=200_000)

# The same by day, in UTC: any days can be landed again, each in the place of what the table has of it.
flights_daily = build_kafka_delta_asset(
    name="flights_daily",
    source=flights_source,
    value_format=flight,
    table="warehouse/flights_daily",
    partitions_def=DailyPartitionsDefinition("2013-01-01", end_date="2014-01-02"),
    group_name="flights",
)
