"""Converts PEM files of certificates and private keys to the form that Kafka's Java client accepts (KIP-651)."""

from __future__ import annotations

import re
from pathlib import Path

from dagster_kafka_flip.errors import ConfigurationError

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s[^-]*-----END CERTIFICATE-----")


def read_certificates(field: str, location: str) -> str:
    """Returns the certificates of a PEM file, without the text between them.

    Args:
        field: Name of the setting, for errors.
        location: Path of the file.

    Raises:
        ConfigurationError: The file can't be read, or has no certificate.
    """
    found = _CERTIFICATE.findall(_read(field, location))
    if not found:
        msg = f"{field}: the file {location} has no certificate (no lines BEGIN CERTIFICATE to END CERTIFICATE)"
        raise ConfigurationError(msg)
    return "\n".join(found) + "\n"


def read_private_key(location: str, password: str | None) -> str:
    """Returns the private key of a PEM file as unencrypted PKCS#8.

    The Java client only accepts PKCS#8, and Java 17 can't decrypt OpenSSL's default encryption (PBES2), so PKCS#1
    ("BEGIN RSA PRIVATE KEY"), SEC1 ("BEGIN EC PRIVATE KEY") and encrypted keys are converted.

    Args:
        location: Path of the file.
        password: Password of an encrypted key.

    Raises:
        ConfigurationError: The file can't be read, has no private key or one that Java can't use, or the password is
        missing or wrong.
    """
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
