"""The way of a run on a real broker: first, second and idle."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow.parquet import ParquetFile

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_the_first_run_reads_everything_the_second_only_what_is_new_and_the_third_nothing(
    kafka, connection, spark, topic, table, spark_of
):
    kafka.create(topic, partitions=3)
    kafka.produce(topic, [(f"k{i}", f"v{i}") for i in range(10)], partition=0)
    kafka.produce(topic, [(f"k{i}", f"w{i}") for i in range(5)], partition=2)
    source = KafkaSource.builder().set_topics(topic).build()

    first = ingest(source, table, spark=spark_of, connection=connection)
    assert (first.rows, first.records, first.known.table_rows, first.lag_after) == (15, 15, 15, 0)

    kafka.produce(topic, [("k", "new")] * 4, partition=1)
    second = ingest(source, table, spark=spark_of, connection=connection, known=first.known)
    assert (second.rows, second.records, second.known.table_rows) == (4, 4, 19)

    def no_spark():
        pytest.fail("an idle run asked for Spark")

    third = ingest(source, table, spark=no_spark, connection=connection, known=second.known)
    assert third.is_idle
    assert third.state == second.state

    away = Path(table).rename(f"{table}-away")
    with pytest.raises(pytest.fail.Exception, match="asked for Spark"):
        ingest(source, table, spark=no_spark, connection=connection, known=second.known)
    away.rename(table)

    fourth = ingest(source, table, spark=spark_of, connection=connection)
    assert fourth.is_idle, "without a known position the table says the same"

    rows = spark.read.format("delta").load(table)
    assert rows.count() == 19
    assert rows.select("kafka_partition", "kafka_offset").distinct().count() == 19


def test_a_files_times_have_statistics_as_int96_has_not(kafka, connection, topic, table, spark_of):
    kafka.create(topic)
    kafka.produce(topic, [("k", "v")])
    ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    (file,) = Path(table).glob("*.parquet")
    group = ParquetFile(file).metadata.row_group(0)
    columns = {(column := group.column(number)).path_in_schema: column for number in range(group.num_columns)}
    assert columns["kafka_timestamp"].physical_type == "INT64"
    assert columns["kafka_timestamp"].is_stats_set
