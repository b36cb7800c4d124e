"""Checks where a Spark session is to be, before anything waits for it."""

from __future__ import annotations

import re

from dagster_kafka_flip.errors import ConfigurationError

# What SparkContext makes a scheduler of.
_MASTER = re.compile(r"local|local\[(\*|\d+)(\s*,\s*\d+)?\]|local-cluster\[.*\]|spark://.+|yarn|k8s://.+|mesos://.+")
_REMOTE = re.compile(r"sc://[^/;]+.*")


def check_session_address(before: str, master: str | None, remote: str | None) -> None:
    """Checks where a Spark session is to be, before anything waits for it.

    Args:
        before: Where that is said, for messages.
        master: Master URL.
        remote: Spark Connect server. Not repeated in messages: a token may be in it.

    Raises:
        ConfigurationError: One of them is malformed.
    """
    if master is not None and not _MASTER.fullmatch(master):
        msg = (
            f"{before}master {master!r} is no master of Spark; write local[*], local[4], spark://host:7077, "
            "yarn or k8s://https://host:443"
        )
        raise ConfigurationError(msg)
    if remote is not None and not _REMOTE.fullmatch(remote):
        msg = f"{before}remote is no address of a Spark Connect server; write sc://host:15002"
        raise ConfigurationError(msg)
