"""A broker that asks for credentials: one listener each for mutual TLS, SASL/PLAIN and both SCRAMs over TLS.

One more has a certificate that has expired. Rights are by ACL: `ann` and the certificate `client` may do everything,
whoever logs in without credentials is the administrator, and users that a test adds have no right until it grants one.
"""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tenacity import Retrying, stop_after_delay, wait_fixed

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.source.connection import KafkaConnection
from tests.kafka_topic import QUIET

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

Right = tuple[str, str, str]

_MODULES = "org.apache.kafka.common.security"
_HOST = "127.0.0.1"

PLAIN_PASSWORD = "plain-Pa55word-of-the-test"
SCRAM_PASSWORD = "scram-Pa55word-of-the-test"
KEY_PASSWORD = "key-Pa55word-of-the-test"
WRONG_PASSWORD = "wrong-Pa55word-of-the-test"


class SecuredBroker(LocalBroker):
    """A broker on a folder of its own, with certificates that are made in it.

    Args:
        folder: Where its data and the certificates go.
    """

    def __init__(self, folder: Path) -> None:
        names = ("TLS", "PLAINSASL", "SCRAMSASL", "SCRAM512SASL", "EXPIRED")
        self._ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self._certificates = folder / "certificates"
        self._certificates.mkdir()
        make_certificates(self._certificates)
        super().__init__(
            folder / "kafka",
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:ann;User:CN=client",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._certificates / "server.both.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._certificates / "ca.pem"),
                "listener.name.expired.ssl.keystore.location": str(self._certificates / "expired.both.pem"),
                "listener.name.tls.ssl.client.auth": "required",
                "listener.name.plainsasl.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.plainsasl.plain.sasl.jaas.config": (
                    f'{_MODULES}.plain.PlainLoginModule required user_ann="{PLAIN_PASSWORD}";'
                ),
                "listener.name.scramsasl.sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.scramsasl.scram-sha-256.sasl.jaas.config": (
                    f"{_MODULES}.scram.ScramLoginModule required;"
                ),
                "listener.name.scram512sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.scram512sasl.scram-sha-512.sasl.jaas.config": (
                    f"{_MODULES}.scram.ScramLoginModule required;"
                ),
            },
        )

    def _addressing(self, port: int, controller_port: int) -> dict[str, str]:
        settings = super()._addressing(port, controller_port)
        addresses = "".join(f",{name}://{_HOST}:{number}" for name, number in self._ports.items())
        settings["listeners"] += addresses
        settings["advertised.listeners"] += addresses
        settings["listener.security.protocol.map"] += (
            ",TLS:SSL,EXPIRED:SSL,PLAINSASL:SASL_PLAINTEXT,SCRAMSASL:SASL_SSL,SCRAM512SASL:SASL_SSL"
        )
        return settings

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, **QUIET})

    def add_user(self, name: str = "ann", mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256) -> None:
        """Makes a user of SCRAM known."""
        change = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), SCRAM_PASSWORD.encode())
        # Held, because the client ends with the last reference to it.
        admin = self._admin()
        admin.alter_user_scram_credentials([change])[name].result(30)

    def scram_512(self, user: str) -> dict[str, Any]:
        """Fields of a KafkaConnection of a new user, who logs in with SCRAM-SHA-512 and has no right."""
        self.add_user(user, ScramMechanism.SCRAM_SHA_512)
        fields: dict[str, Any] = {
            "bootstrap_servers": f"{_HOST}:{self._ports['SCRAM512SASL']}",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": SCRAM_PASSWORD,
            "ssl_ca_location": str(self._certificates / "ca.pem"),
        }
        # The controller answers before the broker knows the user.
        for attempt in Retrying(stop=stop_after_delay(30), wait=wait_fixed(0.1), reraise=True):
            with attempt:
                AdminClient({**KafkaConnection(**fields).librdkafka_config(), **QUIET}).list_topics(timeout=2)
        return fields

    def grant(self, user: str, rights: Collection[Right]) -> None:
        """Gives a user rights, and waits until the broker knows of them.

        Args:
            user: As the broker calls it.
            rights: An operation and a kind of resource, in the words of Kafka's ACLs, and the name; a `*` at the end
                stands for what names may go on with.
        """
        admin, principal = self._admin(), f"User:{user}"
        bindings = [
            AclBinding(
                ResourceType[kind],
                name.rstrip("*"),
                ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL,
                principal,
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation, kind, name in rights
        ]
        for future in admin.create_acls(bindings).values():
            future.result(30)
        anything: Any = None
        everything = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            principal,
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for attempt in Retrying(wait=wait_fixed(0.02), stop=stop_after_delay(30)):
            with attempt:
                assert len(admin.describe_acls(everything).result(30)) == len(bindings)

    def connections(self) -> dict[str, dict[str, Any]]:
        """Fields of a KafkaConnection or a KafkaResource, by the way to log in; with the last, nobody gets in."""
        trusted = {"ssl_ca_location": str(self._certificates / "ca.pem")}
        tls = {
            "bootstrap_servers": f"{_HOST}:{self._ports['TLS']}",
            "security_protocol": "SSL",
            "ssl_certificate_location": str(self._certificates / "client.pem"),
            **trusted,
        }
        plain = {
            "bootstrap_servers": f"{_HOST}:{self._ports['PLAINSASL']}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "ann",
            "sasl_password": PLAIN_PASSWORD,
        }
        scram = {
            "bootstrap_servers": f"{_HOST}:{self._ports['SCRAMSASL']}",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": "ann",
            "sasl_password": SCRAM_PASSWORD,
            **trusted,
        }
        encrypted = {
            "ssl_key_location": str(self._certificates / "client.encrypted.key"),
            "ssl_key_password": KEY_PASSWORD,
        }
        return {
            "tls": {**tls, "ssl_key_location": str(self._certificates / "client.key")},
            "tls_encrypted": {**tls, **encrypted},
            "plain": plain,
            "scram": scram,
            "wrong": {**plain, "sasl_password": WRONG_PASSWORD, "request_timeout": 2.0},
        }

    def refused(self) -> dict[str, dict[str, Any]]:
        """Fields of a KafkaConnection that can't work, by what is wrong with it."""
        right = self.connections()
        plain, scram, tls = right["plain"], right["scram"], right["tls"]
        anonymous = {name: tls[name] for name in ("bootstrap_servers", "security_protocol", "ssl_ca_location")}
        return {
            "password": {**plain, "sasl_password": WRONG_PASSWORD},
            "password and a broker that is down": {
                **plain,
                "sasl_password": WRONG_PASSWORD,
                "bootstrap_servers": f"{_HOST}:1,{plain['bootstrap_servers']}",
            },
            "SCRAM password": {**scram, "sasl_password": WRONG_PASSWORD},
            "mechanism": {**scram, "sasl_mechanism": "SCRAM-SHA-512"},
            "authority": {**scram, "ssl_ca_location": str(self._certificates / "client.pem")},
            "no authority": {name: value for name, value in scram.items() if name != "ssl_ca_location"},
            "address": {**scram, "bootstrap_servers": f"localhost:{self._ports['SCRAMSASL']}"},
            "expired": {**anonymous, "bootstrap_servers": f"{_HOST}:{self._ports['EXPIRED']}"},
            "no certificate": anonymous,
            "no TLS": {"bootstrap_servers": tls["bootstrap_servers"]},
            "no TLS, with a protocol": {"bootstrap_servers": f"PLAINTEXT://{tls['bootstrap_servers']}"},
            "no SASL": {"bootstrap_servers": plain["bootstrap_servers"]},
            "TLS": {**anonymous, "bootstrap_servers": self.bootstrap_servers},
            "name": {"bootstrap_servers": "nowhere.invalid:9092"},
        }

    def secrets(self) -> dict[str, str]:
        """What must not be seen anywhere, by a name for it."""
        keys = {name: (self._certificates / name).read_text() for name in ("client.key", "client.encrypted.key")}
        return {
            # A line of the key in the middle is in every form of it.
            **{name: text.splitlines()[1] for name, text in keys.items()},
            "PLAIN": PLAIN_PASSWORD,
            "SCRAM": SCRAM_PASSWORD,
            "key password": KEY_PASSWORD,
            "wrong password": WRONG_PASSWORD,
        }


def _free_ports(count: int) -> list[int]:
    # Held together, so that none is handed out twice.
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((_HOST, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _make_certificate(folder: Path, name: str, days: str = "2") -> None:
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{_HOST}")
    _openssl(folder, "req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", *subject)
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", days, "-copy_extensions", "copy")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


def make_certificates(folder: Path) -> None:
    """Makes an authority (`ca`), and certificates of `server`, `expired` and `client`, with their keys, in PEM."""
    _openssl(folder, "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    for name, days in (("server", "2"), ("expired", "-1"), ("client", "2")):
        _make_certificate(folder, name, days)
    # As OpenSSL encrypts by default; Java 17 can't decrypt it.
    way = ("-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{KEY_PASSWORD}")
    _openssl(folder, "pkcs8", *way, "-in", "client.key", "-out", "client.encrypted.key")
    for name in ("server", "expired"):
        both = [(folder / f"{name}.{kind}").read_text() for kind in ("key", "pem")]
        (folder / f"{name}.both.pem").write_text("".join(both))
