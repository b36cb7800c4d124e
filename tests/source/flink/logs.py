"""Topics in the shapes that Flink's tests use, and what is read out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition as ClientTopicPartition
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from dagster_kafka_flip.reader.kafka_reader import read
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka import Producer
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.plan import ReadPlan
    from tests.kafka_topic import Kafka

# As in Flink's KafkaSourceTestEnv.
PARTITIONS = 10
RECORDS = 10

until = retry(retry=retry_if_result(lambda done: not done), wait=wait_fixed(0.02), stop=stop_after_delay(60))
"""Repeats a question until the answer is yes."""


def write(kafka: Kafka, topic: str, timestamps: Mapping[int, Sequence[int]]) -> None:
    """Writes a record for each timestamp of each topic partition; its value is its offset in a new topic."""
    producer = kafka.producer(**{"enable.idempotence": True})
    for partition, times in timestamps.items():
        for offset, timestamp in enumerate(times):
            producer.produce(topic, str(offset), f"{topic}-{partition}", partition, timestamp=timestamp)
    assert producer.flush(60) == 0


def write_test_topic(kafka: Kafka, topic: str) -> None:
    """Flink's test topic: record i of each topic partition has the value i, here a second later than in Flink.

    A timestamp of 0 means "now" to librdkafka.
    """
    kafka.create(topic, PARTITIONS)
    write(kafka, topic, {partition: [1000 * (i + 1) for i in range(RECORDS)] for partition in range(PARTITIONS)})


def trim_heads(kafka: Kafka, topic: str) -> None:
    """Flink's rule for its test topics: topic partition p begins at offset p."""
    wanted = [ClientTopicPartition(topic, partition, partition) for partition in range(1, PARTITIONS)]
    for future in kafka.admin.delete_records(wanted).values():
        future.result(30)


def transact(
    kafka: Kafka, cluster: KafkaCluster, topic: str, timestamps: Mapping[int, Sequence[int]], *, commit: bool = True
) -> None:
    """Writes records in one transaction over several topic partitions, and waits for the marker in each."""
    partitions = [TopicPartition(topic, partition) for partition in timestamps]
    before = cluster.end_offsets(partitions, "read_uncommitted")
    producer = kafka.producer(**{"transactional.id": f"{topic}-transact"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for tp in partitions:
        for timestamp in timestamps[tp.partition]:
            producer.produce(topic, b"x", partition=tp.partition, timestamp=timestamp)
    # An abort would throw away what is not sent yet.
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    expected = {tp: before[tp] + len(timestamps[tp.partition]) + 1 for tp in partitions}
    until(lambda: cluster.end_offsets(partitions, "read_committed") == expected)()


def leave_open(kafka: Kafka, topic: str, partition: int, records: int) -> Producer:
    """Writes records in a transaction that stays open for as long as a broker allows: a quarter of an hour."""
    producer = kafka.producer(**{"transactional.id": f"{topic}-{partition}-open", "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(topic, b"open", partition=partition)
    assert producer.flush(30) == 0
    return producer


def splits_of(plan: ReadPlan) -> dict[int, tuple[int, int]]:
    """The splits of a plan of one topic, by partition number."""
    return {
        split.topic_partition.partition: (split.starting_offset, split.stopping_offset) for split in sorted(plan.splits)
    }


def by_number(values: Mapping[TopicPartition, Any]) -> dict[int, Any]:
    """What is known of one topic's partitions, by partition number."""
    return {tp.partition: value for tp, value in values.items()}


def rows_read(spark: SparkSession, source: KafkaSource, assignment: SplitAssignment, *columns: str) -> list[Any]:
    """Columns of the records that Spark reads, sorted."""
    return sorted(tuple(row) for row in read(source, spark, assignment).selectExpr(*columns).collect())


def offsets_read(spark: SparkSession, source: KafkaSource, assignment: SplitAssignment) -> dict[int, list[int]]:
    """The offsets that Spark reads of one topic, by partition number; topic partitions without a record left out."""
    found: dict[int, list[int]] = {}
    for partition, offset in rows_read(spark, source, assignment, "partition", "offset"):
        found.setdefault(partition, []).append(offset)
    return found


def within(offsets: Iterable[int], split: tuple[int, int]) -> list[int]:
    """Those offsets that lie in a split."""
    return [offset for offset in offsets if split[0] <= offset < split[1]]
