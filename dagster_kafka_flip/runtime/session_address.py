"""Validates the address of a Spark session before anything waits for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

# The master URLs that SparkContext supports.
_MASTER = re.compile(r"local|local\[(\*|\d+)(\s*,\s*\d+)?\]|local-cluster\[.*\]|spark://.+|yarn|k8s://.+|mesos://.+")
_REMOTE = re.compile(r"sc://[^/;?]+/?(;.*)?")
_COORDINATES = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")


def check_session_address(before: str, master: str | None, remote: str | None) -> None:
    """Validates the address of a Spark session before anything waits for it.

    Args:
        before: Prefix of messages.
        master: Master URL.
        remote: Spark Connect server. Messages do not show it: it may contain a token.
    """
    if master is not None and "@" in master:
        # Not shown: what is before it may be a password.
        msg = f"{before}the Spark master has an @, but masters have no login; write it like spark://host:7077"
        raise ConfigurationError(msg)
    if master is not None and not _MASTER.fullmatch(master):
        msg = (
            f"{before}invalid Spark master {master!r}; write local[*], local[4], spark://host:7077, "
            "yarn or k8s://https://host:443"
        )
        raise ConfigurationError(msg)
    if remote is not None and not _REMOTE.fullmatch(remote):
        msg = f"{before}remote is not a Spark Connect address; write sc://host:15002"
        raise ConfigurationError(msg)


def check_coordinates(before: str, packages: Iterable[object]) -> None:
    """Validates the Maven coordinates of packages.

    Args:
        before: Prefix of messages.
        packages: The packages; anything but text is ignored.
    """
    for package in packages:
        if isinstance(package, str) and not _COORDINATES.fullmatch(package):
            msg = (
                f"{before}packages: invalid Maven coordinate {package!r}; write group:name:version, such as "
                "org.apache.hadoop:hadoop-aws:3.5.0"
            )
            raise ConfigurationError(msg)
