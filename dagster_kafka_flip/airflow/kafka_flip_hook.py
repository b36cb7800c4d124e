"""KafkaFlipHook: a KafkaConnection from one of Airflow's connections."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from dagster_kafka_flip.airflow.given import check_conn_id, extra_of
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.settings.hidden import is_credential
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.properties import CONNECTION_FIELDS, is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Connection

_logger = logging.getLogger(__name__)

OWN_TYPE = "kafka_flip"
# The connection type of apache-airflow-providers-apache-kafka, whose extra has librdkafka's settings.
PROVIDER_TYPE = "kafka"

# Settings of the provider's consumers and producers, which say nothing about the connection: ours have their own.
_OF_OTHER_CLIENTS = """
    acks auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.size compression.type delivery.timeout.ms
    enable.auto.commit enable.auto.offset.store enable.idempotence enable.partition.eof error_cb group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms isolation.level linger.ms log_cb
    max.poll.interval.ms message.timeout.ms on_commit on_delivery partition.assignment.strategy retries
    session.timeout.ms stats_cb throttle_cb transactional.id
"""

_LOGIN_PREFIXES = ("sasl.", "ssl.", "https.", "enable.sasl.", "enable.ssl.")
# Besides those that their names tell: librdkafka's private key, and what may hold anything.
_MAY_BE_SECRET = frozenset({"ssl.key.pem", "sasl.oauthbearer.config", "sasl.kerberos.kinit.cmd"})
_JSON_FIELDS = ("properties", "librdkafka_properties", "java_properties")


class KafkaFlipHook(BaseHook):
    """Reads the settings of a Kafka cluster from a connection of type `kafka` or `kafka_flip`.

    Args:
        kafka_conn_id: Id of the connection.

    Raises:
        ConfigurationError: The id is not a text, or empty.
    """

    conn_name_attr = "kafka_conn_id"
    default_conn_name = "kafka_default"
    conn_type = OWN_TYPE
    hook_name = "Kafka (dagster-kafka-flip)"

    def __init__(self, kafka_conn_id: str = default_conn_name) -> None:
        super().__init__()
        check_conn_id(kafka_conn_id)
        self.kafka_conn_id = kafka_conn_id

    def get_conn(self) -> KafkaConnection:
        """Returns the connection's settings, and has Airflow mask its secrets in every log.

        Raises:
            ConfigurationError: The connection is of another type, or a setting is missing, malformed or unknown.
        """
        return kafka_connection(self.get_connection(self.kafka_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Asks the cluster for its id: what the button "Test" of a connection's form does."""
        try:
            with contextlib.closing(KafkaCluster(self.get_conn())) as cluster:
                return True, f"connected to the cluster {cluster.cluster_id()}"
        except KafkaFlipError as error:
            return False, str(error)


def kafka_connection(connection: Connection) -> KafkaConnection:
    """Returns the settings of one of Airflow's connections, and has Airflow mask its secrets in every log."""
    readers: dict[str, Callable[[Connection], dict[str, Any]]] = {PROVIDER_TYPE: _of_librdkafka, OWN_TYPE: _of_fields}
    read = readers.get(connection.conn_type or "")
    if read is None:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has the type {connection.conn_type!r}; Kafka's are "
            f"{PROVIDER_TYPE!r} (of Airflow's Kafka provider) and {OWN_TYPE!r}"
        )
    values = read(connection)
    if not values.get("bootstrap_servers"):
        where = "bootstrap.servers in its extra" if read is _of_librdkafka else "its bootstrap servers"
        raise ConfigurationError(f"the connection {connection.conn_id!r} has no address of the cluster: set {where}")
    for secret in _secrets(values):
        mask_secret(secret)
    try:
        return KafkaConnection(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"the connection {connection.conn_id!r}: {error}") from None


def _of_fields(connection: Connection) -> dict[str, Any]:
    """The settings of a connection of our own type: its form has a field for each."""
    extra = {name: value for name, value in extra_of(connection).items() if value is not None and value != ""}
    for name in _JSON_FIELDS:
        # The form's fields hold text, an API's or a secrets backend's extra may hold an object.
        if isinstance(extra.get(name), str):
            try:
                extra[name] = json.loads(extra[name])
            except ValueError:
                msg = f"the connection {connection.conn_id!r}: {name} is not a JSON object"
                raise ConfigurationError(msg) from None
    host = connection.host
    given = {
        # A connection's URI has the port apart.
        "bootstrap_servers": f"{host}:{connection.port}" if host and connection.port and ":" not in host else host,
        "sasl_username": connection.login,
        "sasl_password": connection.password,
    }
    return {**extra, **{name: value for name, value in given.items() if value}}


def _of_librdkafka(connection: Connection) -> dict[str, Any]:
    """The settings of a connection of the Kafka provider's type: librdkafka's settings in its extra."""
    values: dict[str, Any] = {}
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    left: list[str] = []
    for name, value in extra_of(connection).items():
        if value is None:
            # As for librdkafka's Python client: the default.
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name == "socket.timeout.ms":
            try:
                values["request_timeout"] = int(text) / 1000
            except ValueError:
                msg = f"the connection {connection.conn_id!r}: {name} is not a number of milliseconds"
                raise ConfigurationError(msg) from None
        elif name in CONNECTION_FIELDS:
            values[CONNECTION_FIELDS[name]] = text.upper() if name == "security.protocol" else text
        elif name in _OF_OTHER_CLIENTS.split():
            left.append(name)
        elif is_shared(name):
            shared[name] = text
        elif name.startswith(_LOGIN_PREFIXES) or name == "oauth_cb":
            raise ConfigurationError(
                f"the connection {connection.conn_id!r}: {name} only reaches the client that plans. Spark's client "
                "would fail to log in",
                f"Use a connection of type {OWN_TYPE!r}: it has librdkafka_properties and java_properties, for the "
                "settings of each",
            )
        else:
            own[name] = text
    if left:
        _logger.info(
            "the connection %r has settings that are not used, because the source or sink has its own, and no consumer "
            "group is joined: %s",
            connection.conn_id,
            ", ".join(sorted(left)),
        )
    return {**values, "properties": shared, "librdkafka_properties": own}


def _secrets(values: Mapping[str, Any]) -> list[str]:
    """The values that no log may show. No others: each place that has the same text would be masked, too."""
    secrets = [values.get("sasl_password"), values.get("ssl_key_password")]
    for field in _JSON_FIELDS:
        settings = values.get(field)
        if isinstance(settings, dict):
            secrets += [value for name, value in settings.items() if is_credential(str(name)) or name in _MAY_BE_SECRET]
    return [str(secret) for secret in secrets if secret]
