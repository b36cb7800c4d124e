"""Airflow's connections become ours, and their secrets are masked."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.sdk import Connection
from airflow.sdk.log import redact  # pyright: ignore[reportPrivateImportUsage] - what each of its logs goes through

from dagster_kafka_flip import KafkaConnection
from dagster_kafka_flip.airflow.kafka_flip_hook import KafkaFlipHook, kafka_connection
from dagster_kafka_flip.airflow.provider import provider_info
from dagster_kafka_flip.airflow.spark_settings import SparkSettings, spark_settings_of
from dagster_kafka_flip.errors import ConfigurationError


def of_provider(**extra: Any) -> Connection:
    settings = {name.replace("_", "."): value for name, value in extra.items()}
    return Connection(conn_id="orders_kafka", conn_type="kafka", extra=json.dumps(settings))


def of_form(extra: dict[str, Any] | None = None, **fields: Any) -> Connection:
    return Connection(conn_id="orders_kafka", conn_type="kafka_flip", extra=json.dumps(extra or {}), **fields)


def test_the_settings_of_the_kafka_providers_connection_are_taken():
    connection = kafka_connection(
        of_provider(
            bootstrap_servers="a:9092,b:9092",
            security_protocol="sasl_ssl",
            sasl_mechanisms="SCRAM-SHA-512",
            sasl_username="shop",
            sasl_password="pw-of-the-provider",
            ssl_ca_location="/etc/ca.pem",
            client_id="airflow",
            socket_timeout_ms=5000,
            reconnect_backoff_ms=200,
            socket_keepalive_enable=True,
            group_id="others",
            auto_offset_reset="latest",
            enable_auto_commit=False,
        )
    )
    assert connection == KafkaConnection(
        bootstrap_servers="a:9092,b:9092",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="shop",
        sasl_password="pw-of-the-provider",  # pyright: ignore[reportArgumentType]
        ssl_ca_location="/etc/ca.pem",
        client_id="airflow",
        request_timeout=5.0,
        properties={"reconnect.backoff.ms": "200"},  # pyright: ignore[reportArgumentType]
        librdkafka_properties={"socket.keepalive.enable": "true"},  # pyright: ignore[reportArgumentType]
    )
    assert "pw-of-the-provider" not in str(redact("login with pw-of-the-provider"))


def test_the_fields_of_our_own_form_are_taken():
    connection = kafka_connection(
        of_form(
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "ssl_ca_location": "",
                "ssl_key_password": None,
                "java_properties": '{"ssl.truststore.password": "pw-of-the-store", "plugin.token": "pw-of-a-plugin"}',
                "librdkafka_properties": {"socket.keepalive.enable": "true"},
            },
            host="a",
            port=9092,
            login="shop",
            password="pw-of-the-form",
        )
    )
    assert (connection.bootstrap_servers, connection.sasl_username) == ("a:9092", "shop")
    assert connection.librdkafka_config()["sasl.password"] == "pw-of-the-form"
    assert connection.java_config()["ssl.truststore.password"] == "pw-of-the-store"
    shown = str(redact("pw-of-the-form, pw-of-the-store and pw-of-a-plugin"))
    assert "pw-of" not in shown
    # Several hosts have their ports with them.
    assert kafka_connection(of_form(host="a:1,b:2", port=9092)).bootstrap_servers == "a:1,b:2"


def test_only_secrets_are_masked():
    of_java = {"ssl.endpoint.identification.algorithm": "https-of-java", "sasl.jaas.config": "pw-of-java"}
    of_librdkafka = {"sasl.kerberos.service.name": "kafka-of-a-realm", "ssl.key.pem": "key-of-a-client"}
    with contextlib.suppress(ConfigurationError):
        kafka_connection(of_form({"java_properties": of_java, "librdkafka_properties": of_librdkafka}, host="a:1"))
    shown = str(redact("https-of-java kafka-of-a-realm pw-of-java key-of-a-client"))
    assert shown == "https-of-java kafka-of-a-realm *** ***"


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (Connection(conn_id="db", conn_type="postgres"), "'postgres'; Kafka's are 'kafka'"),
        (of_provider(), "set bootstrap.servers in its extra"),
        (of_form(), "set its bootstrap servers"),
        (of_provider(bootstrap_servers="no port"), "'orders_kafka'.+expected comma-separated host:port pairs"),
        (
            of_provider(bootstrap_servers="a:1", socket_timeout_ms="soon"),
            "'orders_kafka'.+not a number of milliseconds",
        ),
        (
            Connection(conn_id="k", conn_type="kafka", extra='{"sasl.password": "x'),
            "'k': its extra is not JSON: .+char 18",
        ),
        (Connection(conn_id="k", conn_type="kafka", extra='["a:1"]'), "'k': its extra is not a JSON object"),
        (Connection(conn_id="k", conn_type="kafka_flip", host="a:1", extra="{"), "'k': its extra is not JSON"),
        (of_provider(bootstrap_servers="a:1", sasl_oauthbearer_config="x"), "only reaches the client that plans"),
        (of_provider(bootstrap_servers="a:1", ssl_ca_pem="x"), "only reaches the client that plans"),
        (of_form({"properties": "{"}, host="a:1"), "properties is not a JSON object"),
        (of_form({"sasl_mechanism": "PLAIN"}, host="a:1"), "security_protocol PLAINTEXT does not use them"),
    ],
)
def test_a_connection_that_does_not_fit_is_refused(connection: Connection, message: str):
    with pytest.raises(ConfigurationError, match=message):
        kafka_connection(connection)


def test_null_is_a_settings_default():
    given = of_provider(bootstrap_servers="a:1", sasl_password=None, socket_timeout_ms=None)
    assert kafka_connection(given) == KafkaConnection(bootstrap_servers="a:1")


def test_an_error_shows_no_secret():
    with pytest.raises(ConfigurationError) as error:
        kafka_connection(of_form({"sasl_mechanism": "PLAIN"}, host="a:1", password="pw-in-an-error"))
    assert "pw-in-an-error" not in str(error.value)


def test_a_connection_says_where_spark_is():
    def of_spark(kind: str, extra: dict[str, Any] | None = None, **fields: Any) -> SparkSettings:
        return spark_settings_of(Connection(conn_id="lake", conn_type=kind, extra=json.dumps(extra or {}), **fields))

    settings = {"queue": "night", "deploy-mode": "client", "spark-binary": "spark-submit", "spark.driver.memory": "2g"}
    assert of_spark("spark", settings, host="spark://master", port=7077) == SparkSettings(
        master="spark://master:7077", config={"spark.yarn.queue": "night", "spark.driver.memory": "2g"}
    )
    assert of_spark("spark", host="yarn") == SparkSettings(master="yarn")
    assert of_spark("spark_connect", host="sc://spark") == SparkSettings(remote="sc://spark:15002")
    assert of_spark(
        "spark_connect", {"use_ssl": True}, host="spark", port=443, login="etl", password="a token;of/spark"
    ) == SparkSettings(remote="sc://spark:443/;user_id=etl;token=a%20token%3Bof%2Fspark;use_ssl=true")
    assert "spark" not in str(redact("a%20token%3Bof%2Fspark, a token;of/spark"))
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("kafka", {"host": "a:1"}, "'kafka'; Spark's are 'spark' and 'spark_connect'"),
        ("spark", {}, "set its host"),
        ("spark", {"host": "yarn", "extra": {"deploy-mode": "cluster"}}, "deploy-mode is cluster"),
        ("spark", {"host": "yarn", "extra": {"executor": 3}}, "executor is unknown; .+ deploy-mode, keytab"),
    ]
    # Airflow itself goes on without settings if it can't read them.
    refused += [(kind, {"host": "a", "extra": ["night"]}, "not a JSON object") for kind in ("spark", "spark_connect")]
    for kind, fields, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            of_spark(kind, **fields)


def test_airflow_gets_the_connections_fields_by_their_names():
    (reported,) = provider_info()["connection-types"]
    taken = {"bootstrap_servers", "sasl_username", "sasl_password", "client_id", "request_timeout", "read_timeout"}
    assert {*reported["conn-fields"]} == {*KafkaConnection.model_fields} - taken
    assert (reported["connection-type"], reported["hook-name"]) == (KafkaFlipHook.conn_type, KafkaFlipHook.hook_name)


def test_airflow_gets_extras_in_its_own_form():
    info = provider_info()
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    modules = [
        name
        for kind in ("operators", "sensors", "triggers", "hooks")
        for each in info[kind]
        for name in each["python-modules"]
    ]
    classes = [*info["extra-links"], *(each["hook-class-name"] for each in info["connection-types"])]
    for name in modules:
        importlib.import_module(name)
    for name in classes:
        module, _, found = name.rpartition(".")
        assert hasattr(importlib.import_module(module), found)
