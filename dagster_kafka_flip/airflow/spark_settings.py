"""SparkSettings: the Spark session of a task, also by one of Airflow's connections."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk.log import mask_secret
from pydantic import Field

from dagster_kafka_flip.airflow.given import extra_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.session_settings import check_coordinates, check_session_address
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.hidden import hidden_parameters, hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from airflow.sdk import Connection
    from pyspark.sql import SparkSession


class SparkSettings(Settings):
    """The Spark session of a task: it starts when there is something to read, and ends with the task.

    If the process already has an active session, the task uses it and does not stop it.

    Attributes:
        master: Master URL of a cluster. Default: `local[*]`.
        remote: Spark Connect server, such as `sc://host:15002`. Default: the environment variable SPARK_REMOTE.
        config: Additional Spark settings; they override the defaults. Values are never shown.
        packages: Additional Maven coordinates, group:name:version.
        app_name: The application's name in Spark's UI. Default: `dagster-kafka-flip`.
    """

    master: str | None = None
    remote: str | None = None
    config: Mapping[str, str] = Field(default_factory=dict[str, str])
    packages: tuple[str, ...] = ()
    app_name: str = "dagster-kafka-flip"

    def model_post_init(self, context: Any, /) -> None:
        """Checks addresses and coordinates.

        Raises:
            ConfigurationError: One is malformed, or master and remote are both set.
        """
        del context
        if self.master is not None and self.remote is not None:
            msg = "SparkSettings: master and remote are both set; a Spark Connect server has its own master"
            raise ConfigurationError(msg)
        check_session_address("SparkSettings: ", self.master, self.remote)
        check_coordinates("SparkSettings: ", self.packages)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown: dict[str, Any] = {"config": hidden_values(self.config)}
        if self.remote is not None:
            shown["remote"] = hidden_parameters(self.remote)
        for name, value in super().__repr_args__():
            yield name, shown.get(name or "", value)

    def __str__(self) -> str:
        return repr(self)

    @contextlib.contextmanager
    def session(self, started: Callable[[SparkSession], None]) -> Generator[Callable[[], SparkSession]]:
        """Provides a function that returns the session, and starts it on the first call; ends what it started.

        Args:
            started: Called with the session once it is there.
        """
        from dagster_kafka_flip.runtime.session import temporary_session

        with contextlib.ExitStack() as stack:

            @functools.cache
            def get() -> SparkSession:
                session = stack.enter_context(
                    temporary_session(self.master, self.remote, self.config, self.packages, self.app_name)
                )
                started(session)
                return session

            yield get


# Names in the provider's extra that are not Spark's.
_SETTINGS: Mapping[str, str] = {
    "keytab": "spark.kerberos.keytab",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
    "queue": "spark.yarn.queue",
}
# Options of spark-submit, which is not used.
_UNUSED = frozenset({"spark-binary", "spark-home"})
_CONNECT_PORT = 15002


def spark_settings_of(connection: Connection) -> SparkSettings:
    """The settings of a connection of type `spark` or `spark_connect`; has Airflow mask its token in every log."""
    readers = {"spark": _of_master, "spark_connect": _of_server}
    read = readers.get(connection.conn_type or "")
    if read is None:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has the type {connection.conn_type!r}; Spark's are 'spark' and "
            "'spark_connect'"
        )
    if not connection.host:
        raise ConfigurationError(f"the connection {connection.conn_id!r} has no address of Spark: set its host")
    return read(connection, connection.host)


def _of_master(connection: Connection, host: str) -> SparkSettings:
    config: dict[str, str] = {}
    for name, value in extra_of(connection).items():
        if name == "deploy-mode" and value == "cluster":
            raise ConfigurationError(
                f"the connection {connection.conn_id!r}: deploy-mode is cluster, but Spark's driver runs in the task's "
                "process: set it to client"
            )
        if name.startswith("spark."):
            config[name] = str(value)
        elif name in _SETTINGS:
            config[_SETTINGS[name]] = str(value)
        elif name not in (*_UNUSED, "deploy-mode"):
            known = ", ".join(sorted((*_SETTINGS, *_UNUSED, "deploy-mode")))
            msg = (
                f"the connection {connection.conn_id!r}: {name} is unknown; its extra has Spark's settings, or {known}"
            )
            raise ConfigurationError(msg)
    return SparkSettings(master=f"{host}:{connection.port}" if connection.port else host, config=config)


def _of_server(connection: Connection, host: str) -> SparkSettings:
    given = {"user_id": connection.login, "token": connection.password}
    if extra_of(connection).get("use_ssl"):
        given["use_ssl"] = "true"
    if connection.password:
        mask_secret(connection.password)
        mask_secret(quote(connection.password, safe=""))
    parameters = "".join(f";{name}={quote(value, safe='')}" for name, value in given.items() if value)
    address = f"{host.removeprefix('sc://')}:{connection.port or _CONNECT_PORT}"
    return SparkSettings(remote=f"sc://{address}/{parameters}" if parameters else f"sc://{address}")
