"""SchemaRegistryResource: the schema registry of an environment."""

# Without `from __future__ import annotations`, because Dagster inspects the types of the fields.

from collections.abc import Iterable
from typing import Any, NoReturn

from dagster import ConfigurableResource
from pydantic import Field

from dagster_kafka_flip.assets.kafka_cluster_config import is_env_var
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.settings.arguments import refuse_unnamed
from dagster_kafka_flip.settings.base import CheckedModel
from dagster_kafka_flip.settings.hidden import hidden_logins

# For values that are not known yet; of another field, its name. With https, so that TLS settings fit.
_STAND_INS = {"url": "https://host", "oauth_token_url": "https://host/token"}
_NUMBERS = ("request_timeout", "max_retries")


class SchemaRegistryResource(CheckedModel, ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """One schema registry that speaks Confluent's API.

    Set passwords as `EnvVar`: Dagster's UI shows those written as text.
    """

    url: str = Field(
        description="Comma-separated http or https URLs of one registry, tried in this order. Give one with a login in "
        "it as an EnvVar."
    )
    username: str | None = Field(default=None, description="User name, or API key. Needs password.")
    password: str | None = Field(default=None, repr=False, description="Password, or API secret. Give it as an EnvVar.")
    bearer_token: str | None = Field(
        default=None, repr=False, description="A token that is sent unchanged. Give it as an EnvVar."
    )
    oauth_token_url: str | None = Field(
        default=None, description="OAuth: the token endpoint, for a client's credentials."
    )
    oauth_client_id: str | None = Field(default=None, description="OAuth: the client's id.")
    oauth_client_secret: str | None = Field(
        default=None, repr=False, description="OAuth: the client's secret, as an EnvVar."
    )
    oauth_scope: str | None = Field(default=None, description="OAuth: the scope to request.")
    logical_cluster: str | None = Field(
        default=None, description="Confluent Cloud's id of the registry, lsrc-.... Only with a token or OAuth."
    )
    identity_pool_id: str | None = Field(
        default=None, description="Confluent Cloud's id of the identity pool, pool-.... Only with a token or OAuth."
    )
    ssl_ca_location: str | None = Field(
        default=None,
        description="PEM file with the CA certificates to trust. Default: those of SSL_CERT_FILE, or else of certifi.",
    )
    ssl_certificate_location: str | None = Field(
        default=None, description="PEM file of the client's certificate chain, for mutual TLS."
    )
    ssl_key_location: str | None = Field(
        default=None, description="PEM file of the client's private key. Default: the key in the certificate's file."
    )
    ssl_key_password: str | None = Field(
        default=None, repr=False, description="The private key's password, as an EnvVar."
    )
    request_timeout: float = Field(default=20.0, description="Seconds to wait for one URL's answer.")
    max_retries: int = Field(
        default=3,
        description="How often a request is repeated after a temporary error: no connection, or the statuses 408, 429, "
        "500, 502, 503 and 504.",
    )

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("SchemaRegistryResource", unnamed, SchemaRegistryResource.model_fields)
        if values.get("url") is None:
            raise ConfigurationError("SchemaRegistryResource: missing url; set it to the registry's address")
        super().__init__(**values)
        # The value of an EnvVar is not known yet, so what it contains is not validated.
        known: dict[str, Any] = {
            name: _STAND_INS.get(name, name) if is_env_var(value) else value for name, value in values.items()
        }
        if not any(is_env_var(values.get(name)) for name in _NUMBERS):
            SchemaRegistry(**known)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, hidden_logins(value) if name == "url" and isinstance(value, str) else value

    def registry(self) -> SchemaRegistry:
        """Returns the registry.

        Raises:
            ConfigurationError: A field is malformed or contradicts another.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in SchemaRegistry.model_fields}
        return SchemaRegistry(**values)
