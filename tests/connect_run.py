"""What `test_connect` runs in a process of its own, because classic Spark and Spark Connect don't mix in one.

Lands a topic through a Spark Connect server and prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from dagster_kafka_flip.errors import ConfigurationError, RecordsRejectedError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.runtime.session import build_session
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.serializers import JsonSerializer
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.local_log import is_local
from dagster_kafka_flip.table.mode import Scd2, Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests.kafka_topic import Kafka, committed_records
from tests.windows.conftest import START, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(remote: str, bootstrap_servers: str, registry: str, topic: str, table: str) -> None:
    """Runs that land records, or find none, and two that meet records which can't be decoded."""
    kafka = Kafka(bootstrap_servers)
    connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
    source = KafkaSource.builder().set_topics(topic).build()
    session = build_session(remote=remote)

    def run(dead_letter: str | None = None):
        result = ingest(
            source,
            table,
            spark=lambda: session,
            connection=connection,
            value_format=JsonFormat("id INT NOT NULL, name STRING"),
            transform=lambda records: records.select("id", "name", "kafka_partition", "kafka_offset"),
            dead_letter=dead_letter,
        )
        return {
            "rows": result.rows,
            "records": result.records,
            "unknown": result.unknown,
            "is_idle": result.is_idle,
            "table_rows": result.known.table_rows,
            "versions": [batch.committed.version for batch in result.batches],
            "columns": [list(column) for column in result.columns],
        }

    def version() -> int:
        return session.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["version"]

    kafka.create(f"{topic}-times")
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, f'{{"id": {number}, "name": "ü{number}"}}') for number in range(3)])
    seen: dict[str, object] = {"is_local": is_local(session, DeltaTarget(table=table)), "first": run()}
    kafka.produce(topic, [(None, '{"id": 9}'), (None, None)], partition=1)
    seen["second"] = run()
    seen["idle"] = run()
    kafka.produce(topic, [(None, "nonsense"), (None, '{"id": 10}'), (None, '{"name": "x"}')])
    try:
        run()
    except RecordsRejectedError as error:
        seen["rejected"] = str(error)
    seen["version"] = version()
    rows = session.read.format("delta").load(table).orderBy("kafka_partition", "kafka_offset").collect()
    seen["rows"] = [list(row) for row in rows]
    landed = run(dead_letter=f"{table}-dead-letters")
    dead = session.read.format("delta").load(f"{table}-dead-letters").orderBy("kafka_offset").collect()
    seen["dead letters"] = [landed["rows"], *([row["kafka_offset"], row["error"]] for row in dead)]
    # Fewer records than offsets, and a transform: nobody knows whether it has left some of them unread.
    kafka.open_transaction(topic, [(None, '{"id": 11}'), (None, '{"id": 12}')]).commit()
    seen["gaps"] = run(dead_letter=f"{table}-dead-letters")
    seen["session"] = type(session).__module__
    session.conf.set("spark.databricks.delta.write.txnAppId", "nightly")
    try:
        run()
    except ConfigurationError as error:
        seen["refused"] = str(error).partition(":")[0]
    session.conf.unset("spark.databricks.delta.write.txnAppId")

    for minute in range(0, 180, 20):
        kafka.produce(f"{topic}-times", [(None, str(minute))], timestamp=START + minute * 60_000)
    seen["windows"] = _land_windows(f"{topic}-times", f"{table}-windows", session, connection)
    seen["avro"] = _land_avro(kafka, f"{topic}-avro", f"{table}-avro", session, connection, registry)
    seen["upsert"] = _follow(kafka, f"{topic}-upsert", f"{table}-upsert", session, connection)
    seen["history"] = _keep(kafka, f"{topic}-history", f"{table}-history", session, connection)
    seen["published"] = _publish(kafka, f"{topic}-published", f"{table}-published", session, connection)
    kafka.close()
    print(json.dumps(seen))


def _publish(kafka: Kafka, topic: str, table: str, session: SparkSession, connection: KafkaConnection) -> list[object]:
    """Publishes a table's rows by way of a function."""
    from pyspark.sql import functions as f

    kafka.create(topic)
    feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    session.sql(f"CREATE TABLE delta.`{table}` USING delta {feed} AS SELECT 1 AS id, 'a' AS name")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (2, 'b')")
    keyed = KafkaSink(topic=topic, transactional_id_prefix=topic, key=JsonSerializer(columns=("id",)))
    publish(
        DeltaSource(table=table),
        keyed,
        spark=lambda: session,
        connection=connection,
        transform=lambda rows: rows.withColumn("name", f.upper("name")),
    )
    return [(record.value or b"").decode() for record in committed_records(connection, topic)]


