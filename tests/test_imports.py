"""Imports go one way, and loading the package starts nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dagster_kafka_flip

_PACKAGE = "dagster_kafka_flip"
_ROOT = Path(dagster_kafka_flip.__file__).parent

_SPARK = ("pyspark", "delta")
_DAGSTER = ("dagster", "dagster_shared")
_ROOMS = tuple(f"{_PACKAGE}.{room}" for room in ("source", "reader", "formats", "table"))
_ABOVE = tuple(
    f"{_PACKAGE}.{name}"
    for name in (
        "ingestion",
        "together",
        "stream_run",
        "landing",
        "replaying",
        "result",
        "dead_letters",
        "dead_letter_debts",
        "dead_letter_table",
        "observation",
        "assets",
        "resources",
        "topics",
        "metadata",
        "commands",
        "cli",
    )
)
_COMMANDS = tuple(f"{_PACKAGE}.{name}" for name in ("commands", "cli"))

# The use case, from its door to what it is made of.
_DEAD_LETTERS = {"dead_letters", "dead_letter_debts", "dead_letter_table"}
_USE_CASE = {"ingestion", "together", "stream_run", "replaying", "landing", "result", "observation"} | _DEAD_LETTERS

# What a part of the package must not import: not at its top, not inside a function, not for type checkers.
_FORBIDDEN = {
    "source": (*_SPARK, *_DAGSTER, *(room for room in _ROOMS if room != f"{_PACKAGE}.source"), *_ABOVE),
    "reader": (*_DAGSTER, *_ABOVE, f"{_PACKAGE}.table", f"{_PACKAGE}.formats"),
    "formats": (*_DAGSTER, *_ABOVE, f"{_PACKAGE}.table"),
    "table": (*_DAGSTER, *_ABOVE, f"{_PACKAGE}.reader", f"{_PACKAGE}.formats"),
    **{
        door: (*_DAGSTER, *(name for name in _ABOVE if name.rpartition(".")[2] not in _USE_CASE - others))
        for door, others in {
            "ingestion.py": {"together"},
            "together.py": {"ingestion"},
            "stream_run.py": {"ingestion", "together", "replaying"},
        }.items()
    },
    "landing.py": (
        *_DAGSTER,
        *(
            name
            for name in _ABOVE
            if name.rpartition(".")[2] not in _USE_CASE - {"ingestion", "together", "stream_run", "replaying"}
        ),
    ),
    "result.py": (*_DAGSTER, *(name for name in _ABOVE if name.rpartition(".")[2] != "observation")),
    "dead_letters.py": (*_DAGSTER, *_ABOVE),
    "dead_letter_debts.py": (*_DAGSTER, *_ABOVE),
    "dead_letter_table.py": (
        *_DAGSTER,
        *(name for name in _ABOVE if name.rpartition(".")[2] not in {*_DEAD_LETTERS, "observation"}),
    ),
    "observation.py": (*_DAGSTER, *_ABOVE, f"{_PACKAGE}.table"),
    "session.py": (*_DAGSTER, *_ABOVE, *_ROOMS),
    **dict.fromkeys(("assets.py", "resources.py", "topics.py", "metadata.py"), _COMMANDS),
    "commands": (f"{_PACKAGE}.cli", "py4j"),
}


def _imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever in it."""
    package = ".".join([_PACKAGE, *path.relative_to(_ROOT).parent.parts])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
    return found


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("part", _FORBIDDEN)
def test_imports_go_one_way(part):
    place = _ROOT / part
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    assert files
    wrong = {
        f"{path.relative_to(_ROOT)} imports {name}"
        for path in files
        for name in _imported(path)
        if any(_is_in(name, forbidden) for forbidden in _FORBIDDEN[part])
    }
    assert wrong == set()


def test_spark_is_never_asked_for_its_jvm():
    # What works through Spark Connect works everywhere; the other way round it does not. One module may ask a context,
    # where there is one: what it learns is only told, and decides nothing.
    names = {"_jvm", "_jsparkSession", "sparkContext", "_sc", "_jsc", "_jdf"}
    telling = _ROOT / "spark_status.py"
    wrong = {
        f"{path.relative_to(_ROOT)}:{node.lineno} {node.attr}"
        for path in _ROOT.rglob("*.py")
        if path != telling
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert wrong == set()


def test_only_the_cluster_and_what_reads_a_few_records_of_it_talk_to_kafka():
    allowed = {
        Path(f"source/{name}.py") for name in ("cluster", "groupless", "record_reading", "record_search", "sampling")
    } | {Path("broker.py")}
    wrong = {
        path.relative_to(_ROOT)
        for path in _ROOT.rglob("*.py")
        if any(_is_in(name, "confluent_kafka") for name in _imported(path))
    }
    assert wrong <= allowed


_LOAD = """
import importlib, pkgutil, sys
import dagster_kafka_flip
print(*sorted(name for name in ("dagster", "pyspark", "delta") if name in sys.modules))
names = [m.name for m in pkgutil.walk_packages(dagster_kafka_flip.__path__, "dagster_kafka_flip.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(*sorted(name for name in sys.modules if name.partition(".")[0] in {"pyspark", "delta", "py4j"}))
print(len(names) > 20)
"""


def test_loading_every_module_loads_no_spark():
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    by_the_package_alone, by_its_modules, found_modules = done.stdout.splitlines()
    assert "pyspark" not in by_the_package_alone
    assert by_its_modules == ""
    assert found_modules == "True"
