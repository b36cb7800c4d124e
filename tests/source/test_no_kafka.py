"""Something else than Kafka answers at the address."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from dagster_kafka_flip.errors import ClusterUnreachableError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.broker_errors import who_answers
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
    assert str(error.value) == (
        f"Kafka at {http}: {http} is an HTTP server, not a Kafka broker. Nothing was written. Check the port in "
        "bootstrap_servers and any proxy in front of the broker, then run again"
    )


@pytest.mark.parametrize(
    ("size", "reported"),
    [
        (1213486160, "a:1 is an HTTP server, not a Kafka broker"),
        (352518912, "a:1 uses TLS and this client does not: set security_protocol to SSL or SASL_SSL"),
        (1397966893, "a:1 does not speak the Kafka protocol (its answer begins with b'SSH-')"),
        (-2, "a:1 does not speak the Kafka protocol (its answer begins with b'\\xff\\xff\\xff\\xfe')"),
    ],
)
def test_the_first_four_bytes_show_who_answers(size, reported):
    output = f"a:1/bootstrap: Receive failed: Invalid response size {size} (0..100000000): increase receive.message.max"
    assert who_answers(output) == reported
