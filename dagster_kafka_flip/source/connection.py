"""How to reach a Kafka cluster, said once for the two clients that talk to it.

Planning talks to Kafka through librdkafka (confluent-kafka), reading through the Java client inside Spark. The two name
the same things differently; this module is the only place that knows both names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SecretStr, field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

_LOGIN_MODULES: Mapping[SaslMechanism, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class KafkaConnection(Settings):
    """Addresses of and credentials for one Kafka cluster.

    Attributes:
        bootstrap_servers: Comma-separated `host:port` pairs.
        security_protocol: As in Kafka's `security.protocol`. Default PLAINTEXT.
        sasl_mechanism: Needed with a SASL protocol.
        sasl_username: Needed with a SASL protocol.
        sasl_password: Needed with a SASL protocol. Never shown.
        ssl_ca_location: PEM file of the certificate authorities to trust. Default: those of the system and the JVM.
        ssl_certificate_location: PEM file of the client's certificate chain, for mutual TLS.
        ssl_key_location: PEM file of the client's private key (PKCS#8), for mutual TLS.
        ssl_key_password: The private key's password. Never shown.
        client_id: The client's name in the broker's logs and quotas.
        request_timeout: Seconds to wait for the answer to one metadata or offsets request. Default 20.
    """

    bootstrap_servers: str
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: SecretStr | None = None
    client_id: str = "dagster-kafka-flip"
    request_timeout: float = Field(default=20.0, gt=0)

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_addresses(cls, value: str) -> str:
        addresses = [address.strip() for address in value.split(",")]
        for address in addresses:
            host, colon, port = address.rpartition(":")
            if not colon or not host or not port.isdigit():
                msg = f"{address!r} is no address: bootstrap servers are host:port, several separated by commas"
                raise ValueError(msg)
        return ",".join(addresses)

    def model_post_init(self, context: Any, /) -> None:
        """Checks what only holds between fields.

        Raises:
            ConfigurationError: SASL without credentials, credentials without SASL, or half a client certificate.
        """
        del context
        uses_sasl = self.security_protocol.startswith("SASL")
        credentials = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if uses_sasl and None in credentials:
            msg = f"{self.security_protocol} needs sasl_mechanism, sasl_username and sasl_password"
            raise ConfigurationError(msg)
        if not uses_sasl and any(value is not None for value in credentials):
            msg = (
                f"SASL credentials are given but security_protocol is {self.security_protocol}, which would not use "
                "them: set it to SASL_SSL (or SASL_PLAINTEXT)"
            )
            raise ConfigurationError(msg)
        if (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            msg = "a client certificate needs both ssl_certificate_location and ssl_key_location"
            raise ConfigurationError(msg)

    def librdkafka_config(self) -> dict[str, Any]:
        """Settings of a librdkafka client. Holds secrets: for the client's constructor only."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "security.protocol": self.security_protocol,
            "socket.timeout.ms": int(self.request_timeout * 1000),
        }
        optional: dict[str, Any] = {
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": _reveal(self.sasl_password),
            "ssl.ca.location": self.ssl_ca_location,
            "ssl.certificate.location": self.ssl_certificate_location,
            "ssl.key.location": self.ssl_key_location,
            "ssl.key.password": _reveal(self.ssl_key_password),
        }
        return config | {key: value for key, value in optional.items() if value is not None}

    def java_config(self) -> dict[str, str]:
        """Settings of a Java client. Holds secrets: for Spark's reader only.

        Certificates are handed over as PEM text (KIP-651): Spark's executors need not have this machine's files.

        Raises:
            ConfigurationError: A PEM file can't be read.
        """
        config: dict[str, str] = {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "security.protocol": self.security_protocol,
        }
        if self.sasl_mechanism is not None:
            config["sasl.mechanism"] = self.sasl_mechanism
            config["sasl.jaas.config"] = (
                f"{_LOGIN_MODULES[self.sasl_mechanism]} required "
                f"username={_jaas_quote(self.sasl_username or '')} "
                f"password={_jaas_quote(_reveal(self.sasl_password) or '')};"
            )
        if self.ssl_ca_location is not None:
            config["ssl.truststore.type"] = "PEM"
            config["ssl.truststore.certificates"] = _read_pem(self.ssl_ca_location)
        if self.ssl_certificate_location is not None and self.ssl_key_location is not None:
            config["ssl.keystore.type"] = "PEM"
            config["ssl.keystore.certificate.chain"] = _read_pem(self.ssl_certificate_location)
            config["ssl.keystore.key"] = _read_pem(self.ssl_key_location)
        if self.ssl_key_password is not None:
            config["ssl.key.password"] = self.ssl_key_password.get_secret_value()
        return config


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _jaas_quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_pem(location: str) -> str:
    try:
        return Path(location).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the PEM file {location} can't be read: {type(error).__name__}"
        raise ConfigurationError(msg) from error
