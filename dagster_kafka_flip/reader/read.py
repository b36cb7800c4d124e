"""Reads an assignment's splits as a lazy DataFrame; each kind of source registers its reader here.

@read.register
def _(source: MySource, spark: SparkSession, assignment: SplitAssignment) -> DataFrame: ...
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.reader.kafka_reader import read_kafka
from dagster_kafka_flip.source.kafka_source import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.source.api import SplitAssignment

# Columns of every reader: those of Spark's Kafka source with includeHeaders. A session may reserve the word offset.
RECORD_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, `offset` BIGINT, timestamp TIMESTAMP_LTZ, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@functools.singledispatch
def read(source: Any, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
    """Returns a lazy DataFrame of the records in an assignment's splits, with the columns of `RECORD_SCHEMA`.

    Args:
        source: The source of the splits; its type selects the registered reader.
        spark: The Spark session.
        assignment: The splits, at least one, and their assignment to tasks.
    """
    del spark, assignment
    msg = f"no reader is registered for {type(source).__name__}; register one with reader.read.register"
    raise ConfigurationError(msg)


read.register(KafkaSource, read_kafka)


def no_records(spark: SparkSession) -> DataFrame:
    """The DataFrame of a batch without splits."""
    # Not by createDataFrame, which gets ready to take rows from Python.
    return spark.range(0).selectExpr(f"CAST(NULL AS STRUCT<{RECORD_SCHEMA}>) AS record").select("record.*")
