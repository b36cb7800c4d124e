"""What is made of a failure of Spark's Kafka reader. The texts are such as Spark 4.0 prints; no broker is there."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException, SparkRuntimeException

from dagster_kafka_flip.errors import ClusterAccessError, SparkSessionError, WriteFailedError
from dagster_kafka_flip.ingestion.batch_writer import check_reader
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

_REFUSED = "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [orders]"
_REFUSED_BY_CONNECT = _REFUSED.replace("org.", "(org.").replace(": Not", ") Not")
_TIMED_OUT = (
    "java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for "
    "a node assignment. Call: describeTopics"
)


def _check(cause: BaseException, attempt: int = 2, seconds: float = 31.0) -> None:
    # Nothing listens on port 1.
    connection = KafkaConnection(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="ann",
        sasl_password="pa55word",  # type: ignore[arg-type]
        request_timeout=0.2,
    )
    source = KafkaSource(topics=("orders",), connection=connection)
    failed = WriteFailedError("the write failed")
    failed.__cause__ = cause
    splits = [KafkaPartitionSplit(TopicPartition("orders", 0), 0, 10)]
    check_reader(failed, attempt, seconds, source, SplitEnumeratorContext(2), splits)


@pytest.mark.parametrize("text", [_REFUSED, _REFUSED_BY_CONNECT])
def test_a_right_that_only_spark_misses_is_named(text):
    with pytest.raises(ClusterAccessError) as refused:
        _check(SparkRuntimeException(f"Job aborted due to stage failure: ... {text}\n\tat org.apache..."))
    assert str(refused.value) == (
        "Kafka at 127.0.0.1:1 refuses the user ann the right to read the topic orders in Spark's reader. Grant READ on "
        "the topic orders, then run again"
    )


@pytest.mark.parametrize(
    "cause",
    [
        # Nobody reaches the brokers: the error stays as it is.
        SparkRuntimeException(_TIMED_OUT),
        SparkRuntimeException("org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given"),
        # What a user's own function says.
        PythonException(_REFUSED),
        ValueError(_REFUSED),
        SparkRuntimeException("[DIVIDE_BY_ZERO] Division by zero."),
    ],
)
def test_other_failures_stay_as_they_are(cause):
    _check(cause)


def test_the_brokers_are_asked_after_a_second_failure_of_a_try_that_can_not_have_read_much(monkeypatch):
    class AskedError(Exception):
        pass

    def ask(*_: object) -> None:
        raise AskedError

    monkeypatch.setattr(KafkaSource, "create_enumerator", ask)
    _check(SparkRuntimeException(_TIMED_OUT), attempt=1)
    # With a connection, or it would have failed sooner.
    _check(SparkRuntimeException(_TIMED_OUT), seconds=3600.0)
    for attempt, seconds in ((2, 31.0), (2, 600.0), (5, 3600.0)):
        with pytest.raises(AskedError):
            _check(SparkRuntimeException(_TIMED_OUT), attempt=attempt, seconds=seconds)
    with pytest.raises(AskedError):
        _check(SparkRuntimeException("ConfigException: No resolvable bootstrap urls given"), attempt=1)


def test_a_spark_without_kafkas_jars_is_told_which_ones_it_needs():
    with pytest.raises(
        SparkSessionError, match=r"can't read Kafka: its jars are missing\..* org.apache.spark:spark-sql-"
    ):
        _check(SparkRuntimeException("Failed to find data source: kafka. Please deploy the application as per the"))
