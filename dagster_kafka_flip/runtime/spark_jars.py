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

# The same of what Amazon's clients bring, which would come before Spark's own from a class archive.
_AMAZON = ("software.amazon.awssdk:", "com.amazonaws:")
_NOT_FROM_AMAZON = (
    # All of Amazon's services in one jar of 559 MB. Who names parts of the SDK doesn't need it.
    "software.amazon.awssdk:bundle",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "io.netty:netty-buffer",
    "io.netty:netty-codec",
    "io.netty:netty-codec-http",
    "io.netty:netty-codec-http2",
    "io.netty:netty-common",
    "io.netty:netty-handler",
    "io.netty:netty-resolver",
    "io.netty:netty-transport",
    "io.netty:netty-transport-classes-epoll",
    "io.netty:netty-transport-native-unix-common",
    "joda-time:joda-time",
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
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


def jars_advice() -> str:
    """What to do if Spark lacks one of them."""
    return (
        f"Start Spark, or its Connect server, with the packages {', '.join(spark_packages())}. A session whose config "
        "has spark.jars or spark.jars.packages gets no others: leave these out, or name all jars there"
    )


def fetch_jars(packages: Sequence[str] = ()) -> list[str]:
    """Paths of a session's jars, downloaded on the first call and then cached.

    Without the jar for Avro, everything but `AvroFormat` works.

    Args:
        packages: Additional Maven coordinates.

    Raises:
        JarDownloadError: A download failed.
    """
    own = spark_packages()
    avro = [package for package in own if ":spark-avro_" in package]
    excludes = list(BROUGHT_BY_SPARK)
    if any(package.startswith(_AMAZON) for package in packages):
        named = {package.rpartition(":")[0] for package in packages}
        excludes += [name for name in _NOT_FROM_AMAZON if name not in named]
    jars = retrieve([*own, *packages], excludes=excludes, older=own, optional=avro)
    return [str(path) for path in jars]
