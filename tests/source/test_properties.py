"""The clients' settings: each has one place, and reaches the clients that have it."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source import properties
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.properties import Client, check_properties, java_properties, librdkafka_properties

SECRET = "hunter2-secret"


def _refusal(name, client=Client.BOTH, *, connection=False):
    try:
        check_properties({name: SECRET}, client, connection=connection)
    except ValueError as error:
        refusal = error
    else:
        return None
    assert SECRET not in repr(refusal)
    assert refusal.__cause__ is None
    return str(refusal)


def _refusal_of_librdkafka(config):
    try:
        AdminClient(config, logger=logging.getLogger("test"))
    except KafkaException as error:
        return error.args[0].str()
    return None


def test_the_tables_fit_each_other_and_librdkafka():
    translations = properties._TRANSLATIONS
    assert len(set(translations.values())) == len(translations)
    for table in (properties._OWNED_PROPERTIES, properties._REFUSED_PROPERTIES, properties.CONNECTION_FIELDS):
        assert not set(table) & set(translations)
    unknown = [
        name
        for name in sorted(translations.values())
        # Not a value that anything takes: no client is to start.
        if f'No such configuration property: "{name}"' in (_refusal_of_librdkafka({name: "\x01", "no.such": ""}) or "")
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("shared", "reported"),
    [
        ({"send.buffer.bytes": "65536"}, {"socket.send.buffer.bytes": "65536"}),
        ({"metadata.max.age.ms": "60000"}, {"topic.metadata.refresh.interval.ms": "60000"}),
        ({"metadata.max.age.ms": "0"}, {"topic.metadata.refresh.interval.ms": "1"}),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"ssl.endpoint.identification.algorithm": "https"}, {"ssl.endpoint.identification.algorithm": "https"}),
        (
            {"sasl.oauthbearer.client.credentials.client.id": "i", "sasl.oauthbearer.scope": " s "},
            {"sasl.oauthbearer.client.id": "i", "sasl.oauthbearer.scope": " s "},
        ),
        ({"sasl.oauthbearer.assertion.template.file": "/f"}, {"sasl.oauthbearer.assertion.jwt.template.file": "/f"}),
        ({"fetch.max.bytes": "1", "max.poll.records": "1", "allow.auto.create.topics": "true"}, {}),
    ],
)
def test_a_shared_setting_is_translated_for_librdkafka(shared, reported):
    check_properties(shared, Client.BOTH, connection=True)
    assert librdkafka_properties(shared, {}) == reported
    assert java_properties(shared, {}) == shared


def test_a_clients_own_settings_win():
    shared = {"receive.buffer.bytes": "1", "sasl.oauthbearer.client.credentials.client.id": "a", "fetch.min.bytes": "1"}
    assert java_properties(shared, {"fetch.min.bytes": "2"}) == {**shared, "fetch.min.bytes": "2"}
    own = {"socket.receive.buffer.bytes": "2", "sasl.oauthbearer.client.credentials.client.id": "b", "log_level": "7"}
    assert librdkafka_properties(shared, own) == {
        "socket.receive.buffer.bytes": "2",
        "sasl.oauthbearer.client.id": "b",
        "log_level": "7",
    }


def test_a_config_provider_is_javas_alone():
    given_properties = {"config.providers": "file", "config.providers.file.class": "F"}
    check_properties(given_properties, Client.BOTH)
    assert java_properties(given_properties, {}) == given_properties
    assert librdkafka_properties(given_properties, {}) == {}


@pytest.mark.parametrize(
    ("name", "client", "message"),
    [
        ("kafka.max.poll.records", Client.BOTH, "without the prefix: max.poll.records"),
        ("socket.send.buffer.bytes", Client.JAVA, "is a librdkafka name: the Java consumer's name is"),
        ("receive.buffer.bytes", Client.LIBRDKAFKA, "is a Java consumer name: librdkafka's name is socket.receive"),
        ("commit.offsets.on.checkpoint", Client.BOTH, "has no effect: use commit_offsets"),
        ("partition.discovery.interval.ms", Client.BOTH, "has no effect, because every plan"),
        ("interceptor.classes", Client.BOTH, "is rejected by Spark, because interceptors could change records"),
        ("session.timeout.ms", Client.JAVA, "has no effect, because the consumer group is never joined"),
        ("client.rack", Client.LIBRDKAFKA, "belongs to the source: use client_rack"),
        ("request.timeout.ms", Client.BOTH, "belongs to the connection: use its request_timeout"),
        ("socket.timeout.ms", Client.LIBRDKAFKA, "belongs to the connection: use its request_timeout"),
        ("sasl.jaas.config", Client.JAVA, "belongs to the connection: use the connection's fields"),
        ("enable.ssl.certificate.verification", Client.LIBRDKAFKA, "belongs to the connection: use the connection's"),
    ],
)
def test_a_name_that_can_not_be_in_a_source_is_refused_with_the_way_out(name, client, message):
    refusal = _refusal(name, client) or ""
    assert f"the property {name} " in refusal
    assert message in refusal


@pytest.mark.parametrize(
    ("name", "client", "message"),
    [
        ("ssl.ca.location", Client.LIBRDKAFKA, "has its own field: use ssl_ca_location"),
        ("kafka.bootstrap.servers", Client.BOTH, "has its own field: use bootstrap_servers"),
        ("socket.timeout.ms", Client.LIBRDKAFKA, "has its own field: use request_timeout"),
        ("group.id", Client.JAVA, "belongs to the source: use group_id"),
        ("ssl.cipher.suites", Client.BOTH, "does not translate for librdkafka: put it in java_properties, and"),
        ("ssl.ca.pem", Client.BOTH, "does not translate for librdkafka"),
        ("sasl.oauthbearer.scop", Client.BOTH, "(did you mean sasl.oauthbearer.scope?): put it in"),
        ("enable.ssl.certificate.verification", Client.BOTH, "does not translate for librdkafka"),
        ("sasl.oauthbearer.client.id", Client.BOTH, "is a librdkafka name: the Java consumer's name is sasl.oauth"),
        ("request.timeout.ms", Client.BOTH, "and java_properties for requests of Spark"),
    ],
)
def test_a_name_that_can_not_be_in_a_connection_is_refused_with_the_way_out(name, client, message):
    refusal = _refusal(name, client, connection=True) or ""
    assert f"the property {name} " in refusal
    assert message in refusal


@pytest.mark.parametrize(
    ("name", "client"),
    [
        ("sasl.kerberos.service.name", Client.BOTH),
        ("sasl.jaas.config", Client.JAVA),
        ("sasl.kerberos.keytab", Client.LIBRDKAFKA),
        ("ssl.cipher.suites", Client.LIBRDKAFKA),
        ("ssl.cipher.suites", Client.JAVA),
        ("request.timeout.ms", Client.JAVA),
        ("max.poll.records", Client.BOTH),
    ],
)
def test_a_connection_takes_properties_that_have_no_field(name, client):
    assert _refusal(name, client, connection=True) is None


def test_a_value_that_librdkafka_can_not_have_is_refused_with_the_way_out():
    connection = KafkaConnection(
        bootstrap_servers="localhost:9", properties={"connections.max.idle.ms": SecretStr("-1")}
    )
    with pytest.raises(ConfigurationError, match=r"connections\.max\.idle\.ms.*outside allowed range.*java_properties"):
        KafkaCluster(connection)


def test_what_nothing_here_knows_is_passed_on():
    new = {"a.setting.of.next.year": "1"}
    for client in Client:
        check_properties(new, client)
    assert java_properties(new, {}) == java_properties({}, new) == librdkafka_properties({}, new) == new
    assert librdkafka_properties(new, {}) == {}
    assert 'No such configuration property: "a.setting' in (_refusal_of_librdkafka(new) or "")


@given(name=st.text(max_size=40), client=st.sampled_from(Client), connection=st.booleans())
def test_any_text_as_a_name_is_judged_without_its_value(name, client, connection):
    _refusal(name, client, connection=connection)
