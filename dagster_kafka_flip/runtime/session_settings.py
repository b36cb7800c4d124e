"""Settings of a Spark session that reads Kafka and writes Delta."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.class_archive import archive_options
from dagster_kafka_flip.settings.hidden import CREDENTIALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
SESSION_ZONE = "spark.sql.session.timeZone"

# Each read of Kafka has its own group, so Spark never reuses a cached consumer; each caches prefetched records, which
# after some runs in one session would fill the heap.
_KAFKA_SETTINGS = {
    "spark.kafka.consumer.cache.timeout": "1s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "1s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "1s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
}


# Parquet looks at the size of what it has buffered after a hundred rows at the earliest: half a gigabyte, if each has
# five megabytes. Behind small rows it looks after ten thousand more. Spark reads a large column of a block into twice
# its memory: of Parquet's usual 128 MB, two tasks fill a gigabyte.
PARQUET_SETTINGS = {
    "parquet.block.size": str(32 << 20),
    **{
        f"parquet.{what}.size.row.check.{bound}": rows
        for what in ("page", "block")
        for bound, rows in (("min", "1"), ("max", "10"))
    },
}


def session_settings() -> dict[str, str]:
    """Settings that a running session accepts: UTC, the faster Kafka source, cheap times and small commits."""
    return {
        SESSION_ZONE: "UTC",
        # The default list without Kafka, whose version 2 source avoids a conversion to rows.
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        # Spark's default, INT96, is slower to write and has no statistics in Parquet.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # 50 tasks to read a log of a few files take longer than reading the files.
        "spark.databricks.delta.snapshotPartitions": "2",
        # From Delta 4.1 on, a write would otherwise follow a RESTORE that was committed in its middle.
        "spark.databricks.delta.featureEnablement.conflictResolution.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
        # VACUUM makes so many tasks, by default 10,000, to list the files of the smallest table.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
        # To find the last change of a key, Spark keeps 4,096 of its changes in memory before it can spill them.
        "spark.sql.windowExec.buffer.in.memory.threshold": "32",
    }


def own_settings() -> dict[str, str]:
    """All settings of a session that this package starts."""
    return {
        **session_settings(),
        **_KAFKA_SETTINGS,
        **{f"spark.hadoop.{name}": value for name, value in PARQUET_SETTINGS.items()},
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        # Otherwise each operation on a column asks the JVM several more times, to note its line for errors.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


# The master URLs that SparkContext supports.
_MASTER = re.compile(r"local|local\[(\*|\d+)(\s*,\s*\d+)?\]|local-cluster\[.*\]|spark://.+|yarn|k8s://.+|mesos://.+")
_REMOTE = re.compile(r"sc://[^/;?]+/?(;.*)?")
_COORDINATES = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")


def check_session_address(master: str | None, remote: str | None) -> None:
    """Validates a Spark session's address before anything waits for it. A remote is not shown: it may have a token."""
    if master is not None and "@" in master:
        # Not shown: what is before it may be a password.
        msg = "the Spark master has an @, but masters have no login; write it like spark://host:7077"
        raise ConfigurationError(msg)
    if master is not None and not _MASTER.fullmatch(master):
        raise ConfigurationError(
            f"invalid Spark master {master!r}; write local[*], local[4], spark://host:7077, "
            "yarn or k8s://https://host:443"
        )
    if remote is not None and not _REMOTE.fullmatch(remote):
        raise ConfigurationError("remote is not a Spark Connect address; write sc://host:15002")


def check_coordinates(packages: Iterable[str]) -> None:
    """Validates the Maven coordinates of packages."""
    for package in packages:
        if not _COORDINATES.fullmatch(package):
            raise ConfigurationError(
                f"packages: invalid Maven coordinate {package!r}; write group:name:version, such as "
                "org.apache.hadoop:hadoop-aws:3.5.0"
            )


_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"
_LOGGING = Path(__file__).with_name("log4j2.properties")

