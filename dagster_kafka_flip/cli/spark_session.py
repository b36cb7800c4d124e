"""A short-lived Spark session for a command."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession


@contextlib.contextmanager
def command_session(master: str | None, remote: str | None) -> Generator[SparkSession, None, None]:
    """Context manager with the process's active session, or a new one that is stopped afterwards.

    Args:
        master: Master URL. Default: local[*].
        remote: Spark Connect server, instead of a master. Default: the environment variable SPARK_REMOTE, if there is
            no master either.
    """
    from dagster_kafka_flip.runtime.session import active_session, build_session, connect_address

    joined = active_session()
    # A server refuses the setting below, which only a session of its own can have.
    remote = connect_address(master, remote)
    spark = build_session(master=master, remote=remote, config={} if remote else {"spark.ui.enabled": "false"})
    try:
        yield spark
    finally:
        if joined is None or spark is not joined:
            spark.stop()
