"""Which versions of Spark, Delta, Python and Java go together: refused, tested and documented from this table."""

from __future__ import annotations

import importlib.metadata
from typing import NamedTuple

from packaging.version import Version

from dagster_kafka_flip.errors import ConfigurationError


class Engine(NamedTuple):
    """A Spark and its later patches up to the next row's, the oldest Delta for it, and what tests them."""

    spark: str
    delta: str
    python: str
    java: int
    target: str


ENGINES = (
    Engine("4.0.1", "4.0.1", "3.10", 17, "make test-versions"),
    Engine("4.0.1", "4.4.0", "3.12", 21, "make test-versions"),
    Engine("4.1.0", "4.1.0", "3.12", 17, "make test-versions"),
    Engine("4.1.0", "4.3.0", "3.13", 21, "make test-versions"),
    Engine("4.1.2", "4.4.0", "3.12", 21, "make test-versions"),
    Engine("4.2.0", "4.4.0", "3.11", 17, "make test"),
    Engine("4.2.0", "4.4.0", "3.13", 25, "make test-versions"),
)
"""Oldest first.

Spark changes what Delta is linked to in patches too (`ParquetToSparkSchemaConverter` in 4.0.1 and 4.1.2), and then an
older Delta fails with NoSuchMethodError at the first row that is read; so does Delta 4.4 on Spark 4.3. Delta 4.3 is
linked to what Spark 4.1.2 has, but its package allows no Spark after 4.1.1.
"""


def installed_engine() -> tuple[Version, Version]:
    """The installed versions of Spark and Delta."""
    spark, delta = (Version(importlib.metadata.version(package)) for package in ("pyspark", "delta-spark"))
    # Each Delta has jars for the Sparks of its time and some before, so a Spark needs one Delta or any later one.
    deltas = {Version(each.spark): Version(each.delta) for each in reversed(ENGINES)}
    row = max((each for each in deltas if each <= spark and each.release[:2] == spark.release[:2]), default=None)
    if row is None or delta < deltas[row]:
        pairs = ", ".join(f"pyspark {each} with delta-spark {deltas[each]} or newer" for each in sorted(deltas))
        msg = (
            f"pyspark {spark} does not go with delta-spark {delta}, so Spark is not started. These go together, each "
            f"with later patches of its pyspark up to the next: {pairs}. Install one of these pairs"
        )
        raise ConfigurationError(msg)
    return spark, delta
