"""A second Spark session with the same settings and catalog; settings that are changed in it stay in it."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.runtime.jvm_library import use_library, uses_library
from dagster_kafka_flip.runtime.remote import is_remote

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pyspark.sql import SparkSession


@contextlib.contextmanager
def isolated_session(spark: SparkSession, settings: Mapping[str, str]) -> Generator[SparkSession]:
    """A session of its own on the same Spark, with the session's settings, catalog and schema, and further settings.

    It sees global temporary views.
    """
    with new_session(spark) as session:
        _take_over(spark, session)
        for name, value in settings.items():
            session.conf.set(name, value)
        if uses_library(spark):
            use_library(session)
        yield session


@contextlib.contextmanager
def new_session(spark: SparkSession) -> Generator[SparkSession]:
    """A session on the same Spark, with only the settings that Spark was started with."""
    session: Any = _beside(spark) if is_remote(spark) else spark.newSession()
    try:
        yield session
    finally:
        if is_remote(spark):
            # Not `stop`: it would also stop a server that runs in this process.
            with contextlib.suppress(Exception):
                session.client.release_session()
            # Nor the client's `close`, which the session's finalizer calls, too: it ends the threads that all clients
            # of a process share, maybe in the middle of another one's request, which then fails.
            with contextlib.suppress(Exception):
                session.client.close = session.client._channel.close  # noqa: SLF001
                session.client.close()


def _beside(spark: SparkSession) -> Any:
    """Another session on the same Spark Connect server."""
    kind: Any = type(spark)
    client: Any = spark.client
    # The client's only way to the address, the TLS settings and the token that it was made with.
    builder = copy.copy(client._builder)  # noqa: SLF001
    # An address may name the session, and that one is taken.
    builder._params = {name: value for name, value in builder._params.items() if name != builder.PARAM_SESSION_ID}  # noqa: SLF001
    return kind(connection=builder, userId=client._user_id)  # noqa: SLF001


def _take_over(spark: SparkSession, session: SparkSession) -> None:
    ours, theirs = spark.conf.getAll, session.conf.getAll
    for name in theirs.keys() - ours.keys():
        # Spark was started with it, and it was unset since.
        with contextlib.suppress(Exception):
            session.conf.unset(name)
    for name, value in ours.items():
        if theirs.get(name) != value:
            # What Spark fixes at its start is the same for both.
            with contextlib.suppress(Exception):
                session.conf.set(name, value)
    if (catalog := spark.catalog.currentCatalog()) != session.catalog.currentCatalog():
        session.catalog.setCurrentCatalog(catalog)
    if (schema := spark.catalog.currentDatabase()) != session.catalog.currentDatabase():
        session.catalog.setCurrentDatabase(schema)
