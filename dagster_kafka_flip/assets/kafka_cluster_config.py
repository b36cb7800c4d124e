"""KafkaClusterConfig: connection settings of one Kafka cluster, as Dagster config."""

from __future__ import annotations

from typing import Any, NoReturn

from dagster_kafka_flip.assets.config_fields import check_known, config_of
from dagster_kafka_flip.source.connection import KafkaConnection


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
