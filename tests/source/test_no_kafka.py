"""Something else than Kafka answers at the address."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from dagster_kafka_flip.errors import ClusterUnreachableError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster_client import BrokerErrors
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource


@pytest.fixture
def http():
    """The address of a server that answers whatever it is sent as a web server does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(1024)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_web_server_in_kafkas_place_is_named_before_the_time_is_over(http):
    source = KafkaSource(topics=("t",), connection=KafkaConnection(bootstrap_servers=http, request_timeout=60))
    begin = time.monotonic()
    with pytest.raises(ClusterUnreachableError) as error:
        source.create_enumerator(SplitEnumeratorContext()).start()
    assert time.monotonic() - begin < 30
    told = (
        f"Kafka at {http}: what answers at {http} does not speak the Kafka protocol with security_protocol PLAINTEXT. "
    )
    assert str(error.value).startswith(told)


def test_the_clients_advice_to_allow_larger_answers_is_not_passed_on():
    # As of an advertised address that leads to a TLS listener, when another broker has answered before.
    errors = BrokerErrors(KafkaConnection(bootstrap_servers="one:9092"))
    size = "Invalid response size 352518400 (0..100000000): increase receive.message.max.bytes"
    errors.add(KafkaError(KafkaError._BAD_MSG, f"two:9093/2: Receive failed: {size}"))
    assert errors.reason("timed out") == "what answers at two:9093 does not speak the Kafka protocol"


def test_a_broker_that_hangs_is_waited_for():
    quick: Any = {"api.version.request.timeout.ms": "1000"}
    # The system accepts connections for a process that never looks at them.
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        connection = KafkaConnection(bootstrap_servers=address, request_timeout=5, librdkafka_properties=quick)
        with pytest.raises(ClusterUnreachableError) as error:
            KafkaSource(topics=("t",), connection=connection).create_enumerator(SplitEnumeratorContext()).start()
    told = (
        f"Kafka at {address} did not return the cluster's id within 5 s: connections are accepted, but not answered. "
    )
    assert str(error.value).startswith(told)
