"""Brokers that don't let a client in: each refusal has its own text, soon, and nothing else is printed."""

from __future__ import annotations

import logging
import time

import pytest

from dagster_kafka_flip.errors import ClusterAccessError, ClusterUnreachableError
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from tests.secured_broker import WRONG_PASSWORD, SecuredBroker

pytestmark = pytest.mark.kafka

# Long, so that an answer within it was not waited for.
_REQUEST_SECONDS = 120.0
_SOON_SECONDS = 40.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        broker.add_user()
        yield broker


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("password", ClusterAccessError, "refuses the login of the user ann: SASL authentication error"),
        ("password and a broker that is down", ClusterAccessError, "refuses the login of the user ann"),
        ("SCRAM password", ClusterAccessError, "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("mechanism", ClusterAccessError, "broker's supported mechanisms: SCRAM-SHA-256"),
        ("authority", ClusterAccessError, "and is signed by a CA in /"),
        ("no authority", ClusterAccessError, "in place of which you can set ssl_ca_location"),
        ("address", ClusterAccessError, "certificate is valid today, names this address"),
        ("expired", ClusterAccessError, "certificate is valid today, names this address"),
        ("no certificate", ClusterAccessError, "set ssl_certificate_location and ssl_key_location"),
        ("no TLS", ClusterUnreachableError, "uses TLS or expects another security_protocol than PLAINTEXT"),
        ("no TLS, with a protocol", ClusterUnreachableError, "uses TLS or expects another security_protocol"),
        ("no SASL", ClusterUnreachableError, "expects another security_protocol than PLAINTEXT"),
        ("TLS", ClusterAccessError, "Check that the listener uses TLS (security_protocol is SSL)"),
        ("name", ClusterUnreachableError, "can't be resolved: Failed to resolve 'nowhere.invalid:9092'"),
    ],
)
def test_a_refusal_is_reported_soon_and_once(secured, caplog, capfd, what, error, words):
    connection = KafkaConnection(**secured.refused()[what], request_timeout=_REQUEST_SECONDS)
    started = time.monotonic()
    with caplog.at_level(logging.INFO), pytest.raises(error) as raised:
        KafkaCluster(connection).list_topics()
    assert time.monotonic() - started < _SOON_SECONDS
    message = str(raised.value)
    assert words in message
    assert connection.bootstrap_servers in message
    assert WRONG_PASSWORD not in message
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("way", ["tls", "tls_encrypted", "plain", "scram"])
def test_the_right_credentials_are_accepted(secured, way):
    cluster = KafkaCluster(KafkaConnection(**secured.connections()[way]))
    assert cluster.cluster_id() is not None
