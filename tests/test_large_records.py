"""Tables and dead letters stay manageable: large records, and thousands of topic partitions."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.parquet import ParquetFile

from dagster_kafka_flip.ingestion.batch_rows import DeadLetterRows
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

_BLOCK, _LARGE = 1_000_000, 200_000


@pytest.fixture
def small_blocks(spark):
    """Parquet holds less in memory, so that a few records are many."""
    spark.conf.set("parquet.block.size", str(_BLOCK))
    yield
    spark.conf.unset("parquet.block.size")


def blocks(spark, table):
    """The sizes of what Parquet held in memory at once."""
    of, conf = spark._jvm.org.apache, spark._jsc.hadoopConfiguration()
    sizes = []
    for file in Path(table).glob("*.parquet"):
        place = of.parquet.hadoop.util.HadoopInputFile.fromPath(of.hadoop.fs.Path(str(file)), conf)
        reader = of.parquet.hadoop.ParquetFileReader.open(place)
        sizes += [block.getTotalByteSize() for block in reader.getRowGroups()]
        reader.close()
    return sizes


@pytest.mark.kafka
@pytest.mark.spark
def test_parquet_sees_large_rows_behind_small_ones(kafka, spark, spark_of, connection, topic, table, small_blocks):
    kafka.create(topic)
    kafka.produce(topic, [(None, b"small")] * 300 + [(None, os.urandom(_LARGE)) for _ in range(40)])
    ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    assert landed.count(table) == 340
    assert max(blocks(spark, table)) < _BLOCK + 12 * _LARGE


@pytest.mark.kafka
@pytest.mark.spark
def test_blocks_are_small_enough_to_read_them_again(kafka, spark, spark_of, connection, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, os.urandom(900_000)) for _ in range(60)])
    ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    assert len(blocks(spark, table)) == 2


@pytest.mark.kafka
@pytest.mark.spark
def test_a_files_times_have_statistics_as_int96_has_not(kafka, connection, topic, table, spark_of):
    kafka.create(topic)
    kafka.produce(topic, [("k", "v")])
    ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    (file,) = Path(table).glob("*.parquet")
    group = ParquetFile(file).metadata.row_group(0)
    columns = {(column := group.column(number)).path_in_schema: column for number in range(group.num_columns)}
    assert columns["kafka_timestamp"].physical_type == "INT64"
    assert columns["kafka_timestamp"].is_stats_set


@pytest.mark.kafka
@pytest.mark.spark
def test_few_changes_of_a_key_are_kept_where_they_can_not_be_spilled(spark):
    assert int(spark.conf.get("spark.sql.windowExec.buffer.in.memory.threshold")) < 100


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
