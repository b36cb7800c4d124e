"""SchemaRegistry: what may be set together, and secrets that are never shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from dagster_kafka_flip import SchemaRegistry
from dagster_kafka_flip.errors import ConfigurationError

SECRET = "hunter2-secret"
OAUTH: dict[str, Any] = {
    "oauth_token_url": "https://id/token",
    "oauth_client_id": "flip",
    "oauth_client_secret": SECRET,
}


def test_a_plain_registry_is_passed_to_the_client_without_its_endless_waits():
    registry = SchemaRegistry(url=" http://a:8081/ , https://b/apis/ccompat/v7/ ", request_timeout=3)
    assert registry.url == "http://a:8081,https://b/apis/ccompat/v7"
    assert registry.client_config() == {
        "url": "http://a:8081,https://b/apis/ccompat/v7",
        "timeout": 3.0,
        "max.retries": 0,
        "cache.latest.ttl.sec": 0,
    }


@pytest.mark.parametrize(
    ("login", "reported"),
    [
        ({"username": "ann", "password": SECRET}, {"basic.auth.user.info": f"ann:{SECRET}"}),
        ({"username": "ann", "password": ""}, {"basic.auth.user.info": "ann:"}),
        (
            {"bearer_token": SECRET},
            {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": SECRET,
                "bearer.auth.logical.cluster": "",
            },
        ),
        (
            {**OAUTH, "oauth_scope": "read", "logical_cluster": "lsrc-1", "identity_pool_id": "pool-1"},
            {
                "bearer.auth.credentials.source": "OAUTHBEARER",
                "bearer.auth.issuer.endpoint.url": "https://id/token",
                "bearer.auth.client.id": "flip",
                "bearer.auth.client.secret": SECRET,
                "bearer.auth.scope": "read",
                "bearer.auth.logical.cluster": "lsrc-1",
                "bearer.auth.identity.pool.id": "pool-1",
            },
        ),
    ],
)
def test_each_login_is_translated_for_the_client(login: dict[str, Any], reported: dict[str, str]):
    plain = SchemaRegistry(url="https://a").client_config()
    assert SchemaRegistry(url="https://a", **login).client_config() == plain | reported


def test_a_login_in_the_url_becomes_fields():
    registry = SchemaRegistry(url=f"https://an%40n:{SECRET}%2F@a:1/x,https://an%40n:{SECRET}%2F@b,http://c")
    assert registry.url == "https://a:1/x,https://b,http://c"
    assert registry.username == "an@n"
    assert registry.password is not None
    assert registry.password.get_secret_value() == f"{SECRET}/"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "url: missing"),
        ({"url": ""}, "url"),
        ({"url": 5}, "url"),
        ({"url": "localhost:8081"}, "url"),
        ({"url": "mock://a"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://a:99999"}, "url"),
        ({"url": "http://a,"}, "url"),
        ({"url": "http://a b"}, "url"),
        ({"url": f"http://ann:{SECRET}/{SECRET}@a"}, "url"),
        ({"url": f"http://ann:80/{SECRET}@a"}, "url"),
        ({"url": f"http://ann:{SECRET}@{SECRET}@a"}, "url"),
        ({"url": f"http://a?token={SECRET}"}, "url"),
        ({"url": f"http://a#{SECRET}"}, "url"),
        ({"url": f"http://ann:{SECRET}@a,http://ben:{SECRET}@b"}, "username and password"),
        ({"url": f"http://ann:{SECRET}@a", "username": "ann", "password": SECRET}, "username and password"),
        ({"url": "http://ann@a"}, "username and password"),
        ({"url": "http://a", "username": "ann"}, "username and password"),
        ({"url": "http://a", "password": SECRET}, "username and password"),
        ({"url": "http://a", "username": "a:b", "password": SECRET}, "username"),
        ({"url": "http://a", "bearer_token": SECRET, "username": "ann", "password": SECRET}, "bearer_token"),
        ({"url": "http://a", "bearer_token": f"{SECRET}\n"}, "bearer_token"),
        ({"url": "http://a", "bearer_token": ""}, "bearer_token"),
        ({"url": "http://a", "bearer_token": SECRET, **OAUTH}, "bearer_token and oauth_client_id"),
        ({"url": "http://a", "oauth_client_secret": SECRET}, "oauth_token_url and oauth_client_id"),
        ({"url": "http://a", **OAUTH, "oauth_token_url": f"https://flip:{SECRET}@id/token"}, "oauth_token_url"),
        ({"url": "http://a", "oauth_scope": "read"}, "oauth_scope"),
        ({"url": "http://a", "logical_cluster": "lsrc-1"}, "logical_cluster"),
        ({"url": "http://a", "bearer_token": SECRET, "identity_pool_id": "a b"}, "identity_pool_id"),
        ({"url": "https://a", "ssl_key_location": "key.pem"}, "ssl_certificate_location"),
        ({"url": "https://a", "ssl_key_password": SECRET}, "ssl_certificate_location"),
        ({"url": "http://a", "ssl_ca_location": "ca.pem"}, "ssl_ca_location"),
        ({"url": "http://a", "request_timeout": 0}, "request_timeout"),
        ({"url": "http://a", "max_retries": -1}, "max_retries"),
        ({"url": "http://a", "max_retries": True}, "max_retries"),
        ({"url": "http://a", "passwort": SECRET}, "did you mean password"),
    ],
)
def test_invalid_options_are_refused_by_name_without_secrets(fields: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError) as refused:
        SchemaRegistry(**fields)
    assert named in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_secrets_are_never_shown():
    fields: dict[str, Any] = {"ssl_certificate_location": "c.pem", "ssl_key_password": SECRET}
    logins: list[dict[str, Any]] = [
        {"url": f"https://ann:{SECRET}@a"},
        {"url": "https://a", "bearer_token": SECRET},
        {"url": "https://a", **OAUTH},
    ]
    for registry in [SchemaRegistry(**login, **fields) for login in logins]:
        shown = f"{registry} {registry!r} {registry.login} {registry.model_dump()} {registry.model_dump_json()}"
        assert SECRET not in shown
        assert pickle.loads(pickle.dumps(registry)) == registry


def test_a_pem_file_that_can_not_be_used_is_named(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ssl_ca_location": str(tmp_path / "none.pem")}, "ssl_ca_location.*No such file"),
        ({"ssl_ca_location": str(empty)}, "ssl_ca_location.*no certificate"),
        ({"ssl_certificate_location": str(tmp_path / "none.pem")}, "ssl_certificate_location.*No such file"),
        ({"ssl_certificate_location": str(empty)}, "ssl_certificate_location.*ssl_key_password"),
    ]
    for fields, words in cases:
        with pytest.raises(ConfigurationError, match=words) as raised:
            SchemaRegistry(url="https://a", **fields).schemas()
        assert "_ssl.c" not in str(raised.value)


_WITHOUT_THE_EXTRA = """
import sys
sys.modules["httpx"] = sys.modules["httpx2"] = None
from dagster_kafka_flip import SchemaRegistry
from dagster_kafka_flip.errors import ConfigurationError
registry = SchemaRegistry(url="http://127.0.0.1:1")
try:
    registry.schemas()
except ConfigurationError as error:
    print(error)
"""


def test_without_the_extra_the_error_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_THE_EXTRA], capture_output=True, text=True, check=True)
    assert "pip install 'dagster-kafka-flip[registry]'" in done.stdout