def _follow(kafka: Kafka, topic: str, table: str, session: SparkSession, connection: KafkaConnection) -> list[object]:
    """Follows a topic's keys in two runs: what each changed and counted, the rows, and what is left in the session."""
    kafka.create(topic)
    reported: list[object] = []
    for values in (["a", "b"], [None, "c"]):
        records = [
            (f'{{"id": {key}}}', value and f'{{"id": {key}, "name": "{value}"}}') for key, value in enumerate(values)
        ]
        kafka.produce(topic, records)
        result = ingest(
            KafkaSource(topics=(topic,)),
            DeltaTarget(table=table, mode=Upsert(key=("id",))),
            spark=lambda: session,
            connection=connection,
            key_format=JsonFormat("id INT"),
            value_format=JsonFormat("id INT, name STRING"),
        )
        reported.append(
            [*(vars(result.merged) if result.merged else {}).values(), result.records, result.known.table_rows]
        )
    rows = session.read.format("delta").load(table).select("id", "name").collect()
    return [*reported, [list(row) for row in rows], session.conf.get("spark.databricks.delta.write.txnAppId", None)]


def _keep(kafka: Kafka, topic: str, table: str, session: SparkSession, connection: KafkaConnection) -> list[object]:
    """Keeps the history of keys: what each run changed, and the rows."""
    kafka.create(topic)
    key, left_out = '{"id": 1}', '"left_out": ["name"]'
    reported: list[object] = []
    for records in (
        [(key, '{"id": 1, "name": "a"}')],
        [(key, f'{{"id": 1, {left_out}}}'), (key, None), ('{"id": 2}', '{"id": 2, "name": "b"}')],
    ):
        kafka.produce(topic, records)
        result = ingest(
            KafkaSource(topics=(topic,)),
            DeltaTarget(table=table, mode=Scd2(key=("id",))),
            spark=lambda: session,
            connection=connection,
            key_format=JsonFormat("id INT"),
            value_format=JsonFormat("id INT, name STRING, left_out ARRAY<STRING>"),
            transform=lambda rows: rows.withColumnsRenamed({"left_out": "kafka_unavailable"}),
        )
        reported.append(
            [*(vars(result.merged) if result.merged else {}).values(), result.records, result.known.table_rows]
        )
    rows = session.read.format("delta").load(table).select("id", "name", "is_current").orderBy("id", "kafka_offset")
    return [*reported, [list(row) for row in rows.collect()]]


def _land_windows(topic: str, table: str, session: SparkSession, connection: KafkaConnection) -> list[list[object]]:
    """Lands three windows at once, and one of them again; rows by window, what was seen, and the table's rows."""
    source, target = KafkaSource(topics=(topic,)), DeltaTarget(table=table, partition_by=("kafka_window",))
    landed = []
    for windows in (hours(0, 3), hours(1, 2)):
        (result,) = rewrite_windows(
            source, target, windows, spark=lambda: session, connection=connection, definition="hours"
        )
        seen = result.observed.windows
        landed.append([result.rows, None if seen is None else [dict(seen.late), seen.stragglers]])
    return [*landed, [session.read.format("delta").load(table).count()]]


def _land_avro(
    kafka: Kafka, topic: str, table: str, session: SparkSession, connection: KafkaConnection, url: str
) -> list[list[object]]:
    """Lands records of two schemas, of which the second is met while reading, and one that is cut; rows and error."""
    field: dict[str, object] = {"name": "id", "type": "long"}
    note: dict[str, object] = {"name": "note", "type": ["null", "string"], "default": None}
    texts = [json.dumps({"type": "record", "name": "Order", "fields": fields}) for fields in ([field], [field, note])]
    kafka.create(topic)
    with SchemaRegistryClient({"url": url}) as client:
        older, newer = (client.register_schema(f"{topic}-value", Schema(text, "AVRO")) for text in texts)
    first, second = (b"\x00" + number.to_bytes(4, "big") for number in (older, newer))
    # Numbers are in zigzag code; a union begins with its branch.
    kafka.produce(topic, [(None, first + b"\x02"), (None, second + b"\x04\x02\x02x"), (None, second + b"\x06")])
    result = ingest(
        KafkaSource(topics=(topic,)),
        table,
        spark=lambda: session,
        connection=connection,
        value_format=AvroFormat(registry=SchemaRegistry(url=url), on_error="null"),
    )
    rows = (
        session.read.format("delta").load(table).orderBy("kafka_offset").select("id", "note", "kafka_error").collect()
    )
    return [[result.rows], *map(list, rows), [newer]]


if __name__ == "__main__":
    main(*sys.argv[1:])
