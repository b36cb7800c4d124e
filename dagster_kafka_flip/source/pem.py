"""PEM files of certificates and private keys, in the form that Kafka's Java client takes (KIP-651)."""

from __future__ import annotations

import re
from pathlib import Path

from dagster_kafka_flip.errors import ConfigurationError

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s[^-]*-----END CERTIFICATE-----")


def read_certificates(field: str, location: str) -> str:
    """The certificates of a PEM file, without what is written between them.

    Args:
        field: The setting that names the file, for errors.
        location: The file.

    Raises:
        ConfigurationError: The file can't be read, or holds no certificate.
    """
    found = _CERTIFICATE.findall(_read(field, location))
    if not found:
        msg = f"{field}: the file {location} holds no certificate: it needs the lines from BEGIN to END CERTIFICATE"
        raise ConfigurationError(msg)
    return "\n".join(found) + "\n"


def read_private_key(location: str, password: str | None) -> str:
    """The private key of a PEM file as unencrypted PKCS#8.

    The Java client takes PKCS#8 alone, and Java 17 can't decrypt what OpenSSL encrypts by default (PBES2); PKCS#1
    ("BEGIN RSA PRIVATE KEY"), SEC1 ("BEGIN EC PRIVATE KEY") and all that is encrypted are converted.

    Args:
        location: The file.
        password: Of an encrypted key.

    Raises:
        ConfigurationError: The file can't be read, holds no private key, or one that Java can't use, or the password
            is missing or wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

    text = _read("ssl_key_location", location)
    try:
        key = serialization.load_pem_private_key(text.encode(), None if password is None else password.encode())
    except TypeError:
        # One of "password was not given but key is encrypted" and the reverse. The latter harms nobody.
        if password is not None:
            return read_private_key(location, None)
        msg = f"ssl_key_location: the private key in {location} is encrypted; set ssl_key_password"
        raise ConfigurationError(msg) from None
    except (ValueError, UnsupportedAlgorithm):
        # The library's own text is left out: it says more of its parser than of the file.
        if "PRIVATE KEY-----" not in text:
            msg = f"ssl_key_location: the file {location} holds no private key (no line BEGIN ... PRIVATE KEY)"
        elif password is not None:
            msg = f"ssl_key_location: the private key in {location} can't be decrypted; is ssl_key_password right?"
        else:
            msg = f"ssl_key_location: the private key in {location} can't be read; it is damaged, or of an unknown kind"
        raise ConfigurationError(msg) from None
    if not isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, dsa.DSAPrivateKey)):
        kind = type(key).__name__.removesuffix("PrivateKey")
        msg = f"ssl_key_location: {location} holds an {kind} key; Kafka's Java client takes RSA, EC and DSA keys alone"
        raise ConfigurationError(msg)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode("ascii")


def _read(field: str, location: str) -> str:
    try:
        # Comments may be in any encoding; what counts is ASCII.
        return Path(location).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        msg = f"{field}: the file {location} can't be read: {error.strerror or type(error).__name__}"
        raise ConfigurationError(msg) from None
