"""KafkaClusterConfig: connection settings of one Kafka cluster, as Dagster config."""

# Without `from __future__ import annotations`, because Dagster inspects the types of the fields.

from collections.abc import Iterable
from typing import Any, NoReturn

from dagster import Config, EnvVar
from pydantic import Field, SecretStr

from dagster_kafka_flip.assets.dagster_internals import IntEnvVar
from dagster_kafka_flip.settings.base import CheckedModel
from dagster_kafka_flip.settings.hidden import hidden_values
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.properties import CLIENT_OF_FIELD

_STAND_INS = {"bootstrap_servers": "host:9092", "sasl_username": "user", "sasl_password": SecretStr("password")}


class KafkaClusterConfig(CheckedModel, Config):
    """One of several named clusters of a KafkaResource. Set passwords as `EnvVar`."""

    bootstrap_servers: str = Field(description="Comma-separated host:port pairs.")
    security_protocol: str = Field(
        default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as in Kafka's security.protocol."
    )
    sasl_mechanism: str | None = Field(
        default=None, description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER. Required with SASL."
    )
    sasl_username: str | None = Field(default=None, description="Only with PLAIN and SCRAM, which need it.")
    sasl_password: str | None = Field(
        default=None, repr=False, description="Only with PLAIN and SCRAM, which need it. Give it as an EnvVar."
    )
    ssl_ca_location: str | None = Field(
        default=None,
        description="PEM file with the CA certificates to trust. Default: the CAs of the system and the JVM.",
    )
    ssl_certificate_location: str | None = Field(
        default=None, description="PEM file of the client's certificate chain, for mutual TLS."
    )
    ssl_key_location: str | None = Field(
        default=None, description="PEM file of the client's private key, in PKCS#8, PKCS#1 or SEC1."
    )
    ssl_key_password: str | None = Field(
        default=None, repr=False, description="The private key's password, as an EnvVar."
    )
    client_id: str = Field(
        default="dagster-kafka-flip", description="The client's name in the broker's logs and quotas."
    )
    request_timeout: float = Field(default=20.0, description="Seconds to wait for one metadata or offsets request.")
    read_timeout: float = Field(
        default=120.0, description="Seconds that a Spark task waits for records before it fails."
    )
    properties: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Client settings without a field, for planning and reading, by the Java consumer's names.",
    )
    librdkafka_properties: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Settings of the planning client, by librdkafka's names; they override properties.",
    )
    java_properties: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Settings of Spark's Kafka client, by the Java consumer's names; they override properties.",
    )

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, hidden_values(getattr(self, name)) if name in CLIENT_OF_FIELD else value

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        super().__init__(*unnamed, **values)
        # The value of an EnvVar is not known yet, so addresses and credentials are not validated.
        known = {name: _STAND_INS.get(name, value) if is_env_var(value) else value for name, value in values.items()}
        if known.get("bootstrap_servers") is not None and not any(map(is_env_var, known.values())):
            fields: dict[str, Any] = {name: known[name] for name in known if name in KafkaClusterConfig.model_fields}
            KafkaConnection(**fields)

    def connection(self) -> KafkaConnection:
        """Returns the connection to the cluster.

        Raises:
            ConfigurationError: A field is malformed or contradicts another.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in KafkaClusterConfig.model_fields}
        for name in ("sasl_password", "ssl_key_password"):
            values[name] = None if values[name] is None else SecretStr(values[name])
        return KafkaConnection(**values)


def is_env_var(value: object) -> bool:
    """Whether a value is read from the environment later, so that it is not known yet."""
    return isinstance(value, (EnvVar, IntEnvVar))
