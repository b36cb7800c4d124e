"""Reads the few records that Spark's Kafka reader can't with the Kafka client, into a local DataFrame."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import WriteFailedError
from dagster_kafka_flip.source.unreadable import is_readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.sample import LoggedRecord
    from dagster_kafka_flip.source.split import KafkaPartitionSplit

# A Spark Connect server accepts messages of up to 128 MiB.
_MOST_BYTES = 64 * 1024 * 1024

_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, `offset` BIGINT, milliseconds BIGINT, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def read_by_client(source: KafkaSource, spark: SparkSession, ranges: Sequence[KafkaPartitionSplit]) -> DataFrame:
    """Returns a DataFrame of the records in the ranges, in the format of Spark's Kafka reader.

    Timestamps that are out of range for Spark are null.

    Args:
        source: Provides the connection, the isolation level and the client's properties.
        spark: The session of the DataFrame.
        ranges: The ranges.

    Raises:
        WriteFailedError: The records are too large to be read this way.
        KafkaFlipError: Kafka did not send the records.
    """
    from pyspark.sql import functions as f

    from dagster_kafka_flip.source.cluster import KafkaCluster

    rows: list[tuple[Any, ...]] = []
    size = 0
    with contextlib.closing(KafkaCluster(source.required_connection(), source.librdkafka_config())) as cluster:
        for record in cluster.records(ranges, source.isolation_level):
            rows.append(_row(record))
            size += len(record.key or b"") + len(record.value or b"")
            size += sum(len(name) + len(value or b"") for name, value in record.headers)
            if size > _MOST_BYTES:
                tp, offset = record.topic_partition, record.offset
                msg = (
                    f"{tp}: Spark can't read some records, and the records around them exceed "
                    f"{_MOST_BYTES // 1024**2} MiB (up to offset {offset}), the limit for reading without Spark. "
                    "Nothing of the batch was written. Lower max_records_per_batch"
                )
                raise WriteFailedError(msg)
    read = spark.createDataFrame(rows, _SCHEMA)
    time = f.timestamp_millis("milliseconds").alias("timestamp")
    return read.select("key", "value", "topic", "partition", "offset", time, "timestampType", "headers")


def _row(record: LoggedRecord) -> tuple[Any, ...]:
    topic, partition = record.topic_partition
    milliseconds = record.timestamp_ms if is_readable(record.timestamp_ms) else None
    return (
        record.key,
        record.value,
        topic,
        partition,
        record.offset,
        milliseconds,
        record.timestamp_type,
        list(record.headers) or None,
    )
