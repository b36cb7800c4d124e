"""Refusals that need no broker and no Spark to be shown."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from dagster_kafka_flip.errors import ClusterRequestError, SparkSessionError
from dagster_kafka_flip.session import check_session
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection


class _PlainSession:
    """A session that was started without Delta."""

    class conf:  # noqa: N801 - as Spark calls it
        @staticmethod
        def get(key, default=None):
            return default


def test_a_session_that_can_not_write_delta_is_refused():
    with pytest.raises(SparkSessionError, match=r"was started without spark\.sql\.extensions=io\.delta\."):
        check_session(_PlainSession())  # type: ignore[arg-type]


def test_what_a_broker_refuses_to_tell_is_named():
    # Nothing listens on port 1, and nothing is asked of it.
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    error = cluster._translate(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), "the end offsets")
    assert isinstance(error, ClusterRequestError)
    assert str(error).startswith("Kafka at 127.0.0.1:1 refused to tell the end offsets: CLUSTER_AUTHORIZATION_FAILED: ")
