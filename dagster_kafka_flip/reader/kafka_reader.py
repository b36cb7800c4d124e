"""Reads Kafka splits as a DataFrame through Spark's Kafka batch source, with `assign` and fixed offsets.

Spark resolves `latest` and `earliest` late, on the executors, once per task attempt: a retried task could read a
different range, and the driver would not know which. Fixed offsets avoid this.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import WriteFailedError
from dagster_kafka_flip.source.unreadable import around, is_readable, rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, LoggedRecord

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


def read_kafka(source: KafkaSource, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
    """Returns a lazy DataFrame of the records in an assignment's splits.

    Args:
        source: Provides the connection, the isolation level and the consumer's properties.
        spark: The Spark session.
        assignment: The assignment of splits to tasks. Spark divides large splits itself, by the same arithmetic;
            `coalesce` groups small ones without a shuffle.
    """
    if assignment.aside:
        return _read_around(source, spark, assignment)
    tasks = assignment.task_plan
    frames: list[DataFrame] = []
    if tasks.divided:
        options = reader_options(tasks.divided, source, records_per_task=tasks.records_per_task)
        frames.append(spark.read.format("kafka").options(**options).load())
    if tasks.gathered:
        options = reader_options(itertools.chain.from_iterable(tasks.gathered), source)
        frames.append(spark.read.format("kafka").options(**options).load().coalesce(len(tasks.gathered)))
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])


def _read_around(source: KafkaSource, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
    """The DataFrame, with the ranges that Spark can't read taken from the Kafka client."""
    # Spark accepts one range per topic partition at a time.
    pieces = rounds(around(assignment.plan.splits, assignment.aside))
    frames = [read_by_client(source, spark, assignment.aside)]
    for each in pieces:
        options = reader_options(each, source, records_per_task=assignment.task_plan.records_per_task)
        frames.append(spark.read.format("kafka").options(**options).load())
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


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
                raise WriteFailedError(
                    f"{tp}: Spark can't read some records, and the records around them exceed {_MOST_BYTES // 1024**2} "
                    f"MiB (up to offset {offset}), the limit for reading without Spark",
                    "Lower max_records_per_batch",
                )
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
