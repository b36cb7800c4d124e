"""Splits to DataFrame, through Spark's Kafka batch source, with `assign` and numbers only.

Spark resolves `latest` and `earliest` late, on the executors, once per task attempt: a retried task would read
something else, and the driver would never know what was read. So it is handed numbers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import KafkaPartitionSplit

# What Spark's source yields with includeHeaders, for a batch without splits.
RECORD_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)

# Bounded reads run from end to end through a backlog, so fetches pay off that would be too large for a live consumer.
_BATCH_FETCHES = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "fetch.max.bytes": str(64 * 1024 * 1024),
    # At the end of a split the consumer has one more fetch on its way, and a broker answers a connection's requests in
    # order: with the default of 500 ms every task would wait half a second for records that are not asked for.
    "fetch.max.wait.ms": "1",
}


def read(
    spark: SparkSession,
    splits: Sequence[KafkaPartitionSplit],
    source: KafkaSource,
    connection: KafkaConnection,
) -> DataFrame:
    """A lazy DataFrame of the records in the splits, with the columns of `RECORD_SCHEMA`.

    Args:
        spark: The session to read with.
        splits: Ranges with numeric offsets; at most one for each topic partition.
        source: For the isolation level and the consumer's properties.
        connection: Where and how.
    """
    if not splits:
        return spark.createDataFrame([], RECORD_SCHEMA)
    return spark.read.format("kafka").options(**reader_options(splits, source, connection)).load()


def reader_options(
    splits: Sequence[KafkaPartitionSplit], source: KafkaSource, connection: KafkaConnection
) -> dict[str, str]:
    """The options of Spark's Kafka source for these splits. Holds secrets: for the reader only."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    stops: dict[str, dict[str, int]] = {}
    for split in splits:
        topic, partition = split.topic_partition
        partitions.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = split.starting_offset
        stops.setdefault(topic, {})[str(partition)] = split.stopping_offset
    consumer = {
        **_BATCH_FETCHES,
        **source.properties,
        **connection.java_config(),
        "isolation.level": source.isolation_level,
    }
    return {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(stops),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "groupIdPrefix": "dagster-kafka-flip",
        **{f"kafka.{key}": value for key, value in consumer.items()},
    }
