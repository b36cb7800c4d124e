"""What S3's client says is followed by what to do. What a real one says of a wrong setting: tests/stores."""

from __future__ import annotations

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, UnknownException

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.spark_error import told


def _told(error, otherwise=""):
    return str(TableError(*told("reading", error, otherwise))).removeprefix("reading: ")


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
            "software.amazon.awssdk.services.s3.model.S3Exception: (Service: S3, Status Code: 400): ExpiredToken",
            "The session token of these credentials has expired",
        ),
        ("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 1, 3, 4) are not contiguous", "Files of its _delta_log are"),
        ("java.lang.IllegalStateException: Could not find any delta files for version 4", "Files of its _delta_log"),
        (
            "java.lang.ClassNotFoundException: org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "Spark lacks Delta's jars. Start Spark, or its Connect server, with the packages org.apache.spark:",
        ),
        (
            "java.lang.NoClassDefFoundError: com/amazonaws/services/dynamodbv2/AmazonDynamoDB",
            "add com.amazonaws:aws-java-sdk-dynamodb:1.12.262 to Spark's packages",
        ),
    ],
)
def test_an_error_of_a_store_or_a_log_is_followed_by_what_to_do(output, advice):
    reported = _told(SparkRuntimeException(output), "Run again")
    assert reported.startswith(f"SparkRuntimeException: {output}. ")
    assert advice in reported
    assert "Run again" not in reported


@pytest.mark.parametrize(
    ("cause", "own"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:15002: Connection refused", True),
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:15002: Connection refused", False),
    ],
)
def test_a_connect_server_that_is_gone_is_to_be_started_again(cause, own):
    # What a Connect client gives up on.
    error = SparkConnectGrpcException(f'<_InactiveRpcError of RPC: status = UNAVAILABLE, details = "{cause}">')
    reported = _told(error, "Check the table's name")
    assert "The Spark Connect server does not answer: check its address" in reported
    assert ("dagster-kafka-flip spark start" in reported) is own
    assert "Check the table's name" not in reported


def test_a_connect_server_that_ended_within_its_answer_is_to_be_started_again():
    error = SparkConnectGrpcException("CANCELLED: Stream removed (RST_STREAM (Received RST_STREAM with error code 8))")
    reported = _told(error, "Check the table's name")
    assert "start it again, and run again" in reported
    assert "Check the table's name" not in reported


@pytest.mark.parametrize(
    "text",
    ["Cannot call methods on a stopped SparkContext.", "No active or default Spark session found SQLSTATE: XX000"],
)
def test_a_connect_server_that_shuts_down_is_to_be_started_again(text):
    reported = _told(UnknownException(text, reason="INTERNAL_SERVER_ERROR"), "Check the table's name")
    assert reported.endswith("start --daemon, if it is that one), and run again")
    # Without a server, somebody has stopped the session.
    assert _told(SparkRuntimeException(text), "Check the table's name").endswith(". Check the table's name")


def test_another_error_is_passed_on():
    error = SparkRuntimeException("no such host as Kafka's: UnknownHostException.")
    assert _told(error, "Run again") == f"SparkRuntimeException: {error!s} Run again"
    assert _told(error) == "SparkRuntimeException: no such host as Kafka's: UnknownHostException"
