"""The jars that a Spark session needs to read Kafka, decode records, and write Delta."""

from __future__ import annotations

import importlib.metadata
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.jars import jars_of_pyspark, retrieve

if TYPE_CHECKING:
    from collections.abc import Sequence

JAR = Path(__file__).with_name("dagster-kafka-flip.jar")
"""The library."""

VERSION_ENTRY = "io/dagsterkafkaflip/version.txt"
"""Its entry with the version, a digest of its source."""


@cache
def library_version() -> str:
    """The library's version."""
    with zipfile.ZipFile(JAR) as jar:
        return jar.read(VERSION_ENTRY).decode()


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
        raise ConfigurationError(
            f"pyspark {spark} does not go with delta-spark {delta}, so Spark is not started. These go together, each "
            f"with later patches of its pyspark up to the next: {pairs}",
            "Install one of these pairs",
        )
    return spark, delta


# All of Amazon's services in one jar of 559 MB. Who names parts of the SDK doesn't need it.
_AMAZON = ("software.amazon.awssdk:", "com.amazonaws:")
_BUNDLE = "software.amazon.awssdk:bundle"


def brought_by_spark() -> set[str]:
    """The artifacts that the installed Spark has anyway.

    Downloading them would cost 60 MB, and every session a copy; and from a class archive they would come before Spark's
    own, which are often of another version.
    """
    return {re.sub(r"-\d.*", "", jar) for jar in jars_of_pyspark()}


def spark_packages() -> tuple[str, ...]:
    """Maven coordinates of the Kafka source, Avro and Delta for the installed pyspark and delta-spark.

    From Delta 4.1 on, Delta's artifact name includes Spark's version.

    Raises:
        ConfigurationError: The two don't go together.
    """
    return packages_of(*installed_engine())


def packages_of(spark: Version, delta: Version) -> tuple[str, ...]:
    """The same for versions that need not be installed."""
    infix = f"_{spark.major}.{spark.minor}" if (delta.major, delta.minor) >= (4, 1) else ""
    return (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
        f"org.apache.spark:spark-avro_2.13:{spark}",
        f"io.delta:delta-spark{infix}_2.13:{delta}",
    )


def jars_advice() -> str:
    """What to do if Spark lacks one of them."""
    return (
        f"Start Spark, or its Connect server, with the packages {', '.join(spark_packages())}. A session whose config "
        "has spark.jars or spark.jars.packages gets no others: leave these out, or name all jars there"
    )


def fetch_jars(packages: Sequence[str] = ()) -> list[str]:
    """Paths of a session's jars, downloaded on the first call and then cached, and of this package's own."""
    own = spark_packages()
    named = {package.split(":")[1] for package in packages if ":" in package}
    excludes = [f"*:{artifact}" for artifact in brought_by_spark() - named]
    if any(package.startswith(_AMAZON) for package in packages) and _BUNDLE.partition(":")[2] not in named:
        excludes.append(_BUNDLE)
    return [*map(str, retrieve([*own, *packages], excludes=excludes, older=own)), str(JAR)]
