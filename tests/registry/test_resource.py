"""SchemaRegistryResource: the fields of SchemaRegistry, as Dagster config."""

from __future__ import annotations

from typing import Any, cast

import pytest
from dagster import EnvVar, build_resources

from dagster_kafka_flip import SchemaRegistry, SchemaRegistryResource
from dagster_kafka_flip.errors import ConfigurationError

SECRET = "hunter2-secret"
OAUTH: dict[str, Any] = {
    "oauth_token_url": "https://id/token",
    "oauth_client_id": "flip",
    "oauth_client_secret": SECRET,
    "oauth_scope": "read",
    "logical_cluster": "lsrc-1",
    "identity_pool_id": "pool-1",
}
TLS: dict[str, Any] = {
    "ssl_ca_location": "ca.pem",
    "ssl_certificate_location": "c.pem",
    "ssl_key_location": "k.pem",
    "ssl_key_password": SECRET,
}
WAYS: list[dict[str, Any]] = [
    {"url": "http://a"},
    {"url": "https://a", "username": "ann", "password": SECRET, "request_timeout": 3.5, "max_retries": 0},
    {"url": f"https://ann:{SECRET}@a,https://ann:{SECRET}@b"},
    {"url": "https://a", "bearer_token": SECRET, **TLS},
    {"url": "https://a", **OAUTH},
]


def test_it_has_the_fields_and_defaults_of_a_registry():
    defaults = {name: field.default for name, field in SchemaRegistry.model_fields.items()}
    assert {name: field.default for name, field in SchemaRegistryResource.model_fields.items()} == defaults


@pytest.mark.parametrize("values", WAYS)
def test_it_makes_the_registry_of_its_fields_and_shows_no_secret(values: dict[str, Any]):
    resource = SchemaRegistryResource(**values)
    assert resource.registry() == SchemaRegistry(**values)
    assert SECRET not in f"{resource} {resource!r}"


@pytest.mark.parametrize("values", WAYS)
def test_values_may_come_from_the_environment(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    for name, value in texts.items():
        monkeypatch.setenv(f"FLIP_TEST_{name}", value)
    given = {**values, **{name: EnvVar(f"FLIP_TEST_{name}") for name in texts}}
    with build_resources({"registry": SchemaRegistryResource(**given)}) as resources:
        found = cast("SchemaRegistryResource", resources.registry)
        assert found.registry() == SchemaRegistry(**values)
        assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "missing url"),
        ({"url": "a:1"}, "url"),
        ({"url": "http://a", "username": EnvVar("USER")}, "username and password"),
        ({"url": EnvVar("URL"), "username": "ann", "password": EnvVar("A"), "bearer_token": EnvVar("B")}, "several"),
        ({"url": "http://a", "max_retries": True}, "max_retries"),
        ({"url": "http://a", "passwort": SECRET}, "did you mean password"),
    ],
)
def test_a_mistake_is_reported_when_definitions_are_loaded(values: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError, match=named) as refused:
        SchemaRegistryResource(**values)
    assert SECRET not in str(refused.value)


def test_it_has_no_parameters_without_a_name():
    with pytest.raises(ConfigurationError, match=r"SchemaRegistryResource\(url=") as refused:
        SchemaRegistryResource(f"http://ann:{SECRET}@a")  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert SECRET not in str(refused.value)
