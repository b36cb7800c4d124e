"""The jars that a Spark session needs to read Kafka, decode Avro, and write Delta."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

from packaging.version import Version

from dagster_kafka_flip.runtime.jars import retrieve

if TYPE_CHECKING:
    from collections.abc import Sequence

# Part of Spark. Downloading it would cost 60 MB, and every session a copy.
BROUGHT_BY_SPARK = (
    "org.scala-lang:scala-library",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.slf4j:slf4j-api",
    "org.lz4:lz4-java",
    "org.xerial.snappy:snappy-java",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "org.antlr:antlr4-runtime",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
)


def spark_packages() -> tuple[str, ...]:
    """Maven coordinates of the Kafka source, Avro and Delta for the installed pyspark and delta-spark.

    From Delta 4.1 on, Delta's artifact name includes Spark's version.
    """
    spark = Version(importlib.metadata.version("pyspark"))
    delta = Version(importlib.metadata.version("delta-spark"))
    infix = f"_{spark.major}.{spark.minor}" if (delta.major, delta.minor) >= (4, 1) else ""
    return (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
        f"org.apache.spark:spark-avro_2.13:{spark}",
        f"io.delta:delta-spark{infix}_2.13:{delta}",
    )


def fetch_jars(packages: Sequence[str] = ()) -> list[str]:
    """Paths of a session's jars, downloaded on the first call and then cached.

    Args:
        packages: Additional Maven coordinates.

    Without the jar for Avro, everything but `AvroFormat` works.

    Raises:
        JarDownloadError: A download failed.
    """
    own = spark_packages()
    avro = [package for package in own if ":spark-avro_" in package]
    jars = retrieve([*own, *packages], excludes=BROUGHT_BY_SPARK, older=own, optional=avro)
    return [str(path) for path in jars]
