"""Reads Kafka splits as a DataFrame through Spark's Kafka batch source, with `assign` and fixed offsets.

Spark resolves `latest` and `earliest` late, on the executors, once per task attempt: a retried task could read a
different range, and the driver would not know which. Fixed offsets avoid this.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import KafkaPartitionSplit

# Columns of Spark's Kafka source with includeHeaders. A session may reserve the word offset.
RECORD_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, `offset` BIGINT, timestamp TIMESTAMP_LTZ, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)

# Bounded reads go through a backlog, so fetches that are too large for a live consumer pay off.
_BATCH_FETCHES = {
    "max.poll.records": "10000",
    "fetch.max.bytes": str(64 * 1024 * 1024),
    # At the end of a split, the consumer has one more fetch in flight, and a broker answers a connection's requests in
    # order: with the default of 500 ms, every task would wait half a second for records that it does not need.
    "fetch.max.wait.ms": "1",
}

# The default timeout of one request; the Java client rejects lower values. Its own default of a minute would apply to
# every retry if a broker's address is unreachable.
_API_TIMEOUT_MS = "30000"

# Records prefetched after the end of a range are wasted, so small ranges use small fetches. A broker still returns a
# whole batch, even if it is larger (KIP-74).
_LEAST_FETCH_BYTES = 256 * 1024
_MOST_FETCH_BYTES = 16 * 1024 * 1024
_FETCH_BYTES_PER_OFFSET = 128


def read(source: KafkaSource, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
    """Spark divides large splits itself, by the same arithmetic; `coalesce` groups small ones without a shuffle."""
    tasks = assignment.task_plan
    frames: list[DataFrame] = []
    if tasks.divided:
        options = reader_options(tasks.divided, source, records_per_task=tasks.records_per_task)
        frames.append(spark.read.format("kafka").options(**options).load())
    if tasks.gathered:
        options = reader_options(itertools.chain.from_iterable(tasks.gathered), source)
        frames.append(spark.read.format("kafka").options(**options).load().coalesce(len(tasks.gathered)))
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])


def reader_options(
    splits: Iterable[KafkaPartitionSplit], source: KafkaSource, *, records_per_task: int | None = None
) -> dict[str, str]:
    """The options of Spark's Kafka source for these splits. Contains secrets: for the reader only."""
    splits = tuple(splits)
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    stops: dict[str, dict[str, int]] = {}
    for split in splits:
        topic, partition = split.topic_partition
        partitions.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = split.starting_offset
        stops.setdefault(topic, {})[str(partition)] = split.stopping_offset
    connection = source.required_connection()
    longest = max((split.offset_span for split in splits), default=0)
    fetch_bytes = min(longest, records_per_task or longest) * _FETCH_BYTES_PER_OFFSET
    consumer = {
        **_BATCH_FETCHES,
        "max.partition.fetch.bytes": str(min(max(fetch_bytes, _LEAST_FETCH_BYTES), _MOST_FETCH_BYTES)),
        **connection.java_config(),
        **source.java_config(),
    }
    if "request.timeout.ms" not in consumer:
        consumer.setdefault("default.api.timeout.ms", _API_TIMEOUT_MS)
    return {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(stops),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "groupIdPrefix": "dagster-kafka-flip",
        "kafkaConsumer.pollTimeoutMs": str(int(connection.read_timeout * 1000)),
        **({} if records_per_task is None else {"maxRecordsPerPartition": str(records_per_task)}),
        **{f"kafka.{key}": value for key, value in consumer.items()},
    }


def no_records(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], RECORD_SCHEMA)
