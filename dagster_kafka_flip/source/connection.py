"""Connection settings of a Kafka cluster, shared by the two clients that use it.

Planning uses librdkafka (confluent-kafka); reading uses the Java client in Spark. They have different names for the
same settings; only this module and `properties` know both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.hidden import marked_as_secret
from dagster_kafka_flip.source import properties as clients
from dagster_kafka_flip.source.properties import CLIENT_OF_FIELD, check_properties

SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

_LOGIN_MODULES: Mapping[SaslMechanism, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

_PORTS = range(1, 65536)
# The pattern that both clients accept. Each client validates the host name itself.
_ADDRESS = re.compile(
    r"((PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(\[[^\s\[\]/;]+\]|[^\s\[\]/;]+):(?P<port>[0-9]{1,5})", re.IGNORECASE
)
# One day: avoids overflows in either client.
_LONGEST_SECONDS = 86_400.0

# Properties, by the names of either client, that each field sets besides the property of the same name.
_COVERED_BY_FIELDS: Mapping[str, tuple[str, ...]] = {
    "sasl_password": ("sasl.jaas.config",),
    "ssl_ca_location": ("ssl.ca.", "ssl.truststore."),
    "ssl_certificate_location": ("ssl.certificate.", "ssl.key.", "ssl.keystore."),
}


class KafkaConnection(Settings):
    """Addresses and credentials of one Kafka cluster. Passwords and values of properties are never shown.

    Attributes:
        bootstrap_servers: Comma-separated `host:port` pairs.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as in Kafka's `security.protocol`.
        sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER. Required with a SASL protocol.
        sasl_username: Required with PLAIN and SCRAM; not allowed otherwise.
        sasl_password: Required with PLAIN and SCRAM; not allowed otherwise.
        ssl_ca_location: PEM file with the CA certificates to trust. Default: the CAs of the system and the JVM.
        ssl_certificate_location: PEM file of the client's certificate chain, for mutual TLS.
        ssl_key_location: PEM file of the client's private key, for mutual TLS. PKCS#8, PKCS#1 or SEC1.
        ssl_key_password: The private key's password.
        client_id: The client's name in the broker's logs and quotas.
        request_timeout: Seconds to wait for the answer to one metadata or offsets request.
        read_timeout: Seconds that a Spark task waits for records before it fails.
        properties: Settings without a field, for both clients, by the Java consumer's names.
        librdkafka_properties: Settings of the planning client, by librdkafka's names; they override `properties`.
        java_properties: Settings of Spark's Kafka client, by the Java consumer's names; they override `properties`.
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
    request_timeout: float = Field(default=20.0, gt=0, le=_LONGEST_SECONDS)
    read_timeout: float = Field(default=120.0, gt=0, le=_LONGEST_SECONDS)
    properties: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    librdkafka_properties: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    java_properties: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_addresses(cls, value: str) -> str:
        if "@" in value:
            # Not shown: what is before it may be a password.
            msg = "bootstrap_servers: no host has an @; give a user and a password as sasl_username and sasl_password"
            raise ValueError(msg)
        addresses = [address.strip() for address in value.split(",")]
        for address in addresses:
            found = _ADDRESS.fullmatch(address)
            if found is None or int(found["port"]) not in _PORTS:
                raise ValueError(f"invalid bootstrap server {address!r}: expected comma-separated host:port pairs")
        return ",".join(addresses)

    @field_validator(*CLIENT_OF_FIELD)
    @classmethod
    def _check_properties(cls, properties: Mapping[str, SecretStr], info: ValidationInfo) -> Mapping[str, SecretStr]:
        check_properties(properties, CLIENT_OF_FIELD[info.field_name or ""], connection=True)
        return dict(properties)

    def model_post_init(self, context: Any, /) -> None:
        del context
        self._check_sasl()
        if (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            raise ConfigurationError("a client certificate needs both ssl_certificate_location and ssl_key_location")
        for field, prefixes in _COVERED_BY_FIELDS.items():
            contradicting = [name for name in self._property_names() if name.startswith(prefixes)]
            if contradicting and getattr(self, field) is not None:
                raise ConfigurationError(
                    f"the property {contradicting[0]} contradicts {field}, which applies to both clients: remove one "
                    "of the two"
                )

    def _property_names(self) -> list[str]:
        return [*self.properties, *self.librdkafka_properties, *self.java_properties]

    def _check_sasl(self) -> None:
        credentials = (self.sasl_username, self.sasl_password)
        if not self.security_protocol.startswith("SASL"):
            self._check_sasl_is_unused()
        elif self.sasl_mechanism is None:
            msg = f"{self.security_protocol} needs sasl_mechanism, and for PLAIN and SCRAM a username and a password"
            raise ConfigurationError(msg)
        elif self.sasl_mechanism in _LOGIN_MODULES:
            if None in credentials:
                msg = f"{self.security_protocol} needs sasl_mechanism, sasl_username and sasl_password"
                raise ConfigurationError(msg)
        elif credentials != (None, None):
            raise ConfigurationError(
                f"sasl_username and sasl_password are for PLAIN and SCRAM, not for {self.sasl_mechanism}: remove "
                "them, and configure each client's login in java_properties and librdkafka_properties"
            )

    def _check_sasl_is_unused(self) -> None:
        remedy = "set it to SASL_SSL (or SASL_PLAINTEXT)"
        if any(value is not None for value in (self.sasl_mechanism, self.sasl_username, self.sasl_password)):
            raise ConfigurationError(
                f"SASL credentials are given, but security_protocol {self.security_protocol} does not use them: "
                f"{remedy}"
            )
        for name in self._property_names():
            if name.startswith("sasl."):
                raise ConfigurationError(
                    f"the property {name} is given, but security_protocol {self.security_protocol} does not use it: "
                    f"{remedy}"
                )

    @property
    def user(self) -> str:
        """The login's principal for messages, as far as it is known."""
        if self.sasl_username is not None:
            return f"the user {self.sasl_username}"
        if self.ssl_certificate_location is not None:
            return f"the owner of the certificate {self.ssl_certificate_location}"
        return "this client"

    def librdkafka_config(self) -> dict[str, Any]:
        """Settings of a librdkafka client. Contains secrets: pass them to the client's constructor only."""
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
        own = clients.librdkafka_properties(_reveal_all(self.properties), _reveal_all(self.librdkafka_properties))
        return own | config | {key: value for key, value in optional.items() if value is not None}

    def java_config(self) -> dict[str, str]:
        """Settings of a Java client. Contains secrets: pass them to Spark's reader only.

        Certificates are passed as PEM text (KIP-651), because Spark's executors may not have this machine's files.
        """
        config: dict[str, str] = {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "security.protocol": self.security_protocol,
        }
        if self.sasl_mechanism is not None:
            config["sasl.mechanism"] = self.sasl_mechanism
            login_module = _LOGIN_MODULES.get(self.sasl_mechanism)
            if login_module is not None:
                config["sasl.jaas.config"] = (
                    f"{login_module} required "
                    f"username={_jaas_quote(self.sasl_username or '')} "
                    f"password={_jaas_quote(_reveal(self.sasl_password) or '')};"
                )
        if self.ssl_ca_location is not None:
            config["ssl.truststore.type"] = "PEM"
            config["ssl.truststore.certificates"] = read_certificates("ssl_ca_location", self.ssl_ca_location)
        if self.ssl_certificate_location is not None and self.ssl_key_location is not None:
            config["ssl.keystore.type"] = "PEM"
            config["ssl.keystore.certificate.chain"] = read_certificates(
                "ssl_certificate_location", self.ssl_certificate_location
            )
            config["ssl.keystore.key"] = read_private_key(self.ssl_key_location, _reveal(self.ssl_key_password))
        own = clients.java_properties(_reveal_all(self.properties), _reveal_all(self.java_properties))
        if "ssl.keystore.key" in (merged := own | config):
            merged["ssl.keystore.key"] = marked_as_secret(merged["ssl.keystore.key"])
        return merged


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _reveal_all(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def _jaas_quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s[^-]*-----END CERTIFICATE-----")


def read_certificates(field: str, location: str) -> str:
    """Returns the certificates of a PEM file, without the text between them."""
    found = _CERTIFICATE.findall(_read(field, location))
    if not found:
        msg = f"{field}: the file {location} has no certificate (no lines BEGIN CERTIFICATE to END CERTIFICATE)"
        raise ConfigurationError(msg)
    return "\n".join(found) + "\n"


def read_private_key(location: str, password: str | None) -> str:
    """The key as unencrypted PKCS#8: Java takes no other form, and Java 17 can't decrypt OpenSSL's default (PBES2)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

    text = _read("ssl_key_location", location)
    try:
        key = serialization.load_pem_private_key(text.encode(), None if password is None else password.encode())
    except TypeError:
        # A missing password, or a password for an unencrypted key; the latter is harmless.
        if password is not None:
            return read_private_key(location, None)
        msg = f"ssl_key_location: the private key in {location} is encrypted; set ssl_key_password"
        raise ConfigurationError(msg) from None
    except (ValueError, UnsupportedAlgorithm):
        # Omits the library's message, which describes its parser rather than the file.
        if "PRIVATE KEY-----" not in text:
            msg = f"ssl_key_location: the file {location} has no private key (no line BEGIN ... PRIVATE KEY)"
        elif password is not None:
            msg = f"ssl_key_location: the private key in {location} can't be decrypted; check ssl_key_password"
        else:
            msg = (
                f"ssl_key_location: the private key in {location} can't be read; it is damaged, or its type is unknown"
            )
        raise ConfigurationError(msg) from None
    if not isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, dsa.DSAPrivateKey)):
        kind = type(key).__name__.removesuffix("PrivateKey")
        msg = f"ssl_key_location: {location} has an {kind} key; Kafka's Java client supports RSA, EC and DSA keys only"
        raise ConfigurationError(msg)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode("ascii")


def _read(field: str, location: str) -> str:
    try:
        # Comments may have any encoding; the PEM data is ASCII.
        return Path(location).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        msg = f"{field}: the file {location} can't be read: {error.strerror or type(error).__name__}"
        raise ConfigurationError(msg) from None
