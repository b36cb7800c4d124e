"""Checks the PEM files of a TLS connection before it is made."""

from __future__ import annotations

from pathlib import Path

from dagster_kafka_flip.errors import ConfigurationError


def check_tls_files(authority: str | None, certificate: str | None, key: str | None, password: str) -> None:
    """Loads the files as the client will.

    Args:
        authority: Path of `ssl_ca_location`: a PEM file, or a folder of them as OpenSSL's `c_rehash` makes it.
        certificate: Path of `ssl_certificate_location`.
        key: Path of `ssl_key_location`. Default: the certificate's file.
        password: The key's password; empty if there is none.

    Raises:
        ConfigurationError: A file can't be read, has no certificate or key, or the key doesn't fit.
    """
    named = {"ssl_ca_location": authority, "ssl_certificate_location": certificate, "ssl_key_location": key}
    if not any(named.values()):
        return
    import ssl

    for field, location in named.items():
        if location is not None and not Path(location).is_dir():
            _check_readable(field, location)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is not None and not Path(authority).is_dir():
        try:
            context.load_verify_locations(cafile=authority)
        except ssl.SSLError:
            msg = f"ssl_ca_location: the file {authority} has no certificate in PEM (BEGIN CERTIFICATE)"
            raise ConfigurationError(msg) from None
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password)
        except (ssl.SSLError, OSError):
            where = f"ssl_certificate_location {certificate}" + ("" if key is None else f" and ssl_key_location {key}")
            msg = (
                f"{where}: no certificate chain with its private key, or an encrypted key; check that the files are "
                "PEM and belong together, and ssl_key_password"
            )
            raise ConfigurationError(msg) from None


def _check_readable(field: str, location: str) -> None:
    try:
        with Path(location).open("rb") as file:
            file.read(1)
    except OSError as error:
        msg = f"{field}: the file {location} can't be read: {error.strerror or type(error).__name__}"
        raise ConfigurationError(msg) from None
