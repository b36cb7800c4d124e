"""Brings this package's Java library, which decodes records, into Spark sessions."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import DecoderLibraryError, SparkSessionError, error_text
from dagster_kafka_flip.runtime.remote import is_remote
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.runtime.spark_jars import JAR, library_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "dagster_kafka_flip"
"""The catalog in which Spark finds the library's functions."""

_CLASS = "io.dagsterkafkaflip.FlipCatalog"

_users: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def use_library(session: SparkSession) -> None:
    """Makes the library's functions known to a session, if they are not, and checks the library's version."""
    if session in _users:
        return
    try:
        with dead_spark_as_error():
            session.conf.set(f"spark.sql.catalog.{CATALOG}", _CLASS)
            found = _found(session)
    except SparkSessionError:
        raise
    except Exception as error:
        first_line = error_text(error).strip().partition("\n")[0]
        raise DecoderLibraryError(
            f"the Spark session can't load this package's Java library, which decodes records: {first_line}",
            f"Put {JAR} into spark.jars where Spark, or its Connect server, is started",
        ) from error
    if found != library_version():
        raise DecoderLibraryError(
            f"the Spark session has the Java library of another version of dagster-kafka-flip ({found}; this one needs "
            f"{library_version()})",
            f"Start Spark, or its Connect server, again; if its spark.jars names a copy, replace it by {JAR}",
        )
    _users.add(session)


def uses_library(session: SparkSession) -> bool:
    """Whether a session has been given the library."""
    return session in _users


def _found(session: SparkSession) -> str:
    """The version of the library that the session has, which is brought if there is none."""
    try:
        return _asked(session)
    except Exception:  # noqa: BLE001 - of several kinds, by Spark's version
        _bring(session)
        return _asked(session)


def _asked(session: SparkSession) -> str:
    row = session.sql(f"SELECT {CATALOG}.version()").first()
    return "" if row is None else str(row[0])


def _bring(session: SparkSession) -> None:
    if is_remote(session):
        session.addArtifact(str(JAR))
    else:
        session.sql(f"ADD JAR '{JAR}'")
