"""Settings of a Spark session that reads Kafka and writes Delta."""

from __future__ import annotations

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

# Each read of Kafka has its own group, so Spark never reuses a cached consumer; each caches prefetched records, which
# after some runs in one session would fill the heap.
_KAFKA_SETTINGS = {
    "spark.kafka.consumer.cache.timeout": "1s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "1s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "1s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
}


# Parquet looks at the size of what it has buffered after a hundred rows at the earliest: half a gigabyte, if each has
# five megabytes. Behind small rows it looks after ten thousand more. Spark reads a large column of a block into twice
# its memory: of Parquet's usual 128 MB, two tasks fill a gigabyte.
PARQUET_SETTINGS = {
    "parquet.block.size": str(32 << 20),
    **{
        f"parquet.{what}.size.row.check.{bound}": rows
        for what in ("page", "block")
        for bound, rows in (("min", "1"), ("max", "10"))
    },
}


def session_settings() -> dict[str, str]:
    """Settings that a running session accepts: UTC, the faster Kafka source, cheap times and small commits."""
    return {
        "spark.sql.session.timeZone": "UTC",
        # The default list without Kafka, whose version 2 source avoids a conversion to rows.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        # Spark's default, INT96, is slower to write and has no statistics in Parquet.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # 50 tasks to read a log of a few files take longer than reading the files.
        "spark.databricks.delta.snapshotPartitions": "2",
        # From Delta 4.1 on, a write would otherwise follow a RESTORE that was committed in its middle.
        "spark.databricks.delta.featureEnablement.conflictResolution.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
        # To find the last change of a key, Spark keeps 4,096 of its changes in memory before it can spill them.
        "spark.sql.windowExec.buffer.in.memory.threshold": "32",
    }


def own_settings() -> dict[str, str]:
    """All settings of a session that this package starts."""
    return {
        **session_settings(),
        **_KAFKA_SETTINGS,
        **{f"spark.hadoop.{name}": value for name, value in PARQUET_SETTINGS.items()},
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        # Otherwise each operation on a column asks the JVM several more times, to note its line for errors.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
