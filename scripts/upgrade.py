"""Pins the newest versions that pyproject.toml allows: `make upgrade`.

Rewrites `constraints.txt` and `constraints-airflow.txt` (what only Airflow needs), and prints what changed. A Spark or
a Delta whose jars no repository has yet is held back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from packaging.utils import canonicalize_name
from packaging.version import Version

from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.spark_jars import brought_by_spark, packages_of

_ROOT = Path(__file__).resolve().parents[1]
_FILES = (_ROOT / "constraints.txt", _ROOT / "constraints-airflow.txt")


@click.command()
def main() -> None:
    """Resolves the newest versions, and rewrites the pins."""
    newest = _newest()
    known = {_normal(name): version for file in _FILES for name, version in _pins(file)}
    for file in _FILES:
        names = {_normal(name): name for name, _ in _pins(file)}
        if file == _FILES[0]:
            names |= {name: name for name in newest.keys() - known.keys()}
        kept = sorted(names.keys() & newest.keys())
        file.write_text("".join(f"{names[name]}=={newest[name]}\n" for name in kept), "utf-8")
    changes = {
        name: (known.get(name, "not there"), newest.get(name, "not needed any more"))
        for name in sorted(known.keys() | newest.keys())
    }
    for name, (before, after) in changes.items():
        if before != after:
            click.echo(f"{name}: {before} -> {after}")
    if all(before == after for before, after in changes.values()):
        click.echo("all pins are the newest")


def _normal(name: str) -> str:
    return canonicalize_name(name)


def _pins(file: Path) -> list[tuple[str, str]]:
    return [(name, version) for name, _, version in (line.partition("==") for line in file.read_text().split())]


def _newest() -> dict[str, str]:
    """The newest versions that go together, by name."""
    held_back: list[str] = []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            report, limits = Path(folder, "report.json"), Path(folder, "limits.txt")
            limits.write_text("\n".join(held_back))
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            dry = ["--dry-run", "--ignore-installed", "--report", str(report), "-c", str(limits), "-e", ".[dev]"]
            subprocess.run([*pip, *dry], cwd=_ROOT, check=True)
            installed = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        newest: dict[str, str] = {_normal(each["name"]): each["version"] for each in installed}
        del newest["dagster-kafka-flip"]
        without = without_jars(newest["pyspark"], newest["delta-spark"])
        if not without:
            return newest
        for name in without:
            held_back.append(f"{name}<{newest[name]}")
            click.echo(f"{name} {newest[name]} is held back: no repository has its jars yet")


def without_jars(pyspark: str, delta: str) -> set[str]:
    """Which of `pyspark` and `delta-spark` no repository has the jars of, in these versions."""
    packages = packages_of(Version(pyspark), Version(delta))
    excludes = sorted(f"*:{artifact}" for artifact in brought_by_spark())
    there = {jar.name for jar in retrieve(packages, excludes=excludes, older=packages)}
    missing = [package for package in packages if "{}_{}-{}.jar".format(*package.split(":")) not in there]
    return {"delta-spark" if package.startswith("io.delta:") else "pyspark" for package in missing}


if __name__ == "__main__":
    main()
