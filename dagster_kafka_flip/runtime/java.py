"""Finds the Java installation for Spark and the development broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MINIMUM_VERSION = 17
"""The oldest Java release that Spark 4 and Kafka 4 support."""

_TIMEOUT_SECONDS = 30.0
_NEXT_STEP = (
    f"Spark 4 and Kafka 4 need Java {MINIMUM_VERSION} or newer: install one (on Debian or Ubuntu: "
    f"apt-get install openjdk-{MINIMUM_VERSION}-jre-headless), or set JAVA_HOME to an installed one"
)


def find_java() -> Path:
    """Finds a supported Java: in `JAVA_HOME` if set, otherwise the first on the `PATH`, like Spark."""
    home = os.environ.get("JAVA_HOME")
    origin = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set"
    executable = locate_java()
    if executable is None:
        where = "there is no bin/java in it" if home else "there is no java on the PATH"
        raise JavaNotFoundError(f"Java not found: {origin}, and {where}", _NEXT_STEP)

    output = _version_output(executable)
    version = _feature_version(output)
    if version is None:
        output_text = " ".join(output.split()) or "nothing"
        raise JavaNotFoundError(
            f"{executable} ({origin}) does not report its version; output: {output_text}", _NEXT_STEP
        )
    if version < MINIMUM_VERSION:
        raise JavaNotFoundError(f"{executable} ({origin}) is Java {version}, which is too old", _NEXT_STEP)
    return executable


def locate_java() -> Path | None:
    """Path of the Java that would be used, whether or not it is supported; None if there is none. Does not start it."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    return None if found is None else Path(found)


def run_to_its_end(
    command: Sequence[str | Path],
    seconds: float,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    umask: int = -1,
) -> subprocess.CompletedProcess[str]:
    """Runs a command without input, and returns its exit code and what it printed, in order."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds,
        umask=umask,
    )
    done.stdout = without_options(done.stdout)
    return done


def without_options(output: str) -> str:
    """Drops the options that Java says it took from the environment: they may have a proxy's password."""
    return re.sub(r"(?m)^(?:NOTE: )?Picked up .*\n?", "", output)


def _version_output(executable: Path) -> str:
    try:
        return run_to_its_end([executable, "-version"], _TIMEOUT_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFoundError(f"{executable} can't be run: {error}", _NEXT_STEP) from error


def _feature_version(output: str) -> int | None:
    """Parses 17 from `openjdk version "17.0.15" 2025-04-15`, and 8 from the older form `java version "1.8.0_392"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else None
