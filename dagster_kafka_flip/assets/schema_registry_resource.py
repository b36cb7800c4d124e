"""SchemaRegistryResource: the schema registry of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dagster import ConfigurableResource

from dagster_kafka_flip.assets.config_fields import check_known, config_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.settings.arguments import refuse_unnamed
from dagster_kafka_flip.settings.hidden import hidden_logins

if TYPE_CHECKING:
    from collections.abc import Iterable


_Config = config_of(
    SchemaRegistry,
    url="Comma-separated `http` or `https` URLs of one registry, tried in this order. With a login in it: an EnvVar.",
)


class SchemaRegistryResource(ConfigurableResource, _Config):  # pyright: ignore[reportMissingTypeArgument]
    """One schema registry with Confluent's API.

    Give passwords, secrets and tokens as `EnvVar`: Dagster's UI shows what is written as text.
    """

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("SchemaRegistryResource", unnamed, SchemaRegistryResource.model_fields)
        if values.get("url") is None:
            raise ConfigurationError("SchemaRegistryResource: missing url; set it to the registry's address")
        super().__init__(**values)
        # With https, so that TLS settings fit.
        check_known(SchemaRegistry, values, url="https://host", oauth_token_url="https://host/token")  # noqa: S106

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, hidden_logins(value) if name == "url" and isinstance(value, str) else value

    def registry(self) -> SchemaRegistry:
        """Returns the registry.

        Raises:
            ConfigurationError: A field is malformed or contradicts another.
        """
        return SchemaRegistry(**{name: getattr(self, name) for name in SchemaRegistry.model_fields})
