"""Diagnoses connection failures before the Kafka protocol starts: TLS and certificates."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_kafka_flip.source.connection import KafkaConnection

_SECONDS = 3.0

# Codes of X509_verify_cert_error_string(3).
_EXPIRED = 10
_NOT_YET_VALID = 9
_WRONG_ADDRESS = frozenset({62, 64})
_UNTRUSTED = frozenset({2, 18, 19, 20, 21})


def explain_failed_handshake(connection: KafkaConnection, address: str) -> str | None:
    """Repeats a TLS handshake with a listener to find out why librdkafka's failed.

    Args:
        connection: The client's connection settings.
        address: The listener, as `host:port`.

    Returns:
        The problem and its fix, or None if the handshake gives no more information.
    """
    trusted = connection.ssl_ca_location
    try:
        context = ssl.create_default_context(cafile=trusted)
        with _connected(address) as plain:
            context.wrap_socket(plain, server_hostname=_host(address)).close()
    except ssl.SSLCertVerificationError as error:
        return _explain(error, trusted)
    except (OSError, ValueError):
        return None
    return None


def speaks_tls(address: str) -> bool | None:
    """Whether a listener answers a TLS handshake, regardless of its certificate; None if nothing listens there.

    Args:
        address: The listener, as `host:port`.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        plain = _connected(address)
    except (OSError, ValueError):
        return None
    with plain:
        try:
            context.wrap_socket(plain, server_hostname=_host(address)).close()
        except (OSError, ValueError):
            return False
    return True


def _connected(address: str) -> socket.socket:
    return socket.create_connection((_host(address), int(address.rpartition(":")[2])), timeout=_SECONDS)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _explain(error: ssl.SSLCertVerificationError, trusted: str | None) -> str:
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_ADDRESS:
        return (
            f"the broker's certificate does not match this address ({reason}); use an address from the certificate in "
            "bootstrap_servers, or issue a certificate for this address"
        )
    if error.verify_code == _EXPIRED:
        return f"the broker's certificate, or a CA certificate that signed it, has expired ({reason}); renew it"
    if error.verify_code == _NOT_YET_VALID:
        return f"the broker's certificate is not valid yet ({reason}); check the clocks of both machines"
    if error.verify_code in _UNTRUSTED:
        where = "set ssl_ca_location to a PEM file with the CA certificate"
        if trusted is not None:
            where = f"no CA in {trusted} (ssl_ca_location) signed it"
        return f"the broker's certificate is not trusted ({reason}); {where}"
    return f"the broker's certificate was rejected ({reason})"
