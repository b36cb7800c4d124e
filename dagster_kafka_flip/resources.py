"""KafkaResource and SparkResource: where Kafka is, and what Spark to use, in one environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource, EnvVar, InitResourceContext
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.kafka_cluster_config import KafkaClusterConfig
from dagster_kafka_flip.settings import expect, hidden_parameters, hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.connection import KafkaConnection


# What SparkContext makes a scheduler of.
_MASTER = re.compile(r"local|local\[(\*|\d+)(\s*,\s*\d+)?\]|local-cluster\[.*\]|spark://.+|yarn|k8s://.+|mesos://.+")


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

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        known = {name: value for name, value in values.items() if not isinstance(value, EnvVar)}
        master, remote = known.get("master"), known.get("remote")
        if values.get("master") is not None and values.get("remote") is not None:
            msg = "SparkResource: master and remote are both given; a Spark Connect server has its own master"
            raise ConfigurationError(msg)
        if master is not None and not _MASTER.fullmatch(master):
            msg = (
                f"SparkResource: master {master!r} is no master of Spark; write local[*], local[4], spark://host:7077, "
                "yarn or k8s://https://host:443"
            )
            raise ConfigurationError(msg)
        if remote is not None and not remote.startswith("sc://"):
            msg = "SparkResource: remote is no address of a Spark Connect server; write sc://host:15002"
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
            SparkSessionError: Spark did not start, or the session that is there can't write Delta.
            JarDownloadError: The jars could not be fetched.
            ConfigurationError: Both master and remote are given.
        """
        if self._session is None:
            from dagster_kafka_flip.session import active_session, build_session

            found = None if self.remote is not None else active_session()
            self._session = build_session(
                master=self.master,
                remote=self.remote,
                config=self.config,
                packages=self.packages,
                app_name=self.app_name,
            )
            self._is_own = found is None
        return self._session

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Ends the session, if this resource started it."""
        del context
        if self._session is not None and self._is_own:
            self._session.stop()
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
    found = getattr(context.resources, key)
    if not hasattr(found, "connection"):
        expect(f"the resource {key!r}", found, KafkaResource, 'KafkaResource(bootstrap_servers="localhost:9092")')
    return found.connection(cluster)


def spark_of(context: Any, key: str) -> Callable[[], SparkSession]:
    """What gives the Spark session of a run's SparkResource.

    Args:
        context: Of the run.
        key: The resource's key.

    Raises:
        ConfigurationError: The resource is something else.
    """
    found = getattr(context.resources, key)
    if not hasattr(found, "session"):
        expect(f"the resource {key!r}", found, SparkResource, "SparkResource()")
    return found.session
