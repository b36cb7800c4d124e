"""Errors of a sink's producer, by librdkafka's names: what they are called, and what they advise."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterUnreachableError,
    ConfigurationError,
    PublishFailedError,
    RowMisplacedError,
    RowTooLargeError,
    SinkFencedError,
    TopicNotFoundError,
    TransactionTimedOutError,
)
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane import Lane
from dagster_kafka_flip.sink.lane_failures import LaneFailures
from dagster_kafka_flip.sink.progress import Origin, Progress
from dagster_kafka_flip.source.cluster_client import BrokerErrors
from dagster_kafka_flip.source.connection import KafkaConnection

_CONNECTION = KafkaConnection(bootstrap_servers="broker:9092")


def _failure(code: int, age: float = 1.0, what: str = "records"):
    sink = KafkaSink(topic="t", transactional_id_prefix="s")
    return LaneFailures(_CONNECTION, sink, 2, BrokerErrors(_CONNECTION)).error(KafkaError(code), what, age)


@pytest.mark.parametrize(
    ("code", "age", "error", "output"),
    [
        (KafkaError._FENCED, 1, SinkFencedError, "taken over the transactional id s-2"),
        (KafkaError.INVALID_PRODUCER_EPOCH, 1, SinkFencedError, "taken over"),
        (KafkaError._FENCED, 301, TransactionTimedOutError, "open for 301 s, and transaction_timeout is 300 s"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 0, ClusterAccessError, "on the transactional id s-2"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 0, ClusterAccessError, "WRITE on the topics t and s-progress"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, 0, ConfigurationError, "transaction.max.timeout.ms"),
        (KafkaError.MSG_SIZE_TOO_LARGE, 0, RowTooLargeError, "max.message.bytes"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 0, TopicNotFoundError, "Create the topic"),
        (KafkaError.INVALID_TIMESTAMP, 0, RowMisplacedError, "message.timestamp.after.max.ms"),
        (KafkaError._MSG_TIMED_OUT, 1, ClusterUnreachableError, "Check the brokers"),
    ],
)
def test_each_failure_has_its_class_and_its_advice(code, age, error, output):
    found = _failure(code, age)
    assert type(found) is error
    assert output in str(found)


def test_only_a_transaction_whose_commit_was_not_asked_for_is_called_aborted():
    assert "so the brokers aborted it" in str(_failure(KafkaError._FENCED, 301))
    assert "so the brokers may have aborted it" in str(_failure(KafkaError._FENCED, 301, "commit_transaction"))


def test_an_unknown_broker_error_is_reported_by_its_name():
    found = _failure(KafkaError.POLICY_VIOLATION)
    assert type(found) is PublishFailedError
    assert "POLICY_VIOLATION" in str(found)


@pytest.mark.kafka
def test_progress_that_no_broker_took_is_an_error_under_each_guarantee(kafka, connection, topic):
    kafka.create(topic, 1, max_message_bytes="50")
    for guarantee in ("exactly_once", "at_least_once"):
        sink = KafkaSink(topic="t", transactional_id_prefix="s", delivery_guarantee=guarantee, progress_topic=topic)
        lane = Lane(connection, sink, 0)
        lane.open()
        progress = Progress(0, 1, "t", None, "a", "i", Origin(0, snapshot=False), 1, 0, "{}", "s")
        # Else the next run would not know what is published, and refuse to go on.
        with pytest.raises(RowTooLargeError):
            lane.commit(progress)
        lane.close()
