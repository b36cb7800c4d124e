"""Finds the schema registries that an asset's formats name by the keys of resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.assets.schema_registry_resource import SchemaRegistryResource
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


def registries_of(context: Any, keys: Iterable[str]) -> dict[str, SchemaRegistry]:
    """Returns the registries of a run's resources.

    Raises:
        ConfigurationError: A resource has another type, or a field of it is malformed.
    """
    return {key: registry_of(getattr(context.resources, key), key) for key in keys}


def registry_of(resource: Any, key: str) -> SchemaRegistry:
    """Returns the registry of a SchemaRegistryResource.

    Raises:
        ConfigurationError: The resource has another type, or a field of it is malformed.
    """
    if not hasattr(resource, "registry"):
        expect(f"the resource {key!r}", resource, SchemaRegistryResource, 'SchemaRegistryResource(url="http://...")')
    return resource.registry()
