"""Compares a topic with a table record by record, without using dagster_kafka_flip.

Kafka's own consumer reads the topic, not Spark; the table is read like any Delta table.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.json
from confluent_kafka import Consumer, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_SILENCE_SECONDS = 30.0
_IDENTITY = ["partition", "offset"]

# Repeats the schema of assets/flights.py on purpose, to be independent of it.
_VALUE_SCHEMA = pa.schema(
    {
        "carrier": pa.string(),
        "flight": pa.int32(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dest": pa.string(),
        "distance": pa.float64(),
        "dep_delay": pa.float64(),
        "arr_delay": pa.float64(),
        "air_time": pa.float64(),
    }
)


@dataclass(frozen=True)
class Comparison:
    """Differences between a topic and a table.

    Attributes:
        records: Records of the topic.
        rows: Rows of the table.
        lost: Records without a row.
        doubled: Additional rows of a record.
        foreign: Rows without a record in the topic.
        different: Rows that differ from their record.
    """

    records: int
    rows: int
    lost: int
    doubled: int
    foreign: int
    different: int

    @property
    def is_equal(self) -> bool:
        """Whether the table has every record unchanged, and nothing else."""
        return not (self.lost or self.doubled or self.foreign or self.different)


def read_topic(bootstrap_servers: str, topic: str) -> pd.DataFrame:
    """All records of a topic with offset, timestamp, key and value.

    Raises:
        KafkaException: The topic can't be read.
        TimeoutError: No record arrived for half a minute before the end was reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            # A consumer needs a group name; this one never joins the group or commits offsets.
            "group.id": "comparison",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "queued.min.messages": 1_000_000,
        }
    )
    records: list[tuple[Any, ...]] = []
    try:
        partitions = consumer.list_topics(topic, timeout=_SILENCE_SECONDS).topics[topic].partitions
        ends = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SILENCE_SECONDS)[1]
            for partition in partitions
        }
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        last_news = time.monotonic()
        # By position, because there may be fewer records than offsets.
        while any(here.offset < ends[here.partition] for here in consumer.position(_wanted(topic, ends))):
            messages = consumer.consume(10_000, timeout=0.1)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                records.append(
                    (message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value())
                )
            if messages:
                last_news = time.monotonic()
            elif time.monotonic() - last_news > _SILENCE_SECONDS:
                msg = f"no record of {topic} arrived for {_SILENCE_SECONDS:.0f} s; {len(records)} were read"
                raise TimeoutError(msg)
    finally:
        consumer.close()
    return pd.DataFrame(records, columns=pd.Index([*_IDENTITY, "timestamp", "key", "value"]))


def _wanted(topic: str, ends: Mapping[int, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition, end in ends.items() if end > 0]


def compare_raw(records: pd.DataFrame, spark: SparkSession, location: str) -> Comparison:
    """Compares records with a table of their bytes."""
    rows = _read_table(
        spark,
        location,
        "kafka_partition AS partition",
        "kafka_offset AS offset",
        "unix_millis(kafka_timestamp) AS timestamp",
        "kafka_key AS key",
        "kafka_value AS value",
    )
    return compare(records, rows)


def compare_typed(records: pd.DataFrame, spark: SparkSession, location: str) -> Comparison:
    """Compares independently decoded records with a table of typed columns."""
    rows = _read_table(
        spark,
        location,
        "kafka_partition AS partition",
        "kafka_offset AS offset",
        "unix_millis(departure) AS timestamp",
        "kafka_key AS key",
        *_VALUE_SCHEMA.names,
        "cancelled",
    )
    decoded = pyarrow.json.read_json(
        io.BytesIO(b"\n".join(records["value"])),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=_VALUE_SCHEMA, unexpected_field_behavior="error"),
    ).to_pandas()
    expected = pd.concat([records.drop(columns=["value", "key"]), decoded], axis="columns")
    expected["key"] = [key.decode() for key in records["key"]]
    expected["cancelled"] = decoded["dep_delay"].isna()
    return compare(expected, rows)


def _read_table(spark: SparkSession, location: str, *columns: str) -> pd.DataFrame:
    return spark.read.format("delta").load(location).selectExpr(*columns).toArrow().to_pandas()


def compare(records: pd.DataFrame, rows: pd.DataFrame) -> Comparison:
    """Joins records with rows by topic partition and offset, and compares all columns of the records."""
    distinct_rows = rows.drop_duplicates(_IDENTITY)
    pairs: Any = records.merge(distinct_rows, on=_IDENTITY, suffixes=("_record", "_row"))
    is_same = pd.Series(data=True, index=pairs.index)
    for name in records.columns.difference(_IDENTITY):
        record, row = pairs[f"{name}_record"], pairs[f"{name}_row"]
        is_same &= (record == row) | (record.isna() & row.isna())
    return Comparison(
        records=len(records),
        rows=len(rows),
        lost=len(records) - len(pairs),
        doubled=len(rows) - len(distinct_rows),
        foreign=len(distinct_rows) - len(pairs),
        different=int((~is_same).sum()),
    )
