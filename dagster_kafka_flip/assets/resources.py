"""KafkaResource and SparkResource: where Kafka is, and what Spark to use, in one environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from dagster import ConfigurableResource, EnvVar, InitResourceContext
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from dagster_kafka_flip.assets.kafka_cluster_config import KafkaClusterConfig
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.session_address import check_session_address
from dagster_kafka_flip.settings import describe, expect, hidden_parameters, hidden_values, refuse_unnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.connection import KafkaConnection


_COORDINATES = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")


class KafkaResource(ConfigurableResource, KafkaClusterConfig):  # pyright: ignore[reportMissingTypeArgument]
    """One Kafka cluster, or several by name. Give passwords as `EnvVar`, so that they are in no code and no run config.

    The fields are those of KafkaConnection, for the cluster of sources that name none; `clusters` has one set of them
    for each cluster that sources name with `set_cluster`.
    """

    bootstrap_servers: str | None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None, description="Comma-separated host:port pairs. Needed unless every source names its cluster."
    )
    clusters: dict[str, KafkaClusterConfig] = Field(
        default_factory=dict[str, KafkaClusterConfig],
        description="Clusters by the name that sources give in set_cluster.",
    )

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("KafkaResource", unnamed, KafkaResource.model_fields)
        super().__init__(**values)
        if values.get("bootstrap_servers") is None and not values.get("clusters"):
            msg = (
                "KafkaResource: bootstrap_servers is missing; give the addresses of the cluster, or `clusters`, if "
                "every source names its own"
            )
            raise ConfigurationError(msg)

    def connection(self, cluster: str | None = None) -> KafkaConnection:
        """How to reach a cluster.

        Args:
            cluster: Its name in `clusters`. Default: the one that the resource's own fields describe.

        Raises:
            ConfigurationError: There is no such cluster, or a field is malformed or contradicts another.
        """
        if cluster is not None and cluster not in self.clusters:
            msg = (
                f"the source reads the cluster {cluster!r}, and the KafkaResource knows "
                f"{', '.join(map(repr, sorted(self.clusters))) or 'no cluster by name'}: add it to `clusters`, or "
                "leave set_cluster out of the source"
            )
            raise ConfigurationError(msg)
        if cluster is None and self.bootstrap_servers is None:
            msg = "the KafkaResource has no bootstrap_servers" + (
                f", and the source names none of its clusters ({', '.join(map(repr, sorted(self.clusters)))}): call "
                "set_cluster on the source, or give the resource bootstrap_servers"
                if self.clusters
                else ": give it the addresses of the cluster"
            )
            raise ConfigurationError(msg)
        return super().connection() if cluster is None else self.clusters[cluster].connection()


class SparkResource(ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """A Spark session, started when an asset first needs it and shared by the assets of a run in one process.

    By default a local one with all cores. If a session is active in the process already, it is used as it is, and left
    alone at the end.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    master: str | None = Field(default=None, description="Master URL of a cluster. Default: local[*].")
    remote: str | None = Field(default=None, description="Spark Connect server, such as sc://host:15002.")
    config: dict[str, str] = Field(default_factory=dict[str, str], description="Further Spark settings; they win.")
    packages: list[str] = Field(default_factory=list[str], description="Further Maven coordinates, group:name:version.")
    app_name: str = Field(default="dagster-kafka-flip", description="The application's name in Spark's UI.")

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed("SparkResource", unnamed, SparkResource.model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            msg = f"invalid SparkResource: {describe(error, SparkResource.model_fields)}"
            raise ConfigurationError(msg) from None
        known = {name: value for name, value in values.items() if not isinstance(value, EnvVar)}
        master, remote = known.get("master"), known.get("remote")
        if values.get("master") is not None and values.get("remote") is not None:
            msg = "SparkResource: master and remote are both given; a Spark Connect server has its own master"
            raise ConfigurationError(msg)
        check_session_address("SparkResource: ", master, remote)
        for package in known.get("packages", ()):
            if isinstance(package, str) and not _COORDINATES.fullmatch(package):
                msg = (
                    f"SparkResource: packages: {package!r} names no Maven artifact; write it as group:name:version, "
                    "such as org.apache.hadoop:hadoop-aws:3.4.1"
                )
                raise ConfigurationError(msg)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown: dict[str, Any] = {"config": hidden_values(self.config)}
        if self.remote is not None:
            shown["remote"] = hidden_parameters(self.remote)
        for name, value in super().__repr_args__():
            yield name, shown.get(name or "", value)

    _session: Any = PrivateAttr(default=None)
    _is_own: bool = PrivateAttr(default=False)

    def session(self) -> SparkSession:
        """The session; starts it on the first call.

        Raises:
            SparkSessionError: Spark did not start or is gone, or the session that is there can't write Delta.
            JarDownloadError: The jars could not be fetched.
            ConfigurationError: Both master and remote are given.
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

            # An asset before in the same process may have used up its memory.
            check_alive(self._session)
        return self._session

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Ends the session, if this resource started it."""
        del context
        if self._session is not None and self._is_own:
            from dagster_kafka_flip.runtime.session import end_session

            end_session(self._session)
        self._session = None


def kafka_of(context: Any, key: str, cluster: str | None) -> KafkaConnection:
    """How the KafkaResource of a run reaches a cluster.

    Args:
        context: Of the run.
        key: The resource's key.
        cluster: The cluster's name in it. Default: its own fields.

    Raises:
        ConfigurationError: The resource is something else, or can't reach it.
    """
    return connection_of(getattr(context.resources, key), key, cluster)


def connection_of(resource: Any, key: str, cluster: str | None) -> KafkaConnection:
    """How a KafkaResource reaches a cluster.

    Args:
        resource: It.
        key: Its key.
        cluster: The cluster's name in it. Default: its own fields.

    Raises:
        ConfigurationError: It is something else, or can't reach it.
    """
    if not hasattr(resource, "connection"):
        expect(f"the resource {key!r}", resource, KafkaResource, 'KafkaResource(bootstrap_servers="localhost:9092")')
    return resource.connection(cluster)


def spark_of(context: Any, key: str) -> Callable[[], SparkSession]:
    """What gives the Spark session of a run's SparkResource.

    Args:
        context: Of the run.
        key: The resource's key.

    Raises:
        ConfigurationError: The resource is something else.
    """
    return session_of(getattr(context.resources, key), key)


def session_of(resource: Any, key: str) -> Callable[[], SparkSession]:
    """What gives the session of a SparkResource.

    Args:
        resource: It.
        key: Its key.

    Raises:
        ConfigurationError: It is something else.
    """
    if not hasattr(resource, "session"):
        expect(f"the resource {key!r}", resource, SparkResource, "SparkResource()")
    return resource.session