# Other places that may choose a garbage collector. Java does not start with two.
_OPTIONS_BY_ENVIRONMENT = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")
_COLLECTOR = re.compile(r"-XX:[+-]Use\w*GC\b")

# When Java compiles with its second, optimizing compiler: ten times as late as by default. In a short run it otherwise
# spends more of the cores on that than on the run; what a large batch repeats gets there within the first records.
_LATE_OPTIMIZATION = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# Delta reads the times in partition columns, which Spark wrote in the session's time zone, in that of the JVM.
_TIME_ZONE = "-Duser.timezone=UTC"

_COMPILER = re.compile(r"-XX:[+-]?(?:Tier|Compil)|-X(?:int|comp)\b")


def local_settings(settings: Mapping[str, str], jars: Sequence[str], *, is_new_jvm: bool) -> dict[str, str]:
    """The settings of a session in one process; the user's win. Only that of a new JVM has a class path to choose."""
    local = dict(settings)
    options = [settings.get(_JAVA_OPTIONS, "")]
    if "log4j" not in options[0]:
        options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    given = [*options, *(os.environ.get(name, "") for name in _OPTIONS_BY_ENVIRONMENT)]
    if not any(map(_COLLECTOR.search, given)):
        # For a batch job, throughput matters, and pauses don't.
        options.append("-XX:+UseParallelGC")
    if not any(map(_COMPILER.search, given)):
        options += _LATE_OPTIMIZATION
    if not any("user.timezone" in each for each in given):
        options.append(_TIME_ZONE)
    is_given = _CLASS_PATH in settings or "SharedArchiveFile" in options[0]
    archive = archive_options(jars) if jars and is_new_jvm and not is_given else []
    if archive:
        # This puts them before Spark's own jars, which not every version of Delta supports. Creating the archive showed
        # that this one does.
        local[_CLASS_PATH] = os.pathsep.join(jars)
        options += archive
    elif jars:
        local["spark.jars"] = ",".join(filter(None, [*jars, settings.get("spark.jars")]))
    local[_JAVA_OPTIONS] = " ".join(filter(None, options))
    # A laptop's host name may resolve to an address that nothing listens on.
    local.setdefault("spark.driver.bindAddress", "127.0.0.1")
    local.setdefault("spark.driver.host", "127.0.0.1")
    # How often running tasks report progress; one process can afford more than every 10 seconds.
    local.setdefault("spark.executor.heartbeatInterval", "3s")
    return local


# Keeps credentials out of logs at every log level.
#
# Spark redacts a setting if its name or its value matches `spark.redaction.regex`: in plans, in its UI and REST API,
# and in what its Kafka source logs. py4j, which carries the settings from Python to the JVM, logs each of them at
# DEBUG.


REDACTION = "spark.redaction.regex"

_PY4J_LOGGERS = ("py4j", "py4j.clientserver", "py4j.java_gateway")
_CONNECT_LOGGER = "pyspark.sql.connect.logging"
_MAY_HOLD_SECRETS = re.compile(r"kafka\.|" + CREDENTIALS)


def redaction_regex(config: Mapping[str, str]) -> str:
    """A Spark session's redaction regex: from its configuration, plus the credentials of Kafka's clients."""
    own = config.get(REDACTION)
    return CREDENTIALS if own is None else f"(?:{own})|{CREDENTIALS}"


def hide_from_logs() -> None:
    """Prevents the loggers of py4j and Spark Connect's client from printing a Kafka client's settings."""
    from pyspark.logger import PySparkLogger

    # With pyspark's own function: its loggers take more arguments than Python's.
    for logger in (*map(logging.getLogger, _PY4J_LOGGERS), PySparkLogger.getLogger(_CONNECT_LOGGER)):
        if _hide not in logger.filters:
            logger.addFilter(_hide)


def _hide(record: logging.LogRecord) -> bool:
    if _MAY_HOLD_SECRETS.search(record.getMessage()):
        record.msg, record.args = "(message about Kafka or credentials, not logged)", ()
    return True
