"""KafkaResource and SparkResource: where Kafka is, and what Spark to use, in one environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource, InitResourceContext
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from dagster_kafka_flip.source.connection import KafkaConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KafkaResource(ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """One Kafka cluster. Give passwords as `EnvVar`, so that they are in no code and no run config.

    The fields are those of KafkaConnection, which `connection()` makes of them.
    """

    # A misspelt field must not be passed over: it may be the one that asks for encryption.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    bootstrap_servers: str = Field(description="Comma-separated host:port pairs.")
    security_protocol: str = Field(
        default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as in Kafka's security.protocol."
    )
    sasl_mechanism: str | None = Field(
        default=None, description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER."
    )
    sasl_username: str | None = Field(default=None, description="Needed with PLAIN and SCRAM.")
    sasl_password: str | None = Field(default=None, description="Needed with PLAIN and SCRAM. Give it as an EnvVar.")
    ssl_ca_location: str | None = Field(default=None, description="PEM file of the authorities to trust.")
    ssl_certificate_location: str | None = Field(default=None, description="PEM file of the client's certificate.")
    ssl_key_location: str | None = Field(default=None, description="PEM file of the client's private key.")
    ssl_key_password: str | None = Field(default=None, description="The private key's password, as an EnvVar.")
    client_id: str = Field(default="dagster-kafka-flip", description="The client's name in the broker's logs.")
    request_timeout: float = Field(default=20.0, description="Seconds to wait for one metadata or offsets request.")
    read_timeout: float = Field(
        default=120.0, description="Seconds that a Spark task waits for records before it fails."
    )
    properties: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Client settings without a field, for planning and reading, under the Java consumer's names.",
    )
    librdkafka_properties: dict[str, str] = Field(
        default_factory=dict[str, str], description="Settings of the client that plans, under librdkafka's names."
    )
    java_properties: dict[str, str] = Field(
        default_factory=dict[str, str], description="Settings of the client that reads inside Spark."
    )

    def connection(self) -> KafkaConnection:
        """How to reach the cluster.

        Raises:
            ConfigurationError: A field is malformed or contradicts another.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("sasl_password", "ssl_key_password"):
            values[name] = None if values[name] is None else SecretStr(values[name])
        return KafkaConnection(**values)


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
