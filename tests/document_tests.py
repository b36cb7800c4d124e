"""What documents say of this project's own tests and options, for tests that hold them to it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

ROOT = Path(__file__).parent.parent


def named_tests(document: str) -> list[tuple[str, str]]:
    """The tests that a document names, as `path::name` in backticks."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document)


@cache
def tests_in(path: Path) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def written_tests(folder: str) -> set[tuple[str, str]]:
    """Path and name of the tests in the files of a folder."""
    return {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / folder).glob("test_*.py")
        for name in tests_in(path)
    }


def missing_tests(document: str) -> set[str]:
    """The tests that a document names and that are not there."""
    return {
        f"{path}::{name}"
        for path, name in named_tests(document)
        if not (ROOT / path).is_file() or name not in tests_in(ROOT / path)
    }


def documented_options(heading: str) -> set[str]:
    """The options of a command that the reference's table under a heading names."""
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = reference.partition(f"{heading}\n")[2].partition("\n#")[0]
    return set(re.findall(r"`(--?[a-z][a-z-]*)`", section.partition("|---|")[2]))


def options_of(command: click.Command) -> set[str]:
    """All options of a command, as they are written."""
    return {option for parameter in command.params for option in parameter.opts}
