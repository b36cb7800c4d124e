"""KafkaResourcesComponent: settings of Kafka, Spark and a schema registry for a YAML project."""

from __future__ import annotations

from typing import Any

from dagster import ComponentLoadContext, Definitions, scaffold_with
from pydantic import Field

from dagster_kafka_flip.components import attributes
from dagster_kafka_flip.components.checked_component import CheckedComponent
from dagster_kafka_flip.components.scaffolding import KafkaResourcesScaffolder


@scaffold_with(KafkaResourcesScaffolder)
class KafkaResourcesComponent(CheckedComponent):
    """Defines a KafkaResource, a SparkResource and a SchemaRegistryResource, for all assets of the project.

    A value `{{ env.NAME }}` becomes an EnvVar: definitions do not contain it.
    """

    kafka: attributes.KafkaResourceAttribute | None = Field(
        default=None, description="The Kafka cluster, as fields of KafkaResource."
    )
    spark: attributes.SparkResourceAttribute | None = Field(
        default=None, description="The Spark session, as fields of SparkResource; `{}` for a local session."
    )
    schema_registry: attributes.SchemaRegistryResourceAttribute | None = Field(
        default=None, description="The schema registry, as fields of SchemaRegistryResource."
    )
    kafka_key: attributes.TextAttribute = Field(
        default="kafka", description="Key of the KafkaResource. Default `kafka`."
    )
    spark_key: attributes.TextAttribute = Field(
        default="spark", description="Key of the SparkResource. Default `spark`."
    )
    schema_registry_key: attributes.TextAttribute = Field(
        default="schema_registry", description="Key of the SchemaRegistryResource. Default `schema_registry`."
    )

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Returns the configured resources."""
        del context
        given: dict[str, Any] = {
            self.kafka_key: self.kafka,
            self.spark_key: self.spark,
            self.schema_registry_key: self.schema_registry,
        }
        return Definitions(resources={key: resource for key, resource in given.items() if resource is not None})
