"""The Spark session of a task by one of Airflow's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk.log import mask_secret

from dagster_kafka_flip.airflow.given import extra_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.spark_settings import SparkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection


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
