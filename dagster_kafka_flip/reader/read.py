"""An assignment's splits as a lazy DataFrame; how, each kind of source registers here.

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

# The columns that every reader gives, those of Spark's Kafka source with includeHeaders.
RECORD_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP_LTZ, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@functools.singledispatch
def read(source: Any, spark: SparkSession, assignment: SplitAssignment) -> DataFrame:
    """A lazy DataFrame of the records in an assignment's splits, with the columns of `RECORD_SCHEMA`.

    Args:
        source: What the splits are of. Decides which registered reader is used.
        spark: The session to read with.
        assignment: Splits with numeric offsets, and how they are dealt out to tasks; at least one split.

    Raises:
        ConfigurationError: Nothing is registered for this kind of source.
    """
    del spark, assignment
    msg = f"no reader is registered for {type(source).__name__}; register one with reader.read.register"
    raise ConfigurationError(msg)


read.register(KafkaSource, read_kafka)


def no_records(spark: SparkSession) -> DataFrame:
    """The DataFrame of a batch without splits."""
    return spark.createDataFrame([], RECORD_SCHEMA)
