"""What contributors and continuous integration are pointed to: targets, files, pinned versions, measurements."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from benchmarks.document import DOCUMENT, RESULTS, written
from scripts.upgrade import without_jars

_ROOT = Path(__file__).parent.parent
_TEXTS = [
    *(_ROOT / ".github").rglob("*.*"),
    *(
        _ROOT / name
        for name in (".pre-commit-config.yaml", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "README.md")
    ),
]


@pytest.mark.parametrize("path", _TEXTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_each_make_target_that_a_file_names_exists(path: Path):
    targets = set(re.findall(r"^([a-z][a-z-]*):", (_ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|entry: |run: |\()make ([a-z][a-z-]*)", path.read_text()))
    assert named <= targets


@pytest.mark.parametrize(
    "path", [each for each in _TEXTS if each.suffix in {".yml", ".yaml"}], ids=lambda path: str(path.relative_to(_ROOT))
)
def test_each_yaml_file_can_be_read(path: Path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_workflow_runs_what_contributors_run():
    workflow = yaml.safe_load((_ROOT / ".github/workflows/test.yml").read_text())
    commands = {step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step}
    assert commands == {"make check", "make test"}


@pytest.mark.parametrize("name", ["SECURITY.md", "RELEASING.md"])
def test_links_lead_to_files(name: str):
    links = re.findall(r"\]\(([^)#]+)\)", (_ROOT / name).read_text())
    assert links
    assert [link for link in links if not (_ROOT / link).exists()] == []


def test_each_test_file_that_a_script_or_make_runs_exists():
    texts = [_ROOT / "Makefile", *(_ROOT / "scripts").glob("*.py"), *(_ROOT / "tests").rglob("*.py")]
    named = {name for path in texts for name in re.findall(r"\btests/[a-z_/]+\.py\b", path.read_text())}
    assert len(named) > 5
    assert [name for name in sorted(named) if not (_ROOT / name).exists()] == []


def test_the_tables_are_those_of_the_kept_measurements():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert written(text) == text


def test_every_file_of_measurements_is_in_the_document():
    text = DOCUMENT.read_text(encoding="utf-8")
    names = {path.stem for path in RESULTS.glob("*.json")}
    assert names
    assert {name for name in names if f"<!-- from {name}" not in text} == set()


def test_the_installed_versions_have_their_jars() -> None:
    """And so they may be pinned."""
    assert without_jars(version("pyspark"), version("delta-spark")) == set()
