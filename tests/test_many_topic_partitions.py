"""Thousands of topic partitions in one condition of Spark's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip.ingestion.batch_rows import DeadLetterRows
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget

_COLUMNS = """
    kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, kafka_key BINARY,
    kafka_value BINARY, kafka_cluster_id STRING, kafka_topic_id STRING, target_table_id STRING, stream STRING
"""


def _letter(partition, offset):
    return ("t", partition, offset, None, None, None, "cluster", "topic", "table", "main")


@pytest.mark.spark
def test_dead_letters_of_thousands_of_topic_partitions_are_compared(spark, capsys):
    splits = [KafkaPartitionSplit(TopicPartition("t", number), 5, 10) for number in range(5_000)]
    there = spark.createDataFrame([_letter(7, 5), _letter(7, 6), _letter(8, 1)], _COLUMNS)
    rows = spark.createDataFrame([_letter(7, 5), _letter(7, 7), _letter(4_999, 5)], _COLUMNS)
    spec: Any = SimpleNamespace(target=DeltaTarget(table="lake/t"))
    new = DeadLetterRows(spark, spec).missing(rows, there, splits, "table")
    assert sorted((row.kafka_partition, row.kafka_offset) for row in new.collect()) == [(7, 7), (4_999, 5)]
    new.explain(True)
    assert capsys.readouterr().out.count(">= 5") < 10, "not a condition for each"
