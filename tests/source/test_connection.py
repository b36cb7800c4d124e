"""KafkaConnection: the settings of both clients, and secrets that are never shown."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.connection import KafkaConnection

SECRET = "hunter2-secret"
KEY_SECRET = "key-secret-4711"


def _sasl(**changes):
    values: dict[str, Any] = {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "flip",
        "sasl_password": SECRET,
    }
    return KafkaConnection(**{**values, **changes})


def test_a_plain_connection_gives_both_clients_the_same_address():
    connection = KafkaConnection(bootstrap_servers=" a:9092, b.example:9093 ", request_timeout=3)
    assert connection.bootstrap_servers == "a:9092,b.example:9093"
    assert connection.librdkafka_config() == {
        "bootstrap.servers": "a:9092,b.example:9093",
        "client.id": "dagster-kafka-flip",
        "security.protocol": "PLAINTEXT",
        "socket.timeout.ms": 3000,
    }
    assert connection.java_config() == {
        "bootstrap.servers": "a:9092,b.example:9093",
        "client.id": "dagster-kafka-flip",
        "security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_sasl_credentials_are_told_to_both_clients_in_their_own_words(mechanism, module):
    connection = _sasl(sasl_mechanism=mechanism, client_id="me")
    assert connection.librdkafka_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "socket.timeout.ms": 20000,
        "sasl.mechanism": mechanism,
        "sasl.username": "flip",
        "sasl.password": SECRET,
    }
    assert connection.java_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="flip" password="{SECRET}";',
    }


def test_quotes_and_backslashes_in_a_password_do_not_end_the_java_setting():
    connection = _sasl(sasl_username='a"b', sasl_password='x"; y\\')
    assert connection.java_config()["sasl.jaas.config"].endswith(r'username="a\"b" password="x\"; y\\";')
    assert connection.librdkafka_config()["sasl.password"] == 'x"; y\\'


def test_certificates_are_handed_to_spark_as_text_and_to_librdkafka_as_files(tmp_path):
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----\n")
    connection = KafkaConnection(
        bootstrap_servers="a:1",
        security_protocol="SSL",
        ssl_ca_location=str(tmp_path / "ca"),
        ssl_certificate_location=str(tmp_path / "certificate"),
        ssl_key_location=str(tmp_path / "key"),
        ssl_key_password=KEY_SECRET,  # pyright: ignore[reportArgumentType]
    )
    java = connection.java_config()
    assert {key: value for key, value in java.items() if key.startswith("ssl.")} == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN ca-----\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN certificate-----\n",
        "ssl.keystore.key": "-----BEGIN key-----\n",
        "ssl.key.password": KEY_SECRET,
    }
    librdkafka = connection.librdkafka_config()
    assert {key: value for key, value in librdkafka.items() if key.startswith("ssl.")} == {
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "certificate"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": KEY_SECRET,
    }


def test_a_pem_file_that_can_not_be_read_is_named(tmp_path):
    missing = KafkaConnection(bootstrap_servers="a:1", security_protocol="SSL", ssl_ca_location=str(tmp_path / "no"))
    with pytest.raises(ConfigurationError) as error:
        missing.java_config()
    assert str(error.value) == f"the PEM file {tmp_path / 'no'} can't be read: FileNotFoundError"
    (tmp_path / "binary").write_bytes(b"\x80\x81")
    binary = KafkaConnection(bootstrap_servers="a:1", security_protocol="SSL", ssl_ca_location=str(tmp_path / "binary"))
    with pytest.raises(ConfigurationError, match=r"binary can't be read: UnicodeDecodeError$"):
        binary.java_config()


def test_secrets_are_in_no_text_of_a_connection():
    connection = _sasl()
    for text in (repr(connection), str(connection), f"{connection}", str(connection.model_dump())):
        assert SECRET not in text
    assert SECRET not in connection.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"bootstrap_servers": "nowhere"},
            "'nowhere' is no address: bootstrap servers are host:port, several separated by commas",
        ),
        (
            {"security_protocol": "TLS"},
            "security_protocol: Input should be 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL'",
        ),
        ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism: Input should be 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'"),
        ({"sasl_password": [SECRET]}, "sasl_password: Input should be a valid string"),
        ({"request_timeout": 0}, "request_timeout: Input should be greater than 0"),
        ({"sasl_pasword": SECRET}, "sasl_pasword: Extra inputs are not permitted"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_without_showing_a_secret(changes, message):
    with pytest.raises(ConfigurationError) as error:
        _sasl(**changes)
    assert str(error.value) == f"this KafkaConnection can't be: {message}"
    assert error.value.__cause__ is None
    assert SECRET not in str(error.value)
    assert SECRET not in repr(error.value)


@pytest.mark.parametrize("address", ["", "a", "a:", ":9092", "a:b", "a:1,,b:2", "a:1;b:x"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(
        ConfigurationError, match=r"is no address: bootstrap servers are host:port, several separated by"
    ):
        KafkaConnection(bootstrap_servers=address)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_password": SECRET},
            "SASL_SSL needs sasl_mechanism, sasl_username and sasl_password",
        ),
        (
            {"sasl_password": SECRET},
            (
                "SASL credentials are given but security_protocol is PLAINTEXT, which would not use them: set it to "
                "SASL_SSL (or SASL_PLAINTEXT)"
            ),
        ),
        (
            {"security_protocol": "SSL", "ssl_key_location": "/k"},
            "a client certificate needs both ssl_certificate_location and ssl_key_location",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, message):
    with pytest.raises(ConfigurationError) as error:
        KafkaConnection(bootstrap_servers="a:1", **values)
    assert str(error.value) == message


def test_a_connection_does_not_change():
    connection = KafkaConnection(bootstrap_servers="a:1")
    with pytest.raises(ValidationError, match=r"Instance is frozen"):
        connection.bootstrap_servers = "b:1"  # pyright: ignore[reportAttributeAccessIssue]
