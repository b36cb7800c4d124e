"""TLS and mutual TLS with an authority of one's own, and what is told where the handshake fails."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest

from dagster_kafka_flip import SchemaRegistry
from dagster_kafka_flip.errors import ConfigurationError, SchemaRegistryError
from tests.registry.http_server import http_server
from tests.secured_broker import KEY_PASSWORD, WRONG_PASSWORD, make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_certificates(made)
    for key in ("client.key", "client.encrypted.key"):
        both = (made / key).read_text() + (made / "client.pem").read_text()
        (made / f"both.{key}").write_text(both)
    return made


def served(folder: Path, certificate: str = "server", *, mutual: bool = False) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    if mutual:
        context.load_verify_locations(folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return http_server(context)


@pytest.fixture(scope="module")
def tls(folder: Path) -> Iterator[str]:
    with served(folder) as server:
        server.says(200, {"schema": '"long"'})
        yield server.url


@pytest.fixture(scope="module")
def mutual(folder: Path) -> Iterator[str]:
    with served(folder, mutual=True) as server:
        server.says(200, {"schema": '"long"'})
        yield server.url


def ask(url: str, folder: Path, **files: str) -> str:
    fields: dict[str, Any] = {
        name: str(folder / text) if name.endswith("location") else text for name, text in files.items()
    }
    with SchemaRegistry(url=url, **fields).schemas() as schemas:
        return schemas.by_id(7).text


def test_an_authority_of_one_s_own_is_trusted(tls: str, folder: Path):
    assert ask(tls, folder, ssl_ca_location="ca.pem") == '"long"'


@pytest.mark.parametrize(
    "files",
    [
        {"ssl_certificate_location": "client.pem", "ssl_key_location": "client.key"},
        {
            "ssl_certificate_location": "client.pem",
            "ssl_key_location": "client.encrypted.key",
            "ssl_key_password": KEY_PASSWORD,
        },
        {"ssl_certificate_location": "both.client.key"},
        {"ssl_certificate_location": "both.client.encrypted.key", "ssl_key_password": KEY_PASSWORD},
    ],
)
def test_a_certificate_is_a_login(mutual: str, folder: Path, files: dict[str, str]):
    assert ask(mutual, folder, ssl_ca_location="ca.pem", **files) == '"long"'


@pytest.mark.parametrize(
    ("certificate", "host", "is_mutual", "files", "next_step"),
    [
        ("server", "127.0.0.1", False, {}, "ssl_ca_location"),
        ("server", "127.0.0.1", False, {"ssl_ca_location": "client.pem"}, "ssl_ca_location"),
        ("server", "localhost", False, {"ssl_ca_location": "ca.pem"}, "host name"),
        ("expired", "127.0.0.1", False, {"ssl_ca_location": "ca.pem"}, "renew an expired"),
        ("server", "127.0.0.1", True, {"ssl_ca_location": "ca.pem"}, "ssl_certificate_location"),
    ],
)
def test_a_failed_handshake_is_reported_at_once_with_what_to_set(
    folder: Path, certificate: str, host: str, is_mutual: bool, files: dict[str, str], next_step: str
):
    with served(folder, certificate, mutual=is_mutual) as server:
        url = server.url.replace("127.0.0.1", host)
        with pytest.raises(SchemaRegistryError, match=next_step) as raised:
            ask(url, folder, **files)
    assert type(raised.value) is SchemaRegistryError
    assert url in str(raised.value)
    assert server.requests == []


def test_a_server_without_tls_is_reported_as_such(folder: Path):
    with http_server() as server, pytest.raises(SchemaRegistryError, match="http://"):
        ask(server.url.replace("http", "https"), folder)


@pytest.mark.parametrize("password", [None, WRONG_PASSWORD])
def test_a_key_that_can_not_be_opened_is_reported_without_its_password(folder: Path, password: str | None):
    files = {"ssl_certificate_location": "client.pem", "ssl_key_location": "client.encrypted.key"}
    if password is not None:
        files["ssl_key_password"] = password
    with pytest.raises(ConfigurationError, match="ssl_key_password") as raised:
        ask("https://127.0.0.1:1", folder, **files)
    assert WRONG_PASSWORD not in str(raised.value)
