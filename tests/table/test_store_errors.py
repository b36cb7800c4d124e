"""What S3's client says is followed by what to do. What a real one says of a wrong setting: tests/stores."""

from __future__ import annotations

import pytest
from pyspark.errors import SparkRuntimeException

from dagster_kafka_flip.table.store_errors import with_advice


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        (
            "s3a://lake/t: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided by",
            "Spark found no credentials: set AWS_ACCESS_KEY_ID",
        ),
        (
            "java.net.UnknownHostException: getFileStatus on s3a://lake/t: Received an UnknownHostException",
            "The host does not exist: check spark.hadoop.fs.s3a.endpoint",
        ),
        (
            "org.apache.hadoop.fs.s3a.AWSRedirectException: Received permanent redirect response to region eu-west-1",
            "set spark.hadoop.fs.s3a.endpoint.region",
        ),
        (
            "s3a://lake/t: (Service: S3, Status Code: 403, Error Code: RequestTimeTooSkewed)",
            "The clock of Spark's machine is wrong",
        ),
        (
            "software.amazon.awssdk.services.s3.model.S3Exception: (Service: S3, Status Code: 400): ExpiredToken",
            "The session token of these credentials has expired",
        ),
        (
            "java.lang.NoClassDefFoundError: com/amazonaws/services/dynamodbv2/AmazonDynamoDB",
            "add com.amazonaws:aws-java-sdk-dynamodb:1.12.262 to Spark's packages",
        ),
    ],
)
def test_an_error_of_a_store_is_followed_by_what_to_do(output, advice):
    reported = with_advice(SparkRuntimeException(output), "Run again")
    assert reported.startswith(f"SparkRuntimeException: {output}. ")
    assert advice in reported
    assert "Run again" not in reported


def test_another_error_is_passed_on():
    error = SparkRuntimeException("no such host as Kafka's: UnknownHostException.")
    assert with_advice(error, "Run again") == f"SparkRuntimeException: {error!s} Run again"
    assert with_advice(error) == "SparkRuntimeException: no such host as Kafka's: UnknownHostException"
