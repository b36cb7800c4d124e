"""KafkaResourcesComponent: settings of Kafka, Spark and a schema registry for a YAML project."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from dagster import ComponentLoadContext, Definitions, EnvVar, ResolutionContext, scaffold_with
from pydantic import Field

from dagster_kafka_flip.assets.resources import KafkaClusterConfig, KafkaResource, SchemaRegistryResource, SparkResource
from dagster_kafka_flip.components.attributes import TextAttribute
from dagster_kafka_flip.components.checked_component import CheckedComponent
from dagster_kafka_flip.components.scaffolding import KafkaResourcesScaffolder
from dagster_kafka_flip.components.schemas import attribute, model_of
from dagster_kafka_flip.components.templates import create, refused, rendered
from dagster_kafka_flip.settings.hidden import hidden_parameters, is_credential

T = TypeVar("T")

_ENV = re.compile(r"""\{\{ *env(?:\.(\w+)|\( *['"](\w+)['"] *\)) *\}\}""")
# Passwords: never in a file; definitions only have the name of an environment variable.
_SECRETS = frozenset({"sasl_password", "ssl_key_password", "password", "bearer_token", "oauth_client_secret"})


def _resource(kind: type[T]) -> Callable[[ResolutionContext, Any], T]:
    def resolve(context: ResolutionContext, value: Any) -> T:
        if not isinstance(value, Mapping):
            found = rendered(context, value)
            if isinstance(found, kind):
                return found
            # Omits the value, which may be from the environment, with a password.
            raise refused(context, f"invalid {kind.__name__}; write its fields as a mapping")
        return create(
            context, kind, {str(name): _setting(context.at_path(name), str(name), each) for name, each in value.items()}
        )

    return resolve


def _setting(context: ResolutionContext, name: str, value: Any) -> Any:
    """The value of a resource's field: a variable of the environment becomes an EnvVar."""
    if isinstance(value, Mapping):
        if name == "clusters":
            return {each: _resource(KafkaClusterConfig)(context.at_path(each), one) for each, one in value.items()}
        return {str(each): _property(context.at_path(each), str(each), one) for each, one in value.items()}
    found = _ENV.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return EnvVar(found[1] or found[2])
    if name in _SECRETS and value is not None:
        # Omits the value, which may be the password.
        raise refused(context, 'write a password as "{{ env.NAME }}", to keep it out of files and definitions')
    if isinstance(value, str) and "{{" in value and (is_credential(name) or hidden_parameters(value) != value):
        raise refused(
            context,
            'write all of it as "{{ env.NAME }}": the value of a variable in a longer text gets into definitions, and '
            "Dagster shows it",
        )
    return rendered(context, value)


def _property(context: ResolutionContext, name: str, value: Any) -> Any:
    """A client's or Spark's setting, which is a text: YAML has `5` and `true` for it."""
    return str(value).lower() if isinstance(value, (int, float)) else _setting(context, name, value)


_KAFKA = model_of(KafkaResource, clusters=dict[str, model_of(KafkaClusterConfig)])
KafkaResourceAttribute = Annotated[Any, attribute(_resource(KafkaResource), _KAFKA)]
SparkResourceAttribute = Annotated[Any, attribute(_resource(SparkResource), model_of(SparkResource))]
SchemaRegistryResourceAttribute = Annotated[
    Any, attribute(_resource(SchemaRegistryResource), model_of(SchemaRegistryResource))
]


@scaffold_with(KafkaResourcesScaffolder)
class KafkaResourcesComponent(CheckedComponent):
    """Defines a KafkaResource, a SparkResource and a SchemaRegistryResource, for all assets of the project.

    A value `{{ env.NAME }}` becomes an EnvVar: definitions do not contain it.
    """

    kafka: KafkaResourceAttribute | None = Field(
        default=None, description="The Kafka cluster, as fields of KafkaResource."
    )
    spark: SparkResourceAttribute | None = Field(
        default=None, description="The Spark session, as fields of SparkResource; `{}` for a local session."
    )
    schema_registry: SchemaRegistryResourceAttribute | None = Field(
        default=None, description="The schema registry, as fields of SchemaRegistryResource."
    )
    kafka_key: TextAttribute = Field(default="kafka", description="Key of the KafkaResource. Default `kafka`.")
    spark_key: TextAttribute = Field(default="spark", description="Key of the SparkResource. Default `spark`.")
    schema_registry_key: TextAttribute = Field(
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
