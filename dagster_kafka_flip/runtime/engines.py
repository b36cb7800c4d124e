"""Which versions of Spark, Delta, Python and Java go together: refused, tested and documented from this table."""

from __future__ import annotations

import importlib.metadata
from typing import NamedTuple

from packaging.version import Version

from dagster_kafka_flip.errors import ConfigurationError


class Engine(NamedTuple):
    """Versions that are tested together, and by which target of the Makefile."""

    spark: str
    delta: str
    python: str
    java: int
    target: str


ENGINES = (
    Engine("4.0", "4.0", "3.10", 17, "make test-versions"),
    Engine("4.0", "4.4", "3.12", 21, "make test-versions"),
    Engine("4.1", "4.1", "3.12", 17, "make test-versions"),
    Engine("4.1", "4.3", "3.13", 21, "make test-versions"),
    Engine("4.2", "4.4", "3.11", 17, "make test"),
    Engine("4.2", "4.4", "3.13", 25, "make test-versions"),
)
"""Oldest first. Spark 4.3 is not among them: Delta 4.4 fails on it with NoSuchMethodError."""


def installed_engine() -> tuple[Version, Version]:
    """The installed versions of Spark and Delta."""
    spark, delta = (Version(importlib.metadata.version(package)) for package in ("pyspark", "delta-spark"))
    # Each Delta has jars for the Sparks of its time and some before, so a Spark needs one Delta or any later one.
    oldest = next((each.delta for each in ENGINES if each.spark == f"{spark.major}.{spark.minor}"), None)
    if oldest is None or delta < Version(oldest):
        deltas = {each.spark: each.delta for each in reversed(ENGINES)}
        pairs = ", ".join(f"pyspark {each} with delta-spark {deltas[each]} or newer" for each in sorted(deltas))
        msg = (
            f"pyspark {spark} does not go with delta-spark {delta}, so Spark is not started. These go together: "
            f"{pairs}. Install one of these pairs"
        )
        raise ConfigurationError(msg)
    return spark, delta
