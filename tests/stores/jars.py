"""The jars with which Spark writes to S3, and Delta commits through DynamoDB."""

from __future__ import annotations

from pathlib import Path

from dagster_kafka_flip.runtime.spark_jars import fetch_jars

# As docs/deployment.md has them.
S3_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:s3:2.40.2",
    "software.amazon.awssdk:s3-transfer-manager:2.40.2",
    "software.amazon.awssdk:sts:2.40.2",
    # For the coordinator.
    "com.amazonaws:aws-java-sdk-dynamodb:1.12.262",
)


def s3_jars() -> list[str]:
    """Their paths, without those that every session has; they are downloaded unless they are in the cache."""
    every = {Path(jar).name for jar in fetch_jars()}
    return [jar for jar in fetch_jars(S3_PACKAGES) if Path(jar).name not in every]
