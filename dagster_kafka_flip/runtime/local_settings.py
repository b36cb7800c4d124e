"""Additional Spark settings for a local session, or a local server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.class_archive import archive_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """The settings of a session in one process.

    Args:
        settings: The user's settings; they win.
        jars: The jars that it needs in addition to pyspark's.
        is_new_jvm: Whether a JVM is started for it, so that the class path can be chosen.
    """
    local = dict(settings)
    options = [settings.get(_JAVA_OPTIONS, "")]
    if "log4j" not in options[0]:
        options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    given = [*options, *map(_from_environment, _OPTIONS_BY_ENVIRONMENT)]
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
        local["spark.jars"] = ",".join(jars)
    local[_JAVA_OPTIONS] = " ".join(filter(None, options))
    # A laptop's host name may resolve to an address that nothing listens on.
    local.setdefault("spark.driver.bindAddress", "127.0.0.1")
    local.setdefault("spark.driver.host", "127.0.0.1")
    # How often running tasks report progress; one process can afford more than every 10 seconds.
    local.setdefault("spark.executor.heartbeatInterval", "3s")
    return local


def _from_environment(name: str) -> str:
    return os.environ.get(name, "")
