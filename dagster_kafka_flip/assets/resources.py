"""KafkaResource and SparkResource: the Kafka and Spark settings of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dagster import ConfigurableResource, EnvVar, InitResourceContext
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from dagster_kafka_flip.assets.kafka_cluster_config import KafkaClusterConfig
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.session_settings import check_coordinates, check_session_address
from dagster_kafka_flip.settings.arguments import expect, refuse_unnamed
from dagster_kafka_flip.settings.base import describe
from dagster_kafka_flip.settings.hidden import hidden_parameters, hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.connection import KafkaConnection


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


class SparkResource(ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """A Spark session for the assets of a run in one process. Give credentials in `config` as `EnvVar`.

    It starts when an asset first needs it. Default: a local session with all cores. If the process already has an
    active session, the resource uses it and does not stop it.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    master: str | None = Field(default=None, description="A cluster's master URL. Default: `local[*]`.")
    remote: str | None = Field(
        default=None,
        description="A Spark Connect server, such as `sc://host:15002`. Default: the environment variable "
        "SPARK_REMOTE, without a master.",
    )
    config: dict[str, str] = Field(
        default_factory=dict[str, str], description="Additional Spark settings; they override the defaults."
    )
    packages: list[str] = Field(
        default_factory=list[str],
        description="Additional Maven coordinates (`group:name:version`), for a session with a master.",
    )
    app_name: str = Field(default="dagster-kafka-flip", description="The application's name in Spark's UI.")

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("SparkResource", unnamed, SparkResource.model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(f"invalid SparkResource: {describe(error, SparkResource.model_fields)}") from None
        known = {name: value for name, value in values.items() if not isinstance(value, EnvVar)}
        master, remote = known.get("master"), known.get("remote")
        if values.get("master") is not None and values.get("remote") is not None:
            msg = "SparkResource: master and remote are both set; a Spark Connect server has its own master"
            raise ConfigurationError(msg)
        check_session_address("SparkResource: ", master, remote)
        check_coordinates("SparkResource: ", known.get("packages", ()))

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown: dict[str, Any] = {"config": hidden_values(self.config)}
        if self.remote is not None:
            shown["remote"] = hidden_parameters(self.remote)
        for name, value in super().__repr_args__():
            yield name, shown.get(name or "", value)

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

            found = None if self.remote is not None else active_session()
            self._session = build_session(
                master=self.master,
                remote=self.remote,
                config=self.config,
                packages=self.packages,
                app_name=self.app_name,
            )
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


def kafka_of(context: Any, key: str, cluster: str | None) -> KafkaConnection:
    """The connection of a run's KafkaResource to a cluster; None for that of the resource's own fields."""
    return connection_of(getattr(context.resources, key), key, cluster)


def connection_of(resource: Any, key: str, cluster: str | None) -> KafkaConnection:
    """The connection of a KafkaResource to a cluster."""
    if not hasattr(resource, "connection"):
        expect(f"the resource {key!r}", resource, KafkaResource, 'KafkaResource(bootstrap_servers="localhost:9092")')
    return resource.connection(cluster)


def spark_of(context: Any, key: str) -> Callable[[], SparkSession]:
    """A function that provides the session of a run's SparkResource."""
    return session_of(getattr(context.resources, key), key)


def session_of(resource: Any, key: str) -> Callable[[], SparkSession]:
    """A function that provides the session of a SparkResource."""
    if not hasattr(resource, "session"):
        expect(f"the resource {key!r}", resource, SparkResource, "SparkResource()")
    return resource.session
