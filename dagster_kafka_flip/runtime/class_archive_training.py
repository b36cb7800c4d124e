"""Runs in spark-submit during the creation of a class archive: loads the classes of a typical run."""

from __future__ import annotations

import contextlib
import sys


def train(table: str) -> None:
    """Reads, decodes, writes and looks up in a new table, like a run."""
    from pyspark.sql import Observation, SparkSession
    from pyspark.sql import functions as f

    spark = SparkSession.builder.getOrCreate()
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, name STRING, at TIMESTAMP) USING delta")
    for number in range(2):
        records = spark.range(1000).select(f.format_string('{"id": %d, "name": "a"}', "id").alias("value"))
        parsed = records.select(f.from_json("value", "id BIGINT, name STRING").alias("v"))
        rows = parsed.select("v.*", f.current_timestamp().alias("at"))
        seen = rows.observe(Observation(), f.count(f.lit(1)).alias("rows"), f.max("id").alias("highest"))
        writer = seen.write.format("delta").mode("append").option("userMetadata", "{}")
        writer.option("txnAppId", "training").option("txnVersion", number).save(table)
    spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 5").collect()
    spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()
    spark.read.format("delta").load(table).groupBy("name").count().collect()
    # Nothing listens at this address: it loads the client's classes and gives up.
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    kafka = kafka.option("assign", '{"t": [0]}').option("startingOffsets", '{"t": {"0": 0}}')
    kafka = kafka.option("endingOffsets", '{"t": {"0": 1}}').option("kafkaConsumer.pollTimeoutMs", "500")
    kafka = kafka.option("kafka.default.api.timeout.ms", "500").option("kafka.request.timeout.ms", "500")
    with contextlib.suppress(Exception):
        kafka.load().write.format("delta").mode("append").save(f"{table}-of-kafka")
    spark.stop()


if __name__ == "__main__":
    train(sys.argv[1])
