"""Finds the schema registries that an asset's formats name by the keys of resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.assets.schema_registry_resource import SchemaRegistryResource
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


def registries_of(context: Any, keys: Iterable[str]) -> dict[str, SchemaRegistry]:
    """The registries of a run's resources."""
    return {key: registry_of(getattr(context.resources, key), key) for key in keys}


def registry_of(resource: Any, key: str) -> SchemaRegistry:
    """The registry of a SchemaRegistryResource."""
    if not hasattr(resource, "registry"):
        expect(f"the resource {key!r}", resource, SchemaRegistryResource, 'SchemaRegistryResource(url="http://...")')
    return resource.registry()
