"""The Kafka, Spark and schema registry of an environment, as Dagster resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from dagster_kafka_flip.assets.config_fields import check_known, config_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.runtime.spark_settings import SparkSettings, without_values
from dagster_kafka_flip.settings.arguments import expect, refuse_unnamed
from dagster_kafka_flip.settings.hidden import hidden_logins
from dagster_kafka_flip.source.connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession


class KafkaClusterConfig(config_of(KafkaConnection)):
    """One of several named clusters of a KafkaResource. Set passwords as `EnvVar`."""

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        super().__init__(*unnamed, **values)
        if values.get("bootstrap_servers") is not None:
            check_known(KafkaConnection, values, bootstrap_servers="host:9092")

    def connection(self) -> KafkaConnection:
        """Returns the connection to the cluster.

        Raises:
            ConfigurationError: A field is malformed or contradicts another.
        """
        return KafkaConnection(**{name: getattr(self, name) for name in KafkaConnection.model_fields})


class KafkaResource(ConfigurableResource, KafkaClusterConfig):  # pyright: ignore[reportMissingTypeArgument]
    """One Kafka cluster, or several by name. Give credentials as `EnvVar`: Dagster's UI shows what is written as text.

    Its own fields are for sources without `set_cluster`; `clusters` has the same fields for each named cluster.
    """

    bootstrap_servers: str | None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None, description="Comma-separated host:port pairs. Required unless every source names its cluster."
    )
    clusters: dict[str, KafkaClusterConfig] = Field(
        default_factory=dict[str, KafkaClusterConfig],
        description="Clusters by the name that sources use in set_cluster.",
    )

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("KafkaResource", unnamed, KafkaResource.model_fields)
        super().__init__(**values)
        if values.get("bootstrap_servers") is None and not values.get("clusters"):
            raise ConfigurationError(
                "KafkaResource: missing bootstrap_servers; set the cluster's addresses, or `clusters` if every source "
                "names its cluster"
            )

    def connection(self, cluster: str | None = None) -> KafkaConnection:
        """Returns the connection to a cluster.

        Args:
            cluster: Name in `clusters`. Default: the cluster of the resource's own fields.

        Raises:
            ConfigurationError: The cluster is unknown, or a field is malformed or contradicts another.
        """
        if cluster is not None and cluster not in self.clusters:
            raise ConfigurationError(
                f"the source reads the cluster {cluster!r}, but the clusters of the KafkaResource are "
                f"{', '.join(map(repr, sorted(self.clusters))) or 'none'}: add it to `clusters`, or remove "
                "set_cluster from the source"
            )
        if cluster is None and self.bootstrap_servers is None:
            msg = "the KafkaResource has no bootstrap_servers" + (
                f", and the source does not name one of its clusters ({', '.join(map(repr, sorted(self.clusters)))}): "
                "call set_cluster on the source, or set bootstrap_servers on the resource"
                if self.clusters
                else ": set it to the addresses of the cluster"
            )
            raise ConfigurationError(msg)
        return super().connection() if cluster is None else self.clusters[cluster].connection()


class SparkResource(ConfigurableResource, config_of(SparkSettings)):  # pyright: ignore[reportMissingTypeArgument]
    """A Spark session that starts when an asset first needs it; the assets of a run in one process share it.

    Default: a local session with all cores. If the process already has an active session, the resource uses it and does
    not stop it; one of another Spark Connect server is an error.
    """

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("SparkResource", unnamed, SparkResource.model_fields)
        super().__init__(**values)
        check_known(SparkSettings, values, master="local", remote="sc://host")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return without_values(super().__repr_args__())

    _session: Any = PrivateAttr(default=None)
    _is_own: bool = PrivateAttr(default=False)

    def session(self) -> SparkSession:
        """Returns the session; starts it on the first call.

        Raises:
            SparkSessionError: Spark did not start or has died, or the active session can't write Delta.
            JarDownloadError: The jars could not be downloaded.
            ConfigurationError: Both master and remote are set.
        """
        if self._session is None:
            from dagster_kafka_flip.runtime.session import active_session, build_session

            found = active_session()
            self._session = build_session(**{name: getattr(self, name) for name in SparkSettings.model_fields})
            self._is_own = found is None
        elif self.remote is None:
            from dagster_kafka_flip.runtime.session import check_alive

            # An earlier asset in the same process may have crashed it.
            check_alive(self._session)
        return self._session

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stops the session, if this resource started it."""
        del context
        if self._session is not None and self._is_own:
            from dagster_kafka_flip.runtime.session import end_session

            end_session(self._session)
        self._session = None


_RegistryConfig = config_of(
    SchemaRegistry,
    url="Comma-separated `http` or `https` URLs of one registry, tried in this order. With a login in it: an EnvVar.",
)


class SchemaRegistryResource(ConfigurableResource, _RegistryConfig):  # pyright: ignore[reportMissingTypeArgument]
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


def kafka_of(context: Any, key: str, cluster: str | None) -> KafkaConnection:
    """The connection of a run's KafkaResource to a cluster; None for that of the resource's own fields."""
    resource = getattr(context.resources, key)
    if not hasattr(resource, "connection"):
        expect(f"the resource {key!r}", resource, KafkaResource, 'KafkaResource(bootstrap_servers="localhost:9092")')
    return resource.connection(cluster)


def spark_of(context: Any, key: str) -> Callable[[], SparkSession]:
    """A function that provides the session of a run's SparkResource."""
    resource = getattr(context.resources, key)
    if not hasattr(resource, "session"):
        expect(f"the resource {key!r}", resource, SparkResource, "SparkResource()")
    return resource.session


def registries_of(context: Any, keys: Iterable[str]) -> dict[str, SchemaRegistry]:
    """The registries of a run's SchemaRegistryResources, which formats name by their keys."""
    found: dict[str, SchemaRegistry] = {}
    for key in keys:
        resource = getattr(context.resources, key)
        if not hasattr(resource, "registry"):
            expect(
                f"the resource {key!r}", resource, SchemaRegistryResource, 'SchemaRegistryResource(url="http://...")'
            )
        found[key] = resource.registry()
    return found
