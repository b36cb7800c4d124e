"""Class archive for local Spark sessions: Java maps Spark's classes instead of loading each from its jar.

Java's class data sharing (JEP 350). An archive is for one Java version and one class path; Java ignores it otherwise.
Creating one takes about half a minute, so runs never do it: `dagster-kafka-flip spark prepare` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime.jars import default_cache_dir, spark_home, spark_submit, writing
from dagster_kafka_flip.runtime.java import find_java, locate_java, run_to_its_end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMEOUT_SECONDS = 600.0
# What the shell may have for other sessions. With a master, spark-submit refuses an address of a server.
_OTHERS = {"PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"}
_SHOWN_LINES = 8

# Without these options, Java prints warnings for classes that it can't archive, and for an archive that does not match.
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")

# The run that loads the classes is over before it gets back the time that the second compiler takes.
_QUICK = "-XX:TieredStopAtLevel=1"


def _archive_path(java: Path, jars: Sequence[str]) -> Path:
    """Path of the archive for a Java and a class path, whether or not it exists: `<place>-<state of the jars>.jsa`.

    Java silently ignores an archive if a jar's size or modification time has changed. So a reinstalled pyspark needs
    another archive, even with the same version and path.
    """
    java = java.resolve()
    release = java.parent.parent / "release"
    class_path = [*sorted((spark_home() / "jars").glob("*.jar")), *map(Path, jars)]
    place = [str(java), str(spark_home()), *jars]
    state = [
        release.read_text("utf-8") if release.exists() else "",
        *((str(jar), at.st_size, at.st_mtime_ns) for jar in class_path if jar.exists() for at in [jar.stat()]),
    ]
    return default_cache_dir() / "class-archives" / f"{_digest(place)}-{_digest(state)}.jsa"


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def archive_options(jars: Sequence[str]) -> list[str]:
    """Java options to use the archive; empty if it does not exist."""
    java = locate_java()
    path = None if java is None else _archive_path(java, jars)
    return [] if path is None or not path.exists() else [f"-XX:SharedArchiveFile={path}", *_SILENT]


def make_archive(jars: Sequence[str], settings: Mapping[str, str]) -> Path:
    """Creates the archive, unless it exists: Spark does the work of a run once, and Java records the loaded classes."""
    path = _archive_path(find_java(), jars)
    if path.exists():
        return path
    submit = spark_submit()
    with writing("Spark's class archive", default_cache_dir(), path) as work:
        if work is not None:
            _train(submit, work / path.name, jars, settings)
            (work / path.name).replace(path)
        # Java would not use those of an earlier state again, and each takes 180 MB.
        for other in path.parent.glob(f"{path.name.partition('-')[0]}-*.jsa"):
            if other != path:
                other.unlink(missing_ok=True)
    return path


def _train(submit: Path, archive: Path, jars: Sequence[str], settings: Mapping[str, str]) -> None:
    # Uses spark-submit instead of a Python that starts Java, because its Java ends by itself and can be awaited.
    command = [
        str(submit),
        *("--master", "local[2]"),
        *("--driver-class-path", os.pathsep.join(jars)),
        *("--driver-java-options", " ".join([f"-XX:ArchiveClassesAtExit={archive}", _QUICK, *_SILENT])),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        str(Path(__file__).with_name("class_archive_training.py")),
        str(archive.parent / "table"),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    try:
        done = run_to_its_end(command, _TIMEOUT_SECONDS, cwd=archive.parent, env=environment)
    except subprocess.TimeoutExpired as error:
        raise SparkSessionError(
            f"creating Spark's class archive took more than {_TIMEOUT_SECONDS:.0f} s; try again when the machine is "
            "less busy"
        ) from error
    if done.returncode != 0 or not archive.exists():
        lines = [line for line in done.stdout.splitlines() if not line.startswith(("\tat ", "\t... "))]
        last_output = "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:])
        raise SparkSessionError(
            f"could not create Spark's class archive: spark-submit ended with {done.returncode}. Runs work without "
            f"it, but start more slowly. Last output:\n{last_output}"
        )
