"""A class archive for local Spark sessions: with it, Java maps Spark's classes instead of loading each from its jar.

Java calls this class data sharing (JEP 350). An archive is of one Java and one class path; with another one Java leaves
it aside and goes on without. To make one takes about half a minute, so no run does it: `dagster-kafka-flip spark
prepare` does.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime.jars import default_cache_dir
from dagster_kafka_flip.runtime.java import find_java, locate_java
from dagster_kafka_flip.runtime.spark_home import spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMEOUT_SECONDS = 600.0
_SHOWN_LINES = 8

# Without them Java warns of each class that it can't archive, and of an archive that does not fit.
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _archive_path(java: Path, jars: Sequence[str]) -> Path:
    """Where the archive for a Java and a class path is, whether or not it was made."""
    java = java.resolve()
    release = java.parent.parent / "release"
    identity = [
        importlib.metadata.version("pyspark"),
        str(spark_home()),
        str(java),
        release.read_text("utf-8") if release.exists() else "",
        *jars,
    ]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return default_cache_dir() / "class-archives" / f"{key}.jsa"


def archive_options(jars: Sequence[str]) -> list[str]:
    """What Java has to be told to use the archive; nothing if it was not made.

    Args:
        jars: The jars that a session has besides those of pyspark.
    """
    java = locate_java()
    path = None if java is None else _archive_path(java, jars)
    return [] if path is None or not path.exists() else [f"-XX:SharedArchiveFile={path}", *_SILENT]


def make_archive(jars: Sequence[str], settings: Mapping[str, str]) -> Path:
    """Makes the archive, unless it is there: Spark does once what a run does, and Java writes down what it loaded.

    Args:
        jars: The jars that a session has besides those of pyspark.
        settings: What a session is made with.

    Returns:
        The archive's path.

    Raises:
        JavaNotFoundError: There is no Java, or it is too old.
        SparkSessionError: Spark did not run, or Java wrote no archive.
    """
    path = _archive_path(find_java(), jars)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="partial-") as folder:
        partial = Path(folder) / path.name
        options = " ".join([f"-XX:ArchiveClassesAtExit={partial}", *_SILENT])
        # spark-submit and not a Python that starts Java: its Java ends by itself, and is waited for.
        command = [
            str(spark_home() / "bin" / "spark-submit"),
            *("--master", "local[2]"),
            *("--driver-class-path", os.pathsep.join(jars)),
            *("--driver-java-options", options),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            str(Path(__file__).with_name("class_archive_training.py")),
            str(Path(folder) / "table"),
        ]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={name: value for name, value in environment.items() if name != "PYSPARK_SUBMIT_ARGS"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            msg = f"Spark's class archive was not made within {_TIMEOUT_SECONDS:.0f} s; try again on a quieter machine"
            raise SparkSessionError(msg) from error
        if done.returncode != 0 or not partial.exists():
            said = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-_SHOWN_LINES:])
            msg = (
                f"Spark's class archive was not made: spark-submit ended with {done.returncode}. Runs work without "
                f"it, they only start more slowly. The last that it said:\n{said}"
            )
            raise SparkSessionError(msg)
        partial.replace(path)
    return path
