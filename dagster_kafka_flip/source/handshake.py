"""Why a connection to a broker fails before Kafka's own protocol begins: TLS and its certificates."""

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
    """Shakes hands with a listener once more, to say in words why librdkafka could not.

    Args:
        connection: How the client connects.
        address: The listener, as `host:port`.

    Returns:
        What is wrong and what to do, or None if this handshake tells nothing more.
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
    """Whether a listener answers a TLS handshake, whatever its certificate says; None if nothing listens there.

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
            f"the broker's certificate is for another address ({reason}); use an address that the certificate names in "
            "bootstrap_servers, or have one issued for this address"
        )
    if error.verify_code == _EXPIRED:
        return f"the broker's certificate, or one that it is signed by, has expired ({reason}); renew it"
    if error.verify_code == _NOT_YET_VALID:
        return f"the broker's certificate is not valid yet ({reason}); check the clocks of both machines"
    if error.verify_code in _UNTRUSTED:
        where = "set ssl_ca_location to a PEM file with the authority's certificate"
        if trusted is not None:
            where = f"the authorities in {trusted} (ssl_ca_location) did not sign it"
        return f"the broker's certificate is not trusted ({reason}); {where}"
    return f"the broker's certificate is refused ({reason})"
