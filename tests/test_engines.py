from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomllib  # pyright: ignore[reportMissingImports] - from Python 3.11 on
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.spark_jars import ENGINES, installed_engine

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = Path(__file__).parent.parent
_PINNED = next(engine for engine in ENGINES if engine.target == "make test")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def install(spark: str, delta: str) -> None:
        versions = {"pyspark": spark, "delta-spark": delta}
        monkeypatch.setattr(importlib.metadata, "version", lambda package: versions[package])

    return install


def test_the_pinned_engine_is_the_newest_and_the_one_of_all_tests():
    pins = dict(line.split("==") for line in (_ROOT / "constraints.txt").read_text().split())
    minors = [Version(pins[package]).release[:2] for package in ("pyspark", "delta-spark")]
    for engine in (_PINNED, ENGINES[-1]):
        assert [Version(each).release[:2] for each in (engine.spark, engine.delta)] == minors


def test_the_engines_of_the_table_are_those_that_pip_may_install():
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(each) for each in (*project["dependencies"], *project["optional-dependencies"]["connect"])]
    for package, versions in (("pyspark", [e.spark for e in ENGINES]), ("delta-spark", [e.delta for e in ENGINES])):
        newest = max(map(Version, versions))
        bounds = SpecifierSet(f">={min(map(Version, versions))},<{newest.major}.{newest.minor + 1}")
        assert {each.specifier for each in needed if each.name == package} == {bounds}


@pytest.mark.parametrize(
    ("spark", "delta"),
    [("4.0.1", "4.0.1"), ("4.0.5", "4.4.1"), ("4.1.1", "4.1.0"), ("4.1.4", "4.4.0"), ("4.2.0", "4.4.0")],
)
def test_a_pair_that_goes_together_is_taken(installed, spark: str, delta: str):
    installed(spark, delta)
    assert installed_engine() == (Version(spark), Version(delta))


@pytest.mark.parametrize(
    ("spark", "delta"), [("4.0.0", "4.0.1"), ("4.1.1", "4.0.1"), ("4.1.2", "4.1.0"), ("4.3.0", "4.4.0")]
)
def test_a_pair_that_does_not_go_together_is_refused_with_the_pairs_that_do(installed, spark: str, delta: str):
    installed(spark, delta)
    found = rf"pyspark {re.escape(spark)} does not go with delta-spark {re.escape(delta)}, so Spark is not started"
    pairs = ", ".join(
        rf"pyspark {re.escape(first)} with delta-spark {re.escape(oldest)} or newer"
        for first, oldest in (("4.0.1", "4.0.1"), ("4.1.0", "4.1.0"), ("4.1.2", "4.4.0"), ("4.2.0", "4.4.0"))
    )
    with pytest.raises(ConfigurationError, match=f"{found}.*{pairs}.*Install one"):
        installed_engine()


def test_the_documents_name_the_engines():
    text = (_ROOT / "docs" / "deployment.md").read_text()
    rows = re.findall(r"^\| (4\S+) \| (4\S+) \| (3\.\d+) \| (\d+) \| `(.+)` \|$", text, re.MULTILINE)
    assert rows == [(e.spark, e.delta, e.python, str(e.java), e.target) for e in ENGINES]
