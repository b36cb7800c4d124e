"""Prints the jars for the installed pyspark, for the tests on versions other than the pinned ones.

Where the token provider of that very version can't be had, the one of 4.0.0 takes its place: it is only asked when
Kafka hands out delegation tokens.
"""

from __future__ import annotations

import sys

from dagster_kafka_flip.errors import JarDownloadError
from dagster_kafka_flip.jars import retrieve
from dagster_kafka_flip.session import BROUGHT_BY_SPARK, fetch_jars, spark_packages

TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"  # noqa: S105 - an artifact's name

try:
    jars = fetch_jars()
except JarDownloadError:
    sys.stderr.write(f"{TOKEN_PROVIDER} of this version can't be had; taking that of 4.0.0\n")
    without = retrieve(spark_packages(), excludes=[*BROUGHT_BY_SPARK, TOKEN_PROVIDER])
    # The Kafka client has to be the one that the newer source asks for, so the provider comes alone.
    provider = retrieve([f"{TOKEN_PROVIDER}:4.0.0"], excludes=[*BROUGHT_BY_SPARK, "org.apache.kafka:kafka-clients"])
    jars = [str(path) for path in [*without, *provider]]
sys.stdout.write(",".join(jars))
