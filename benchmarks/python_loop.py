"""What the throughput benchmark compares with: a topic of JSON into Delta without Spark, in one process.

It reads to the ends that it finds at its start, and keeps no position: what a careful user would still have to add.
"""

from __future__ import annotations

import io
import sys

import pyarrow as pa
import pyarrow.json as pj
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from deltalake import write_deltalake

_AT_ONCE = 100_000
_ROWS_PER_WRITE = 2_000_000

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("carrier", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("delay", pa.float64()),
        pa.field("distance", pa.int32()),
        pa.field("tail", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("note", pa.string()),
    ]
)


def land(servers: str, topic: str, table: str) -> None:
    """Reads a topic to its end and writes it.

    Args:
        servers: Bootstrap servers.
        topic: Its name.
        table: Path of the table.
    """
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "loop", "enable.auto.commit": False, "log_level": 0})
    partitions = [TopicPartition(topic, number) for number in consumer.list_topics(topic).topics[topic].partitions]
    left = sum(high - low for low, high in map(consumer.get_watermark_offsets, partitions))
    consumer.assign([TopicPartition(topic, each.partition, OFFSET_BEGINNING) for each in partitions])
    options = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    tables: list[pa.Table] = []
    while left:
        messages = consumer.consume(min(_AT_ONCE, left), timeout=5)
        left -= len(messages)
        lines = io.BytesIO(b"\n".join([message.value() or b"{}" for message in messages]))
        rows = pj.read_json(lines, parse_options=options)
        rows = rows.append_column("kafka_partition", pa.array([each.partition() for each in messages], pa.int32()))
        rows = rows.append_column("kafka_offset", pa.array([each.offset() for each in messages], pa.int64()))
        times = pa.array([each.timestamp()[1] for each in messages], pa.timestamp("ms", tz="UTC"))
        tables.append(rows.append_column("kafka_timestamp", times.cast(pa.timestamp("us", tz="UTC"))))
        if not left or sum(each.num_rows for each in tables) >= _ROWS_PER_WRITE:
            write_deltalake(table, pa.concat_tables(tables), mode="append")
            tables = []
    consumer.close()


if __name__ == "__main__":
    land(*sys.argv[1:])
